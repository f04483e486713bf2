"""Which engines there are, and presets that name one for each stage.

A backend is chosen by name and its module imported only then, so that a preset costs (and needs installed) only what
it uses. :func:`open_preset` is how an application gets its engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import structlog

from engines import fetch
from engines.api import Engine, EngineError, EngineSet
from engines.lane import CpuLane

if TYPE_CHECKING:
    from engines.executor.thread import MlxExecutor

Kind = Literal["vad", "turn", "stt", "llm", "tts"]
KINDS: tuple[Kind, ...] = ("vad", "turn", "stt", "llm", "tts")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Derived:
    """Weights made on this machine from a catalogue model by ``recipe`` (``"module:attr"``), a
    ``Callable[[source folder, empty folder], None]``. ``name`` changes when the recipe does."""

    name: str
    source: str
    recipe: str


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One engine. ``factory`` (``"module:attr"``) is called with the folders of ``weights`` in order, then with the
    lane or the MLX executor if the backend is to share one."""

    name: str
    kind: Kind
    factory: str
    extra: str | None = None
    """The extra of this project that brings what it imports."""
    imports: tuple[str, ...] = ()
    """Top-level packages of that extra, looked for before anything is downloaded."""
    platforms: tuple[str, ...] = ("linux", "darwin")
    memory_mb: int = 0
    weights: tuple[str | Derived, ...] = ()
    shares: Literal["lane", "mlx"] | None = None


@dataclass(frozen=True, slots=True)
class PresetSpec:
    """One backend a stage, by name; ``turn`` may be None (then silence alone ends a turn)."""

    name: str
    vad: str
    turn: str | None
    stt: str
    llm: str
    tts: str

    def backends(self) -> list[BackendSpec]:
        """In the order they are started."""
        names = (self.vad, self.turn, self.stt, self.llm, self.tts)
        return [BACKENDS[name] for name in names if name is not None]


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What the engines of one preset share, and where their weights are (by catalogue or derived name)."""

    lane: CpuLane
    executor: MlxExecutor | None = None
    weights: Mapping[str, Path] = field(default_factory=dict)


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
        PresetSpec("embedded", "silero", "smart-turn", "faster-whisper-tiny.en", "smollm2-ctranslate2", "piper-joe"),
        PresetSpec("mlx-cpu", "silero", "smart-turn", "faster-whisper-tiny.en", "smollm2-mlx", "piper-joe"),
        PresetSpec("null", "energy", "scripted-turn", "scripted-stt", "scripted-llm", "scripted-tts"),
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


def check_installed(preset: PresetSpec) -> None:
    """See, without importing anything heavy, that a preset can run here.

    Raises:
        EngineError: ``missing_extra`` or ``unsupported_platform``.
    """
    for spec in preset.backends():
        if not sys.platform.startswith(spec.platforms):
            raise EngineError("unsupported_platform", f"the backend {spec.name!r} does not run on {sys.platform}")
        for package in spec.imports:
            if not _is_importable(package):
                raise _missing_extra(spec, package)


def fetch_weights(preset: PresetSpec, progress: fetch.Progress | None = None) -> dict[str, Path]:
    """The folders of all weights a preset needs, by name; fetches and converts what is not here. Blocks.

    Raises:
        EngineError: as :func:`engines.fetch.ensure`.
    """
    folders: dict[str, Path] = {}
    for spec in preset.backends():
        for weights in spec.weights:
            if isinstance(weights, Derived):
                folders[weights.name] = _derive(weights, progress)
            else:
                folders[weights] = fetch.ensure(weights, progress)
    return folders


def build(preset: PresetSpec, context: BuildContext) -> EngineSet:
    """Import and construct the engines of a preset; nothing is loaded or started yet.

    Raises:
        EngineError: ``missing_extra``.
    """
    engines: dict[str, Any] = {spec.kind: _construct(spec, context) for spec in preset.backends()}
    engines.setdefault("turn", None)
    return EngineSet(**engines)


@contextlib.asynccontextmanager
async def open_preset(
    name: str, *, cores: int | None = None, progress: fetch.Progress | None = None
) -> AsyncIterator[EngineSet]:
    """The engines of a preset, fetched, loaded and warm; closed on leaving, the last first.

    ``cores`` is how many CPU jobs run at once (default: as many as this process may use).

    Raises:
        EngineError: whatever hindered the first engine that could not be started; the others are closed again.
    """
    preset = find_preset(name)
    check_installed(preset)
    weights = await _fetch_in_thread(preset, progress)
    async with contextlib.AsyncExitStack() as stack:
        lane = CpuLane(cores)
        stack.push_async_callback(lane.close)
        executor = None
        if any(spec.shares == "mlx" for spec in preset.backends()):
            from engines.executor.thread import MlxExecutor

            executor = MlxExecutor()
            stack.push_async_callback(executor.close)
        engines = build(preset, BuildContext(lane, executor, weights))
        started = [engine for kind in KINDS if (engine := getattr(engines, kind)) is not None]
        for engine in started:
            stack.push_async_callback(engine.close)
        await _start_all(started)
        yield engines


async def _start_all(engines: list[Engine]) -> None:
    # Waits for all even when one fails: closing an engine whose weights another thread still loads is a race.
    results = await asyncio.gather(*(engine.start() for engine in engines), return_exceptions=True)
    errors = [error for error in results if isinstance(error, BaseException)]
    for error in errors[1:]:
        _log.error("another engine could not be started", error=str(error))
    if errors:
        raise errors[0]


async def _fetch_in_thread(preset: PresetSpec, progress: fetch.Progress | None) -> dict[str, Path]:
    stop = threading.Event()

    def report(model: str, done_bytes: int, total_bytes: int) -> None:
        if stop.is_set():
            raise _CancelledFetchError
        if progress is not None:
            progress(model, done_bytes, total_bytes)

    try:
        return await asyncio.to_thread(fetch_weights, preset, report)
    finally:
        stop.set()


class _CancelledFetchError(Exception):
    """Nobody waits for the download any more."""


def _derive(weights: Derived, progress: fetch.Progress | None) -> Path:
    def convert(into: Path) -> None:
        recipe = _load(weights.recipe)
        source = fetch.ensure(weights.source, progress)
        _log.info("converting model", model=weights.name)
        recipe(source, into)

    return fetch.derived(weights.name, convert)


def _construct(spec: BackendSpec, context: BuildContext) -> Any:
    names = [weights.name if isinstance(weights, Derived) else weights for weights in spec.weights]
    arguments: list[Any] = [context.weights[name] for name in names]
    if spec.shares == "lane":
        arguments.append(context.lane)
    elif spec.shares == "mlx":
        arguments.append(context.executor)
    try:
        factory = _load(spec.factory)
    except ModuleNotFoundError as error:
        if spec.extra is None:
            raise
        raise _missing_extra(spec, error.name or "a package") from error
    return factory(*arguments)


def _load(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _is_importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module set to None in sys.modules, as tests do to hide one
        return False


def _missing_extra(spec: BackendSpec, package: str) -> EngineError:
    message = f"the backend {spec.name!r} needs {package}: pip install 'offhook[{spec.extra}]'"
    return EngineError("missing_extra", message)
