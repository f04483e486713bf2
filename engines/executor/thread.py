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
import ctypes
import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from engines.api import EngineError
from engines.executor.cache import ClearCacheGuard
from engines.executor.policy import Agenda, Choice, Key, Kind
from streaming.jobs import Priority

T = TypeVar("T")
Deliver = Callable[[], None]

_OWNER = "executor"
_RUN = Kind(_OWNER, "run")
_IDLE_BEAT_S = 0.5
_RANDOM_SEED = 0

_log = structlog.get_logger(__name__)
_one_at_a_time = threading.Lock()


class ExecutorUnavailableError(Exception):
    """The executor takes no work. ``code``: ``executor_dead``, ``executor_closed`` or ``overloaded``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class WrongThreadError(RuntimeError):
    """Code that touches MLX was called on another thread: a defect."""


class Workload(Protocol):
    """The thread-side half of an engine. Everything is called on the executor's thread."""

    @property
    def name(self) -> str:
        """The ``owner`` of its jobs on the agenda."""

    @property
    def open_streams(self) -> int:
        """How many decoders hold state between evals now."""

    def settle(self) -> None:
        """The inbox was drained: act on cancels together."""

    def quantum(self, choice: Choice) -> None:
        """Do one bounded burst of work."""

    def abandon(self, choice: Choice, message: str) -> None:
        """:meth:`quantum` raised: fail the jobs it served and be ready for others."""

    def close(self) -> None:
        """Drop every row, cache and weight."""


class MlxExecutor:
    """Owns the thread. The public methods are for the event loop's thread, unless they say otherwise."""

    def __init__(
        self,
        *,
        cache_limit_bytes: int = 512 * 2**20,
        inbox_limit: int = 256,
        stalled_after_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache_limit_bytes = cache_limit_bytes
        self._inbox_limit = inbox_limit
        self._stalled_after_s = stalled_after_s
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
        self._last_beat = clock()
        # Thread side from here on.
        self.agenda = Agenda()
        self._outbox: list[Deliver] = []
        self._workloads: dict[str, Workload] = {}
        self._functions: dict[Key, Callable[[], None]] = {}
        self._guard: ClearCacheGuard | None = None

    # --- the event loop's side --------------------------------------------------------------------------------

    @property
    def last_beat(self) -> float:
        """When the thread last stood between two quanta, on the executor's clock."""
        return self._last_beat

    @property
    def healthy(self) -> bool:
        """The thread lives and its quantum in flight is not stuck."""
        alive = self._thread is not None and self._thread.is_alive() and self._ended is None
        return alive and not self._closing and self._clock() - self._last_beat < self._stalled_after_s

    @property
    def clear_cache_requests(self) -> int:
        """How often a library asked for ``mx.clear_cache()``; see :class:`ClearCacheGuard`."""
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

    async def run(self, function: Callable[[], T], *, priority: Priority = Priority.FIRST_AUDIO) -> T:
        """Run ``function`` whole as one quantum (load, warm) and return its result, a plain value. Its exception is
        raised here. Raises :class:`ExecutorUnavailableError`."""
        run_id = self._run_ids
        self._run_ids += 1
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._runs[run_id] = future
        try:
            self.post(partial(self._accept_run, run_id, function, priority))
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
        with contextlib.suppress(ValueError):
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
        """Close the workload and serve it no more."""
        self.require_thread()
        if self._workloads.pop(workload.name, None) is not None:
            workload.close()

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
        blas = _preload_openblas()
        import mlx.core as mx

        metal = mx.metal.is_available()
        mx.set_cache_limit(self._cache_limit_bytes)
        working_set = mx.device_info().get("max_recommended_working_set_size") if metal else None
        if working_set is not None:
            mx.set_wired_limit(int(working_set))
        mx.random.seed(_RANDOM_SEED)  # the state left by an earlier thread would be a lazy array of that thread
        if mx.default_device() == mx.cpu and blas is None and sys.platform == "linux":
            _log.warning("openblas not found: matrix products on the CPU are 10 to 30 times slower without it")
        self._guard = ClearCacheGuard(mx, self._drain_streams, self._clock)
        self._guard.install()
        _log.info("mlx executor started", device=str(mx.default_device()), blas=blas)

    def _serve(self) -> None:
        guard = self._guard
        assert guard is not None
        choice: Choice | None = None
        while True:
            self._last_beat = self._clock()
            acts = self._take_inbox(wait=choice is None)
            if acts is None:
                return
            for act in acts:
                with _logged("an inbox item failed"):
                    act()
            for workload in self._workloads.values():
                workload.settle()
            guard.serve(sum(workload.open_streams for workload in self._workloads.values()))
            choice = self.agenda.choose(self._clock(), hold_streams=guard.holding)
            if choice is not None:
                self._quantum(choice)
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
        self.emit(lambda: self._settle_future(self._runs.get(run_id), result, failure))

    def _drain_streams(self) -> None:
        import mlx.core as mx

        generate = sys.modules.get("mlx_lm.generate")
        if generate is not None:
            mx.synchronize(generate.generation_stream)  # bare synchronize() drains only the default stream
        mx.synchronize()

    def _shut_down(self) -> None:
        """The last job on the thread. In this order, or the process aborts or hangs at exit."""
        for workload in self._workloads.values():
            with _logged("a workload failed to close"):
                workload.close()
        self._workloads.clear()
        self._functions.clear()
        self.agenda = Agenda()
        mx = sys.modules.get("mlx.core")
        if mx is None:
            return
        with _logged("mlx did not shut down cleanly"):
            self._drain_streams()
            gc.collect()
            mx.eval(mx.random.state)
            mx.synchronize()
            if self._guard is not None:
                self._guard.uninstall()
            mx.clear_cache()
        with _logged("mlx streams were not cleared"):
            mx.clear_streams()

    def _flush(self) -> None:
        """One wake-up of the loop for everything a quantum brought."""
        if not self._outbox:
            return
        batch, self._outbox = self._outbox, []
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_deliver_all, batch)
        except RuntimeError:  # the loop is closed: nobody is left to answer
            with self._wake:
                self._closing = True

    # --- back on the loop -------------------------------------------------------------------------------------

    def _announce_death(self, code: str, message: str) -> None:
        self._fail_runs(code, message)
        for listener in list(self._death_listeners):
            listener(code, message)

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


def _deliver_all(batch: list[Deliver]) -> None:
    for deliver in batch:
        try:
            deliver()
        except Exception:  # noqa: BLE001 (one call's exception never reaches another's)
            _log.exception("a delivery failed")


@contextlib.contextmanager
def _logged(event: str) -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 (the steps after it must still happen)
        _log.exception(event)


def _preload_openblas() -> str | None:
    """Put OpenBLAS before the reference BLAS that the Linux wheel of MLX bundles; works only before MLX is loaded.

    One thread: its spinning workers fight every other library's for the cores.
    """
    if sys.platform != "linux":
        return None
    if "mlx.core" in sys.modules:
        return _preloaded[0] if _preloaded else None
    name = "libopenblas.so.0"
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when the library is loaded
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return None
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before
    _preloaded.append(name)
    return name


_preloaded: list[str] = []
