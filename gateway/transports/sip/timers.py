"""Timers of a sans-IO core: the shell asks when the next is due, and lets those run that are."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timer:
    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Twice is fine, and after it ran."""
        self.action = None


class Timers:
    """``now_s``: the clock, monotonic, in seconds. ``on_earlier`` is told when one is due before all the others."""

    def __init__(self, now_s: Callable[[], float], on_earlier: Callable[[float], None] = lambda _: None) -> None:
        self._now_s = now_s
        self._on_earlier = on_earlier
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._compact_at = 64

    def __len__(self) -> int:
        """Of those that are still to run."""
        return sum(1 for _, _, timer in self._heap if timer.action is not None)

    def after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        timer = Timer(action)
        heapq.heappush(self._heap, (self._now_s() + delay_s, next(self._order), timer))
        if len(self._heap) > self._compact_at:
            # Most are cancelled long before they would run: those must not pile up.
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._compact_at = max(64, 2 * len(self._heap))
        if self._heap[0][2] is timer:
            self._on_earlier(self._heap[0][0])
        return timer

    def next_at(self) -> float | None:
        """When to call :meth:`run`, by the clock."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run(self) -> None:
        """Run those that are due, in their order."""
        now = self._now_s()
        while (at := self.next_at()) is not None and at <= now:
            timer = heapq.heappop(self._heap)[2]
            action, timer.action = timer.action, None
            assert action is not None
            action()


class NamedTimers:
    """The timers of one transaction or call, each with a name of its own."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._running: dict[str, Timer] = {}

    def start(self, name: str, delay_s: float, action: Callable[[], None]) -> None:
        """In place of the one that has the name."""
        self.stop(name)

        def run() -> None:
            del self._running[name]
            action()

        self._running[name] = self._timers.after(delay_s, run)

    def stop(self, *names: str) -> None:
        """Those; without a name all. Such as do not run are fine."""
        for name in names or tuple(self._running):
            timer = self._running.pop(name, None)
            if timer is not None:
                timer.cancel()

    def runs(self, *names: str) -> bool:
        """Whether one of these does."""
        return any(name in self._running for name in names)
