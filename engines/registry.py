"""Which engines there are, and presets that name some for each stage.

A backend is chosen by name and its module imported only then, so that a preset costs (and needs installed) only what
it uses. :mod:`engines.opening` is how an application gets its engines; :mod:`engines.selection` puts a user's own
choice in a preset's place.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from engines.api import EngineError

Kind = Literal["vad", "turn", "stt", "llm", "tts"]
KINDS: tuple[Kind, ...] = ("vad", "turn", "stt", "llm", "tts")


@dataclass(frozen=True, slots=True)
class Derived:
    """Weights made on this machine from a catalogue model by ``recipe`` (``"module:attr"``), a
    ``Callable[[source folder, empty folder], None]``. ``name`` changes when the recipe does."""

    name: str
    source: str
    recipe: str


@dataclass(frozen=True, slots=True)
class Folder:
    """Weights a user has: a folder on this machine, taken as it is."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class HubRepo:
    """Weights a user names: a hub repository, at a commit or, without ``revision``, at the one found at first fetch."""

    repo: str
    revision: str | None = None

    @property
    def name(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo


Weights = str | Derived | Folder | HubRepo
"""A model of the catalogue by its name, or one of the others."""


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One engine. ``factory`` (``"module:attr"``) is called with the folders of ``weights`` in order, then with the
    lane or the MLX executor if the backend is to share one, then with ``options`` as keywords."""

    name: str
    kind: Kind
    factory: str
    extra: str | None = None
    """The extra of this project that brings what it imports."""
    imports: tuple[str, ...] = ()
    """Top-level packages of that extra, looked for before anything is downloaded."""
    platforms: tuple[str, ...] = ("linux", "darwin")
    memory_mb: int = 0
    """What it holds once loaded and warm."""
    weights: tuple[Weights, ...] = ()
    shares: Literal["lane", "mlx"] | None = None
    host: Literal["mlx", "cpu"] | None = None
    """The child process it runs in where there are any; None: always in the gateway's."""
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    family: str = ""
    """Backends that differ only in their model share a family: ``--stt FAMILY --stt-model MODEL``."""
    model: str = ""
    takes: Literal["weights", "name"] | None = None
    """What else a user may give as its model: a folder or hub repository, or a name that the engine passes on."""
    languages: tuple[str, ...] = ()
    """Primary subtags it knows; empty: any, or it says so itself."""


@dataclass(frozen=True, slots=True)
class PresetSpec:
    """Backends a stage, by name: the first serves, those after it stand in when it fails. ``turn`` may be empty
    (then silence alone ends a turn)."""

    name: str
    vad: str
    turn: str | None
    stt: tuple[str, ...]
    llm: tuple[str, ...]
    tts: tuple[str, ...]

    def chain(self, kind: Kind) -> tuple[str, ...]:
        names: str | tuple[str, ...] | None = getattr(self, kind)
        return (names,) if isinstance(names, str) else names or ()


@dataclass(frozen=True, slots=True)
class Lineup:
    """The backends that serve each stage, resolved: what :func:`engines.opening.open_engines` opens."""

    name: str
    chains: Mapping[Kind, tuple[BackendSpec, ...]]

    def first(self) -> list[BackendSpec]:
        """Those that serve, in the order they are started."""
        return [self.chains[kind][0] for kind in KINDS if self.chains[kind]]

    def standing_by(self) -> list[BackendSpec]:
        """Those that are loaded only when the one before them fails."""
        return [spec for kind in KINDS for spec in self.chains[kind][1:]]

    def __iter__(self) -> Iterator[BackendSpec]:
        return iter([*self.first(), *self.standing_by()])


_ONNX = ("onnxruntime",)
_GGUF = "smollm2-gguf"

_ALL = (
    BackendSpec(
        "silero", "vad", "engines.vad.silero:SileroVad", "embedded", _ONNX, memory_mb=20, weights=("silero-vad",)
    ),
    BackendSpec(
        "smart-turn",
        "turn",
        "engines.turn.smart_turn:SmartTurn",
        "embedded",
        _ONNX,
        memory_mb=60,
        weights=("smart-turn",),
    ),
    BackendSpec(
        "faster-whisper-tiny.en",
        "stt",
        "engines.stt.faster_whisper:FasterWhisper",
        "embedded",
        ("faster_whisper", "ctranslate2"),
        memory_mb=230,
        weights=("whisper-tiny.en",),
        shares="lane",
        host="cpu",
    ),
    BackendSpec(
        "faster-whisper-base",
        "stt",
        "engines.stt.faster_whisper:FasterWhisper",
        "embedded",
        ("faster_whisper", "ctranslate2"),
        memory_mb=300,
        weights=("whisper-base",),
        shares="lane",
        host="cpu",
    ),
    BackendSpec(
        "smollm2-ctranslate2",
        "llm",
        "engines.llm.ctranslate2:CTranslate2LanguageModel",
        "embedded",
        ("ctranslate2", "gguf", "tokenizers"),
        memory_mb=330,
        weights=(Derived("smollm2-ctranslate2-int8-1", _GGUF, "engines.llm.convert:smollm2_ctranslate2"),),
        shares="lane",
        host="cpu",
    ),
    BackendSpec(
        "smollm2-mlx",
        "llm",
        "engines.llm.mlx_lm:MlxLanguageModel",
        "mlx",
        ("mlx", "mlx_lm", "gguf"),
        memory_mb=700,
        weights=(Derived("smollm2-mlx-float32-1", _GGUF, "engines.llm.convert:smollm2_mlx"),),
        shares="mlx",
        host="mlx",
    ),
    BackendSpec(
        "piper-joe",
        "tts",
        "engines.tts.piper:PiperTts",
        "embedded",
        _ONNX,
        memory_mb=200,
        weights=("piper-joe", "misaki-en", "g2p-en"),
        shares="lane",
        host="cpu",
    ),
    BackendSpec("energy", "vad", "engines.vad.scripted:EnergyVad"),
    BackendSpec("scripted-turn", "turn", "engines.turn.scripted:ScriptedTurn"),
    BackendSpec("scripted-stt", "stt", "engines.stt.scripted:ScriptedStt"),
    BackendSpec("scripted-llm", "llm", "engines.llm.scripted:ScriptedLlm"),
    BackendSpec("scripted-tts", "tts", "engines.tts.scripted:ScriptedTts"),
)

BACKENDS: Mapping[str, BackendSpec] = {spec.name: spec for spec in _ALL}

PRESETS: Mapping[str, PresetSpec] = {
    preset.name: preset
    for preset in (
        PresetSpec(
            "embedded", "silero", "smart-turn", ("faster-whisper-tiny.en",), ("smollm2-ctranslate2",), ("piper-joe",)
        ),
        PresetSpec(
            "mlx-cpu",
            "silero",
            "smart-turn",
            ("faster-whisper-tiny.en",),
            ("smollm2-mlx", "smollm2-ctranslate2"),
            ("piper-joe",),
        ),
        PresetSpec("null", "energy", "scripted-turn", ("scripted-stt",), ("scripted-llm",), ("scripted-tts",)),
    )
}


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


def weights_name(weights: Weights) -> str:
    return weights if isinstance(weights, str) else weights.name


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
    message = f"the backend {spec.name!r} needs {package}: pip install 'offhook[{spec.extra}]'"
    return EngineError("missing_extra", message)


def _is_importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module set to None in sys.modules, as tests do to hide one
        return False
