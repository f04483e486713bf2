"""The one thread on which MLX is imported, loaded, run and closed.

An MLX stream belongs to the thread that made it, so a lazy array of one thread raises in another, and a lock that
callers must remember gets forgotten. Here work reaches MLX only through :meth:`MlxExecutor.post` and
:meth:`MlxExecutor.run`; between two quanta the thread drains its inbox, so a start or a cancel waits for at most one
quantum. Only plain Python values leave the thread.

Thread-side code (a :class:`Workload`) calls :meth:`MlxExecutor.require_thread` before it touches MLX.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import structlog

from engines.api import EngineError
from engines.executor import device
from engines.executor.cache import ClearCacheGuard
from engines.executor.policy import Agenda, Choice, Key, Kind
from engines.executor.pulse import Pulse
from engines.executor.workload import (
    EVICTED,
    ExecutorUnavailableError,
    Snapshot,
    Workload,
    WrongThreadError,
)
from streaming.jobs import Priority

__all__ = ["ExecutorUnavailableError", "MlxExecutor", "Workload", "WrongThreadError"]

T = TypeVar("T")
Deliver = Callable[[], None]

_OWNER = "executor"
_RUN = Kind(_OWNER, "run")
_IDLE_BEAT_S = 0.5
_SAMPLE_EVERY_S = 0.25

_log = structlog.get_logger(__name__)
_one_at_a_time = threading.Lock()


class MlxExecutor:
    """Owns the thread. The public methods are for the event loop's thread, unless they say otherwise."""

    def __init__(
        self,
        *,
        cache_limit_bytes: int | None = None,
        inbox_limit: int = 256,
        stalled_after_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache_limit_bytes = cache_limit_bytes
        self._inbox_limit = inbox_limit
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._closing = False
        self._ended: tuple[str, str] | None = None
        self._started: asyncio.Future[None] | None = None
        self._runs: dict[int, asyncio.Future[Any]] = {}
        self._run_ids = 0
        self._death_listeners: list[Callable[[str, str], None]] = []
        self._deliveries_failed = 0
        # Thread side from here on.
        self.agenda = Agenda()
        self._pulse = Pulse(clock(), stalled_after_s)
        self._outbox: list[Deliver] = []
        self._workloads: dict[str, Workload] = {}
        self._functions: dict[Key, Callable[[], None]] = {}
        self._guard: ClearCacheGuard | None = None
        self._snapshot = Snapshot()
        self._sampled = clock()

    # --- the event loop's side --------------------------------------------------------------------------------

    @property
    def last_beat(self) -> float:
        """When the thread last stood between two quanta, on the executor's clock."""
        return self._pulse.last_beat

    @property
    def healthy(self) -> bool:
        """The thread lives and its quantum in flight is not stuck."""
        return not self.trouble

    @property
    def trouble(self) -> str:
        """Why it is not healthy, for a person; empty when it is. A quantum at four times its learned bound is a
        reason, and ceases to be one when it ends."""
        if self._ended is not None:
            return f"the executor died: {self._ended[1]}"
        if self._closing or self._thread is None or not self._thread.is_alive():
            return "the executor is not running"
        return self._pulse.trouble(self._clock())

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    @property
    def clear_cache_requests(self) -> int:
        """How often ``mx.clear_cache()`` was asked for; see :class:`ClearCacheGuard`."""
        return self._guard.requests if self._guard is not None else 0

    @property
    def clear_cache_served(self) -> int:
        return self._guard.served if self._guard is not None else 0

    async def start(self) -> None:
        """Start the thread and import MLX on it. Again: wait for the first start. Raises :class:`EngineError`
        (``mlx_unavailable``, ``executor_exists``)."""
        if self._closing:
            raise EngineError("executor_closed", "a closed executor can't be started again")
        if self._started is None:
            if not _one_at_a_time.acquire(blocking=False):
                raise EngineError("executor_exists", "MLX runs on one thread, and another executor owns it")
            self._loop = asyncio.get_running_loop()
            self._started = self._loop.create_future()
            # Not a daemon: MLX aborts the process when its thread is killed with streams alive.
            self._thread = threading.Thread(target=self._main, name="mlx-executor", daemon=False)
            self._thread.start()
        await asyncio.shield(self._started)

    async def close(self) -> None:
        """Finish the quantum in flight, close every workload, release MLX's streams and join the thread. Safe to call
        twice and after a failed start. Jobs alive end without a result, as after a cancel."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._fail_runs("executor_closed", "the executor was closed")

    def post(self, act: Callable[[], None], *, control: bool = False) -> None:
        """Have ``act`` called on the thread, soon and in order; it must be quick and is not a quantum. ``control`` is
        for what takes work away (a cancel): never refused for a full inbox, as it is bounded by the work posted.
        Raises :class:`ExecutorUnavailableError`."""
        with self._wake:
            if self._ended is not None:
                raise ExecutorUnavailableError(*self._ended)
            if self._closing or self._thread is None:
                raise ExecutorUnavailableError("executor_closed", "the executor is not running")
            if not control and len(self._inbox) >= self._inbox_limit:
                raise ExecutorUnavailableError("overloaded", "the executor's inbox is full")
            self._inbox.append(act)
            self._wake.notify()

    async def run(
        self, function: Callable[[], T], *, priority: Priority = Priority.FIRST_AUDIO, control: bool = False
    ) -> T:
        """Run ``function`` whole as one quantum (load, warm) and return its result, a plain value. Its exception is
        raised here. ``control`` as for :meth:`post`. Raises :class:`ExecutorUnavailableError`."""
        run_id = self._run_ids
        self._run_ids += 1
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._runs[run_id] = future
        try:
            self.post(partial(self._accept_run, run_id, function, priority), control=control)
            return await future
        finally:
            self._runs.pop(run_id, None)

    def soon(self, deliver: Deliver) -> None:
        """Call ``deliver`` from the loop, after the callback now running."""
        asyncio.get_running_loop().call_soon(deliver)

    def on_death(self, listener: Callable[[str, str], None]) -> None:
        """Call ``listener(code, message)`` on the loop when the thread dies: its jobs will get no other answer."""
        self._death_listeners.append(listener)

    def off_death(self, listener: Callable[[str, str], None]) -> None:
        with contextlib.suppress(ValueError):  # it never listened
            self._death_listeners.remove(listener)

    # --- for code on the thread -------------------------------------------------------------------------------

    def require_thread(self) -> None:
        """Raise :class:`WrongThreadError` unless called on the executor's thread."""
        if threading.current_thread() is not self._thread:
            raise WrongThreadError(f"MLX belongs to the executor's thread, not to {threading.current_thread().name}")

    def now(self) -> float:
        """The executor's clock: that of the loop whose deadlines it gets."""
        return self._clock()

    def attach(self, workload: Workload) -> None:
        """Serve the jobs of this owner from now on."""
        self.require_thread()
        self._workloads[workload.name] = workload

    def detach(self, workload: Workload) -> None:
        """Close the workload and serve it no more. What its weights leave in MLX's buffer cache goes back to the
        machine, which may have unloaded it for want of memory: at once, or when no stream is open."""
        self.require_thread()
        if self._workloads.pop(workload.name, None) is not None:
            workload.close()
            if self._guard is not None:
                self._guard.demand()
                self._guard.serve(self._open_streams())

    def emit(self, deliver: Deliver) -> None:
        """Call ``deliver`` on the loop after this quantum, together with everything else of the quantum."""
        self.require_thread()
        self._outbox.append(deliver)

    # --- the thread -------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._prepare()
            self.emit(partial(self._settle_future, self._started, None, None))
            self._flush()
            self._serve()
        except BaseException as error:  # noqa: BLE001 (whatever ends the thread ends its jobs, never the process)
            message = f"{type(error).__name__}: {error}"
            _log.error("mlx executor died", error=message, error_type=type(error).__name__)
            with self._wake:
                self._ended = ("executor_dead", message)
            # The future is settled first, so that a failed start raises its own error.
            self.emit(partial(self._settle_future, self._started, None, EngineError("mlx_unavailable", message)))
            self.emit(partial(self._announce_death, "executor_dead", message))
        finally:
            self._shut_down()
            _one_at_a_time.release()
            self._flush()

    def _prepare(self) -> None:
        mx = device.prepare(self._cache_limit_bytes)
        self._guard = ClearCacheGuard(mx, device.drain_streams, self._clock)
        self._guard.install()

    def _serve(self) -> None:
        guard = self._guard
        assert guard is not None
        choice: Choice | None = None
        while True:
            self._pulse.beat(self._clock())
            acts = self._take_inbox(wait=choice is None)
            if acts is None:
                return
            self._pulse.awake(self._clock())
            for act in acts:
                with device.logged("an inbox item failed"):
                    act()
            self._tell_evicted()  # before they settle: who lost a place leaves a batch like who was cancelled
            for workload in self._workloads.values():
                workload.settle()
            guard.serve(self._open_streams())
            self._sample()
            choice = self.agenda.choose(self._clock(), hold_streams=guard.holding)
            if choice is not None:
                self._timed(choice)
            self._flush()

    def _take_inbox(self, *, wait: bool) -> list[Callable[[], None]] | None:
        """What came in, or None when the thread has to end. Waits at most a beat, and only when there is no work."""
        with self._wake:
            if wait and not self._inbox and not self._closing:
                self._wake.wait(_IDLE_BEAT_S)
            # A main thread that returned without close() waits for us: end, or the process would never exit.
            if self._closing or not threading.main_thread().is_alive():
                return None
            acts = list(self._inbox)
            self._inbox.clear()
            return acts

    def _timed(self, choice: Choice) -> None:
        self._pulse.begin(choice.kind.name, self.agenda.costs.bound(choice.kind), self._clock())
        try:
            self._quantum(choice)
        finally:
            seconds = self._pulse.end(self._clock())
        if choice.owner != _OWNER:  # a function's time says nothing about the next one's
            self.agenda.observe(choice, seconds)

    def _quantum(self, choice: Choice) -> None:
        if choice.owner == _OWNER:
            self.agenda.drop(choice.keys[0])
            self._functions.pop(choice.keys[0])()
            return
        workload = self._workloads[choice.owner]
        try:
            workload.quantum(choice)
        except Exception as error:  # noqa: BLE001 (a model's defect must not end the thread)
            _log.exception("a quantum failed", owner=choice.owner, step=choice.kind.name, jobs=len(choice.keys))
            workload.abandon(choice, f"{type(error).__name__}: {error}")

    def _tell_evicted(self) -> None:
        for key, kind in self.agenda.take_evicted():
            if kind.owner == _OWNER:
                del self._functions[key]
                refused = ExecutorUnavailableError(EVICTED, "more urgent work came")
                self.emit(partial(self._settle_run, key.epoch, None, refused))
            elif (workload := self._workloads.get(kind.owner)) is not None:
                workload.abandon(Choice(kind, (key,)), EVICTED)

    def _open_streams(self) -> int:
        return sum(workload.open_streams for workload in self._workloads.values())

    def _sample(self) -> None:
        now = self._clock()
        if now - self._sampled < _SAMPLE_EVERY_S:
            return
        guard = self._guard
        assert guard is not None
        self._sampled = now
        self._snapshot = Snapshot.of(
            self.agenda, self._workloads.values(), self._pulse, guard, self._deliveries_failed, now
        )

    def _accept_run(self, run_id: int, function: Callable[[], Any], priority: Priority) -> None:
        key = Key(_OWNER, "", run_id)
        self._functions[key] = partial(self._perform_run, run_id, function)
        now = self._clock()
        self.agenda.add(key, _RUN, priority, now, now)

    def _perform_run(self, run_id: int, function: Callable[[], Any]) -> None:
        result, failure = None, None
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 (it is the caller's, who awaits it)
            # The traceback's frames would carry arrays off the thread.
            failure = error.with_traceback(None)
            failure.__context__ = failure.__cause__ = None
        self.emit(partial(self._settle_run, run_id, result, failure))

    def _shut_down(self) -> None:
        for workload in self._workloads.values():
            with device.logged("a workload failed to close"):
                workload.close()
        self._workloads.clear()
        self._functions.clear()
        self.agenda = Agenda()
        device.release(self._guard)

    def _flush(self) -> None:
        """One wake-up of the loop for everything a quantum brought."""
        if not self._outbox:
            return
        batch, self._outbox = self._outbox, []
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver_all, batch)
        except RuntimeError:  # the loop is closed: nobody is left to answer
            with self._wake:
                self._closing = True

    # --- back on the loop -------------------------------------------------------------------------------------

    def _deliver_all(self, batch: list[Deliver]) -> None:
        for deliver in batch:
            try:
                deliver()
            except Exception:  # noqa: BLE001 (one call's exception never reaches another's)
                self._deliveries_failed += 1
                _log.exception("a delivery failed")

    def _announce_death(self, code: str, message: str) -> None:
        self._fail_runs(code, message)
        for listener in list(self._death_listeners):
            listener(code, message)

    def _settle_run(self, run_id: int, result: Any, error: Exception | None) -> None:
        self._settle_future(self._runs.get(run_id), result, error)

    def _fail_runs(self, code: str, message: str) -> None:
        for future in list(self._runs.values()):
            self._settle_future(future, None, ExecutorUnavailableError(code, message))

    @staticmethod
    def _settle_future(future: asyncio.Future[Any] | None, result: Any, error: Exception | None) -> None:
        if future is None or future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
