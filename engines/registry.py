"""Which engines there are, and presets that name some for each stage.

A backend is chosen by name and its module imported only then, so that a preset costs (and needs installed) only what
it uses. :mod:`engines.opening` is how an application gets its engines; :mod:`engines.selection` puts a user's own
choice in a preset's place.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

from engines.api import EngineError
from engines.backends import ALL_BACKENDS, ALL_PRESETS
from engines.spec import (
    KINDS,
    BackendSpec,
    Derived,
    Folder,
    HubRepo,
    Kind,
    Lineup,
    PresetSpec,
    Weights,
    weights_name,
)

__all__ = [
    "BACKENDS",
    "KINDS",
    "PRESETS",
    "BackendSpec",
    "Derived",
    "Folder",
    "HubRepo",
    "Kind",
    "Lineup",
    "PresetSpec",
    "Weights",
    "check_installed",
    "find_lineup",
    "find_preset",
    "load_reference",
    "missing_extra",
    "weights_name",
]

BACKENDS: Mapping[str, BackendSpec] = {spec.name: spec for spec in ALL_BACKENDS}
PRESETS: Mapping[str, PresetSpec] = {preset.name: preset for preset in ALL_PRESETS}


def find_preset(name: str) -> PresetSpec:
    """The preset of that name.

    Raises:
        EngineError: ``unknown_preset``.
    """
    try:
        return PRESETS[name]
    except KeyError:
        raise EngineError("unknown_preset", f"no preset {name!r}; there are: {', '.join(PRESETS)}") from None


def find_lineup(preset: str) -> Lineup:
    """The backends of a preset as it stands.

    Raises:
        EngineError: ``unknown_preset``.
    """
    spec = find_preset(preset)
    return Lineup(spec.name, {kind: tuple(BACKENDS[name] for name in spec.chain(kind)) for kind in KINDS})


def check_installed(spec: BackendSpec) -> None:
    """See, without importing anything heavy, that a backend can run here.

    Raises:
        EngineError: ``missing_extra`` or ``unsupported_platform``.
    """
    if not sys.platform.startswith(spec.platforms):
        raise EngineError("unsupported_platform", f"the backend {spec.name!r} does not run on {sys.platform}")
    for package in spec.imports:
        if not _is_importable(package):
            raise missing_extra(spec, package)


def load_reference(reference: str) -> Any:
    """What ``"module:attr"`` names, imported now."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def missing_extra(spec: BackendSpec, package: str) -> EngineError:
    message = f"the backend {spec.name!r} needs {package}: pip install -e '.[{spec.extra}]'"
    if package == "mlx_whisper" and sys.platform == "linux":  # as pyproject.toml says
        message += ", then pip install --no-deps mlx-whisper"
    return EngineError("missing_extra", message)


def _is_importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module set to None in sys.modules, as tests do to hide one
        return False
