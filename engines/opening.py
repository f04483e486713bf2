"""Opening engines: their weights fetched, each made in its place, loaded, warm, and closed again in reverse.

    async with open_engines(find_lineup("embedded")) as engines:
        ...

A *place* is where a backend runs: :class:`InProcess` here, or a child process (:mod:`engines.host`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from engines import fetch, hub
from engines.api import Engine, EngineError, EngineSet, Place
from engines.lane import CpuLane
from engines.registry import (
    KINDS,
    BackendSpec,
    Derived,
    Folder,
    HubRepo,
    Lineup,
    Weights,
    check_installed,
    find_lineup,
    load_reference,
    missing_extra,
    weights_name,
)

if TYPE_CHECKING:
    from engines.executor.thread import MlxExecutor

_log = structlog.get_logger(__name__)


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
        return factory(*weights, *shared, **spec.options)

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


@contextlib.asynccontextmanager
async def open_engines(
    lineup: Lineup,
    *,
    place: Place | None = None,
    cores: int | None = None,
    progress: fetch.Progress | None = None,
) -> AsyncIterator[EngineSet]:
    """The engines of a lineup, fetched, loaded and warm; closed on leaving, the last first.

    Backends with a ``host`` run in ``place`` (closed with them), the others in this process, where ``cores`` is how
    many CPU jobs run at once (default: as many as it may use).

    Raises:
        EngineError: whatever hindered the first engine that could not be started; the others are closed again.
    """
    async with contextlib.AsyncExitStack() as stack:
        if place is not None:
            stack.push_async_callback(place.close)
        here = InProcess(cores)
        stack.push_async_callback(here.close)
        for spec in lineup.first():
            check_installed(spec)
        folders = await fetch_in_thread(lineup.first(), progress)
        engines: dict[str, Any] = dict.fromkeys(KINDS)
        for spec in lineup.first():
            where = here if spec.host is None or place is None else place
            engines[spec.kind] = where.engine(spec, [folders[weights_name(weights)] for weights in spec.weights])
            stack.push_async_callback(engines[spec.kind].close)
        await _start_all([engine for engine in engines.values() if engine is not None])
        health = getattr(place, "health", None)
        yield EngineSet(**engines, **({"health": health} if health is not None else {}))


@contextlib.asynccontextmanager
async def open_preset(
    name: str, *, cores: int | None = None, progress: fetch.Progress | None = None
) -> AsyncIterator[EngineSet]:
    """:func:`open_engines` of a preset as it stands, in this process."""
    async with open_engines(find_lineup(name), cores=cores, progress=progress) as engines:
        yield engines


def fetch_weights(specs: Iterable[BackendSpec], progress: fetch.Progress | None = None) -> dict[str, Path]:
    """The folders of all weights some backends need, by name; fetches and converts what is not here. Blocks.

    Raises:
        EngineError: as :func:`engines.fetch.ensure`; ``model_not_found`` for a user's folder that is none.
    """
    return {weights_name(weights): _ensure(weights, progress) for spec in specs for weights in spec.weights}


async def fetch_in_thread(specs: Iterable[BackendSpec], progress: fetch.Progress | None = None) -> dict[str, Path]:
    """:func:`fetch_weights` off the loop. Cancelled, the download stops at its next report."""
    stop = threading.Event()

    def report(model: str, done_bytes: int, total_bytes: int) -> None:
        if stop.is_set():
            raise fetch.CancelledFetchError
        if progress is not None:
            progress(model, done_bytes, total_bytes)

    try:
        return await asyncio.to_thread(fetch_weights, list(specs), report)
    finally:
        stop.set()


def _ensure(weights: Weights, progress: fetch.Progress | None) -> Path:
    match weights:
        case str():
            return fetch.ensure(weights, progress)
        case Derived():
            return _derive(weights, progress)
        case HubRepo():
            return hub.ensure_repo(weights.repo, weights.revision, progress)
        case Folder():
            if not weights.path.is_dir():
                raise EngineError("model_not_found", f"there is no model folder {weights.path}")
            return weights.path


def _derive(weights: Derived, progress: fetch.Progress | None) -> Path:
    def convert(into: Path) -> None:
        recipe = load_reference(weights.recipe)
        source = fetch.ensure(weights.source, progress)
        _log.info("converting model", model=weights.name)
        recipe(source, into)

    return fetch.derived(weights.name, convert)


async def _start_all(engines: list[Engine]) -> None:
    # Waits for all even when one fails: closing an engine whose weights another thread still loads is a race.
    results = await asyncio.gather(*(engine.start() for engine in engines), return_exceptions=True)
    errors = [error for error in results if isinstance(error, BaseException)]
    for error in errors[1:]:
        _log.error("another engine could not be started", error=str(error))
    if errors:
        raise errors[0]
