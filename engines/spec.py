"""The words in which backends and presets are described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

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
    voices: tuple[str, ...] = ()
    """All that it may speak in, as far as that is known before it is loaded; empty: its weights say."""
    fake: bool = False
    """It follows a script: what it does, and how long it takes, tells of no model."""


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

    def fakes(self) -> tuple[Kind, ...]:
        """The stages that a fake serves."""
        return tuple(spec.kind for spec in self.first() if spec.fake)

    def __iter__(self) -> Iterator[BackendSpec]:
        return iter([*self.first(), *self.standing_by()])


def weights_name(weights: Weights) -> str:
    return weights if isinstance(weights, str) else weights.name
