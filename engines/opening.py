"""Opening engines: their weights fetched, each made in its place, loaded, warm, and closed again in reverse.

    async with open_engines(find_lineup("embedded")) as engines:
        ...

A *place* is where a backend runs: :class:`InProcess` here, or a child process (:mod:`engines.host`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from engines import fetch
from engines.api import (
    HEALTHY,
    BackendHealth,
    BackendState,
    Engine,
    EngineError,
    EngineHealth,
    EngineSet,
    LaneHealth,
    Place,
)
from engines.chain import Chain, Link
from engines.fallback import FallbackLanguageModel, FallbackSpeechToText, FallbackTextToSpeech
from engines.lane import CpuLane
from engines.memory import MemoryGuard, device_short, weights_mb
from engines.registry import (
    KINDS,
    BackendSpec,
    Folder,
    HubRepo,
    Kind,
    Lineup,
    check_installed,
    find_lineup,
    load_reference,
    missing_extra,
    weights_name,
)
from engines.weights import fetch_in_thread

if TYPE_CHECKING:
    from engines.executor.thread import MlxExecutor

_log = structlog.get_logger(__name__)

_UNREADABLE = ("bad_weights", "model_load_failed", "load_failed")
"""What engines say of files that they cannot load."""


class InProcess:
    """Engines in this process: a CPU lane of ``cores`` slots (default: as many as it may use) and, from the first
    backend that shares it, the MLX thread."""

    def __init__(self, cores: int | None = None) -> None:
        self._cores = cores
        self._lane: CpuLane | None = None
        self._executor: MlxExecutor | None = None

    def engine(self, spec: BackendSpec, weights: Sequence[Path]) -> Any:
        """Import and construct; nothing is loaded or started yet.

        Raises:
            EngineError: ``missing_extra``.
        """
        try:
            factory = load_reference(spec.factory)
            shared = self._shared(spec)
        except ModuleNotFoundError as error:
            if spec.extra is None:
                raise
            raise missing_extra(spec, error.name or "a package") from error
        engine = factory(*weights, *shared, **spec.options)
        if self._executor is not None and spec.shares == "mlx" and spec.memory_mb:
            return _OnDevice(engine, self._executor, spec)
        return engine

    def lanes(self) -> dict[str, LaneHealth]:
        """How those are that it has: ``cpu``, ``mlx``."""
        lanes: dict[str, LaneHealth] = {}
        if self._lane is not None:
            lane = self._lane.snapshot()
            waiting = lane.queued + lane.paused
            lanes["cpu"] = LaneHealth(lane.slots, waiting, lane.running, lane.late_ms, lane.busy_s)
        if self._executor is not None:
            mlx = self._executor.snapshot
            running = min(1, mlx.jobs)
            lanes["mlx"] = LaneHealth(1, mlx.jobs - running, running, mlx.late_ms, mlx.busy_s, mlx.overload)
        return lanes

    async def close(self) -> None:
        """After the engines: what they shared."""
        executor, self._executor = self._executor, None
        lane, self._lane = self._lane, None
        try:
            if executor is not None:
                await executor.close()
        finally:
            if lane is not None:
                await lane.close()

    def _shared(self, spec: BackendSpec) -> tuple[Any, ...]:
        if spec.shares == "lane":
            if self._lane is None:
                self._lane = CpuLane(self._cores)
            return (self._lane,)
        if spec.shares == "mlx":
            if self._executor is None:
                from engines.executor.thread import MlxExecutor

                self._executor = MlxExecutor()
            return (self._executor,)
        return ()


class _OnDevice:
    """An engine of the MLX thread that looks for room on the device before it loads: the main memory that a gateway
    can see says nothing of a GPU's."""

    def __init__(self, engine: Any, executor: MlxExecutor, spec: BackendSpec) -> None:
        self._engine = engine
        self._executor = executor
        self._spec = spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def start(self) -> None:
        await self._executor.start()
        short = await self._executor.run(self._short)
        if short is not None:
            raise EngineError("not_enough_memory", f"not enough memory for {self._spec.name}: {short}")
        await self._engine.start()

    def _short(self) -> str | None:
        import mlx.core as mx

        return device_short(mx, self._spec.memory_mb)


@contextlib.asynccontextmanager
async def open_engines(
    lineup: Lineup,
    *,
    place: Place | None = None,
    cores: int | None = None,
    memory: MemoryGuard | None = None,
    installed: Callable[[BackendSpec], None] = check_installed,
    progress: fetch.Progress | None = None,
) -> AsyncIterator[EngineSet]:
    """The engines of a lineup, fetched, loaded and warm; closed on leaving, the last first.

    Backends with a ``host`` run in ``place`` (closed with them), the others in this process, where ``cores`` is how
    many CPU jobs run at once (default: as many as it may use). Those that only stand in are fetched, and loaded when
    a request needs them; one that is not installed, or cannot be fetched, is left out.

    Raises:
        EngineError: whatever hindered the first engine that could not be started; the others are closed again.
    """
    async with contextlib.AsyncExitStack() as stack:
        if place is not None:
            stack.push_async_callback(place.close)
        here = InProcess(cores)
        stack.push_async_callback(here.close)
        opener = _Opener(here, place, memory or MemoryGuard(), progress)
        for spec in lineup.first():
            installed(spec)
        await opener.fetch(lineup.first())
        missing = await opener.missing(lineup.standing_by(), installed)
        stages: dict[str, _Stage] = {}
        for kind in KINDS:
            specs = [spec for spec in lineup.chains[kind] if spec.name not in missing]
            if specs:
                stages[kind] = opener.chain(kind, specs) if len(specs) > 1 else opener.single(specs[0])
                stack.push_async_callback(stages[kind].engine.close)
        await _start_all([stage.start for stage in stages.values()])
        engines: dict[str, Any] = {kind: stages[kind].engine if kind in stages else None for kind in KINDS}
        yield EngineSet(**engines, health=lambda: _health(place, here, stages.values()))


@dataclass(frozen=True, slots=True)
class _Stage:
    """``serving`` gives the engines that could take a request; None stands for one that is not loaded."""

    engine: Any
    start: Callable[[], Awaitable[None]]
    serving: Callable[[], list[Engine | None]]
    backends: Callable[[], list[BackendHealth]]
    chain: Chain[Any] | None = None


class _Opener:
    """Makes the engines of one lineup."""

    def __init__(
        self, here: InProcess, place: Place | None, memory: MemoryGuard, progress: fetch.Progress | None
    ) -> None:
        self._here = here
        self._place = place
        self._memory = memory
        self._progress = progress
        self._folders: dict[str, Path] = {}

    async def fetch(self, specs: Iterable[BackendSpec]) -> None:
        self._folders |= await fetch_in_thread(specs, self._progress)

    async def missing(self, specs: list[BackendSpec], installed: Callable[[BackendSpec], None]) -> set[str]:
        """The names of those that cannot stand in here. Fetches the others."""
        names: set[str] = set()
        for spec in specs:
            try:
                installed(spec)
                await self.fetch([spec])
            except EngineError as error:
                names.add(spec.name)
                _log.warning("a fallback is left out", backend=spec.name, code=error.code, message=str(error))
        return names

    def single(self, spec: BackendSpec) -> _Stage:
        spec = self._measured(spec)
        engine = self._make(spec)
        return _Stage(
            engine, partial(self._start, spec, engine), lambda: [engine], lambda: [self._health(spec, _state(engine))]
        )

    def chain(self, kind: Kind, specs: list[BackendSpec]) -> _Stage:
        clock = asyncio.get_running_loop().time
        links: list[Link[Any]] = [Link(spec.name, partial(self._open, spec), clock, spec.languages) for spec in specs]
        for link in links[1:]:
            self._memory.may_unload(link)
        chain: Chain[Any] = Chain(kind, links)
        engine = _FALLBACKS[kind](chain)
        return _Stage(
            engine,
            engine.start,
            lambda: [link.engine for link in links],
            lambda: [self._health(spec, link.state) for spec, link in zip(specs, links, strict=True)],
            chain,
        )

    def _health(self, spec: BackendSpec, state: BackendState) -> BackendHealth:
        return BackendHealth(spec.kind, spec.name, state, spec.host if self._place is not None else None)

    async def _open(self, spec: BackendSpec) -> Engine:
        spec = self._measured(spec)
        engine: Engine = self._make(spec)
        try:
            await self._start(spec, engine)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(engine.close()))
            raise
        return engine

    def _measured(self, spec: BackendSpec) -> BackendSpec:
        """With what a user's own weights will need."""
        own = [weights for weights in spec.weights if isinstance(weights, Folder | HubRepo)]
        if spec.memory_mb or not own:
            return spec
        return replace(spec, memory_mb=round(sum(weights_mb(self._folders[weights.name]) for weights in own)))

    def _make(self, spec: BackendSpec) -> Any:
        where = self._here if spec.host is None or self._place is None else self._place
        return where.engine(spec, [self._folders[weights_name(weights)] for weights in spec.weights])

    async def _start(self, spec: BackendSpec, engine: Engine) -> None:
        async with self._memory.room_for(spec.name, spec.memory_mb):
            try:
                await engine.start()
            except EngineError as error:
                folders = self._fetched(spec)
                if error.code not in _UNREADABLE or not folders:
                    raise
                # Files are checked when fetched, and later only by size: damage since then shows when one is loaded.
                advice = f"if a file is damaged, delete its folder to have it made anew: {' '.join(map(str, folders))}"
                raise EngineError(error.code, f"{error}\n{advice}") from error

    def _fetched(self, spec: BackendSpec) -> list[Path]:
        """The folders of its weights, but for those of the user's own, which would not come again."""
        return [self._folders[weights_name(weights)] for weights in spec.weights if not isinstance(weights, Folder)]


_FALLBACKS: dict[Kind, Callable[[Chain[Any]], Any]] = {
    "stt": FallbackSpeechToText,
    "llm": FallbackLanguageModel,
    "tts": FallbackTextToSpeech,
}


def _state(engine: Any) -> BackendState:
    return "up" if getattr(engine, "available", True) else "down"


def _health(place: Place | None, here: InProcess, stages: Collection[_Stage]) -> EngineHealth:
    """The place's own, whether each stage has somebody to do it, and what the chains' backends failed."""
    ask: Callable[[], EngineHealth] | None = getattr(place, "health", None)
    health = HEALTHY if ask is None else ask()
    served = [any(engine is None or getattr(engine, "available", True) for engine in s.serving()) for s in stages]
    chains = [stage.chain for stage in stages if stage.chain is not None]
    failed = {(chain.stage, link.name): link.failed_requests for chain in chains for link in chain.links}
    return replace(
        health,
        takes_calls=all(served),
        failed_requests=failed,
        backends=[backend for stage in stages for backend in stage.backends()],
        lanes=here.lanes(),
    )


@contextlib.asynccontextmanager
async def open_preset(
    name: str, *, cores: int | None = None, progress: fetch.Progress | None = None
) -> AsyncIterator[EngineSet]:
    """:func:`open_engines` of a preset as it stands, in this process."""
    async with open_engines(find_lineup(name), cores=cores, progress=progress) as engines:
        yield engines


async def _start_all(starts: Iterable[Callable[[], Awaitable[None]]]) -> None:
    # Waits for all even when one fails: closing an engine whose weights another thread still loads is a race.
    results = await asyncio.gather(*(start() for start in starts), return_exceptions=True)
    errors = [error for error in results if isinstance(error, BaseException)]
    for error in errors[1:]:
        _log.error("another engine could not be started", error=str(error))
    if errors:
        raise errors[0]
