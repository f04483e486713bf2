"""A preset with stages of the user's choice: another backend, another of its models, weights of one's own.

    select("embedded", {"llm": Choice(backends=("openai-compatible",), model="qwen3", options={"base_url": url})})

A backend goes by its name (``faster-whisper-base``) or its family (``faster-whisper``, with ``model="base"``). Where it
loads weights, its model may also be a folder, or a hub repository ``owner/name[@revision]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from engines import hub
from engines.api import EngineError
from engines.registry import BACKENDS, KINDS, BackendSpec, Folder, HubRepo, Kind, Lineup, Weights, find_lineup

_OPENAI = "api.openai.com"


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to serve one stage; what is empty stays as the preset has it. The first of ``backends`` serves and the
    others stand in; ``model`` and ``options`` are the first one's."""

    backends: tuple[str, ...] = ()
    model: str = ""
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        return bool(self.backends or self.model or self.options)


def select(preset: str, choices: Mapping[Kind, Choice]) -> Lineup:
    """The backends of a preset, some stages replaced. A stage whose backends are named has only those: nothing of the
    preset stands in for them.

    Raises:
        EngineError: ``unknown_preset``, ``unknown_backend``, ``unknown_model``, ``bad_options``.
    """
    lineup = find_lineup(preset)
    chains = dict(lineup.chains)
    for kind, choice in choices.items():
        if not choice:
            continue
        chain = tuple(_find(kind, name) for name in choice.backends) or chains[kind]
        first = _with_model(chain[0], choice.model) if choice.model else chain[0]
        if choice.options:
            first = _with_options(first, choice.options, named=bool(choice.model))
        chains[kind] = (first, *(spec for spec in chain[1:] if spec.name != first.name))
    return Lineup(lineup.name, chains)


def families(kind: Kind) -> dict[str, list[str]]:
    """What may be named for a stage, and the models each knows."""
    found: dict[str, list[str]] = {}
    for spec in BACKENDS.values():
        if spec.kind == kind:
            found.setdefault(spec.family or spec.name, []).extend([spec.model] if spec.model else [])
    return found


def _find(kind: Kind, name: str) -> BackendSpec:
    spec = BACKENDS.get(name)
    if spec is not None and spec.kind == kind:
        return spec
    for spec in BACKENDS.values():
        if spec.kind == kind and spec.family == name:
            return spec
    if kind not in KINDS:
        raise EngineError("unknown_backend", f"no stage {kind!r}; there are: {', '.join(KINDS)}")
    raise EngineError("unknown_backend", f"no {kind} backend {name!r}; there are: {', '.join(families(kind))}")


def _with_model(spec: BackendSpec, model: str) -> BackendSpec:
    for other in BACKENDS.values():
        if other.kind == spec.kind and other.family == spec.family != "" and other.model == model:
            return other
    if spec.takes == "name":
        return replace(spec, model=model, options={**spec.options, "model": model})
    weights = _own_weights(model)
    if weights is None or spec.takes is None or not spec.weights:
        raise EngineError("unknown_model", f"the backend {spec.name!r} has no model {model!r}; {_models(spec)}")
    # Of several folders the first is the model, the others are what its language needs. Its need is told by its files.
    return replace(
        spec,
        name=f"{spec.family} {model}",
        model=model,
        weights=(weights, *spec.weights[1:]),
        memory_mb=0,
        languages=(),
        voices=(),
    )


def _own_weights(model: str) -> Weights | None:
    path = Path(model).expanduser()
    if path.is_dir() or model.startswith((".", "/", "~")):
        return Folder(path.resolve())
    if hub.is_repo(model):
        repo, _, revision = model.partition("@")
        return HubRepo(repo, revision or None)
    return None


def _models(spec: BackendSpec) -> str:
    known = ", ".join(other.model for other in BACKENDS.values() if other.family == spec.family != "")
    own = "a folder, or owner/name[@revision] of a hub" if spec.takes == "weights" and spec.weights else ""
    return f"it takes: {'; or '.join(filter(None, (known, own)))}" if known or own else "it takes none"


def _with_options(spec: BackendSpec, options: Mapping[str, object], *, named: bool) -> BackendSpec:
    """``named``: its model was chosen, too."""
    if spec.takes != "name":
        takers = ", ".join({other.family: 0 for other in BACKENDS.values() if other.takes == "name"})
        message = f"the backend {spec.name!r} takes no {', '.join(options)}; these do: {takers}"
        raise EngineError("bad_options", f"{message} (to be named for {spec.kind})")
    merged = {**spec.options, **options}
    if "base_url" in options and "api_key_env" not in options:
        merged["api_key_env"] = ""  # the key of one service is not for another
    if "base_url" in options and not named and urlsplit(str(options["base_url"])).hostname != _OPENAI:
        merged["model"] = ""  # nor is its model: the first that the server lists
    voices = merged.get("voices", ())
    return replace(spec, options=merged, voices=tuple(voices) if isinstance(voices, tuple | list) else ())
