"""An event loop whose clock jumps to the next timer when nothing is left to do: hours of calls in milliseconds.

Everything that runs on it is deterministic: the same order, the same virtual milliseconds, every time. Sockets do not
belong on it, nor threads of one's own; ``asyncio.to_thread`` runs its function there and then, in no virtual time.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

START_S = 1_000.0
"""Where a virtual clock begins: not at zero, which hides confusions with durations."""


class NothingScheduledError(RuntimeError):
    """Every task waits for something that no timer and no other task will bring."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting, it moves the loop's clock on."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S
        self.next_timer_s: Callable[[], float] = lambda: START_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise NothingScheduledError("every task waits, and no timer is set: this would hang")
        if timeout > 0:
            self.now_s = max(self.now_s, self.next_timer_s())  # not by adding the timeout, which rounds
        return ready


class _OrderedTimer(asyncio.TimerHandle):
    """Of timers due at the same moment the one that was set first fires first: a heap alone does not say, and in
    virtual time such moments are common."""

    _counter = itertools.count()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._number = next(self._counter)

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _OrderedTimer)
        return (self.when(), self._number) < (other.when(), other._number)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.next_timer_s = lambda: self._scheduled[0].when()  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._jumping.now_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = _OrderedTimer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (whatever it raises is the awaiter's)
            future.set_exception(error)
        return future


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time. Fails if a task is left behind."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(main)
        left = asyncio.all_tasks(runner.get_loop())
        assert not left, f"tasks left behind: {left}"
        return result


def virtual(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorates an ``async def`` test so that it runs in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return run
