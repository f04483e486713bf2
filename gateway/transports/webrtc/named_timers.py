"""The timers of one peer: one of each name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class NamedTimers:
    """``clock`` is what the times of :meth:`at` are of, in seconds; it need not be the loop's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._set: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False

    def __contains__(self, name: str) -> bool:
        """Whether the timer of this name is set."""
        return name in self._set

    def at(self, name: str, when_s: float, act: Callable[[], None]) -> None:
        """Set the timer of this name, in place of the one there was."""
        if self._stopped:
            return

        def fire() -> None:
            del self._set[name]
            act()

        old = self._set.pop(name, None)
        if old is not None:
            old.cancel()
        self._set[name] = self._loop.call_later(max(0.0, when_s - self._clock()), fire)

    def stop(self) -> None:
        """None fires any more, and none is set again."""
        self._stopped = True
        for timer in self._set.values():
            timer.cancel()
        self._set.clear()
