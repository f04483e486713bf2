"""Scenario files: YAML in which every mistake has a place.

Plain values mean what YAML 1.2's core schema says: ``yes``, ``on`` and ``12:30`` are words here, not booleans and
numbers, and a key that is given twice is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_FILE_BYTES = 1_000_000

LIBRARY = Path(__file__).with_name("scenarios")


class ScenarioError(Exception):
    """A scenario that is none, or that can't be played as asked; the message says where and why."""


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """``data`` is what the file says; ``tree`` knows at which line."""

    path: Path
    data: Any
    tree: yaml.Node | None

    def line(self, keys: Sequence[str | int]) -> int:
        """Of a value, or of the innermost thing around it that is in the file."""
        node, line = self.tree, 0
        for key in (None, *keys):
            node = _inner(node, key) if key is not None and node is not None else node
            if node is None:
                break
            line = node.start_mark.line
        return line + 1


def library_names() -> tuple[str, ...]:
    """The scenarios that ship."""
    return tuple(sorted(path.stem for path in LIBRARY.glob("*.yaml")))


def find_scenario(name_or_path: str) -> Path:
    """A file where there is one or it looks like a path, otherwise one of the library. Raises
    :class:`ScenarioError`."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or path.name != name_or_path:
        return path
    if name_or_path not in library_names():
        raise ScenarioError(f"no scenario {name_or_path!r}: it is a YAML file, or one of {', '.join(library_names())}")
    return LIBRARY / f"{name_or_path}.yaml"


def read_scenario_file(path: Path) -> ScenarioFile:
    """Blocks. Raises :class:`ScenarioError` for what is no YAML or can't be read."""
    try:
        if path.exists() and not path.is_file():  # a pipe is waited for, and a device read, without end
            raise ScenarioError(f"{path}: not a file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ScenarioError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
        loader = _Loader(text)
        try:
            tree = loader.get_single_node()
            data = loader.construct_document(tree) if tree is not None else None
        finally:
            loader.dispose()
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # such as a number of ten thousand digits
        raise ScenarioError(_described(path, error)) from error
    return ScenarioFile(path, data, tree)


def _described(path: Path, error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{path.name}:{error.problem_mark.line + 1}: {error.problem}"
    return f"{path.name}: {error}"


def _inner(node: yaml.Node, key: str | int) -> yaml.Node | None:
    """What is under a key; the node itself for a word that is none of its keys (the name of a kind of step)."""
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int):
        return node.value[key] if key < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == key), node)
    return node


class _Loader(yaml.SafeLoader):
    """The safe loader, by YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (as its base has it)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is one word", key.start_mark)
            if key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Decimal, whatever it begins with."""
        return int(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))
