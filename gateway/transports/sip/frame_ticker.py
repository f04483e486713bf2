"""One clock for the frames of all calls on a loop: 20 ms each, a quarter of the calls every 5 ms.

A timer a call would wake the loop for each frame of each call. Slots lie on one absolute grid; what a stalled loop
missed is skipped, never sent in a burst (50 frames at once help no jitter buffer, and hold up everybody else's).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary

import structlog

_log = structlog.get_logger(__name__)

FRAME_S = 0.02
SLOTS = 4

MAX_MISSED = 50
"""Frames told of one stall: a second."""

Left = Callable[[float, int], None]
"""Takes how late the frames of a slot leave, and how many they are."""

Tick = Callable[[int, float], None]
"""Takes the number of the frame on the grid and the time of the loop."""


def unmeasured(late_s: float, frames: int) -> None:
    """Nobody asks."""


class FrameTicker:
    """Ticks while somebody listens. Keeps no loop: it is always the running one."""

    def __init__(self, now_s: float) -> None:
        self._slots = [_Slot(self, now_s + at * FRAME_S / SLOTS) for at in range(SLOTS)]
        self.left: Left = unmeasured
        """Told of each slot that had its turn, or lost it."""

    def join(self, tick: Tick) -> Callable[[], None]:
        """``tick`` is called every 20 ms, on time or not at all, until the returned function is. It must not raise:
        then it is called no more."""
        slot = min(self._slots, key=lambda slot: len(slot.ticks))
        return slot.join(tick)


class _Slot:
    def __init__(self, ticker: FrameTicker, began_s: float) -> None:
        self._ticker = ticker
        self._began_s = began_s
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self.ticks: dict[int, Tick] = {}
        self._next_key = 0

    def join(self, tick: Tick) -> Callable[[], None]:
        key = self._next_key
        self._next_key += 1
        self.ticks[key] = tick
        if self._timer is None:
            self._wait()
        return lambda: self._leave(key)

    def _leave(self, key: int) -> None:
        self.ticks.pop(key, None)
        if not self.ticks and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        """For the next frame whose time is not over."""
        loop = asyncio.get_running_loop()
        due = int((loop.time() - self._began_s) / FRAME_S + 1e-6) + 1
        self._number = max(due, self._number + 1)
        self._timer = loop.call_at(self._began_s + self._number * FRAME_S, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now_s, number = asyncio.get_running_loop().time(), self._number
        late = int((now_s - self._began_s) / FRAME_S + 1e-6)
        for missed in range(max(number, late - MAX_MISSED), max(number, late) + 1):
            self._ticker.left(max(0.0, now_s - self._began_s - missed * FRAME_S), len(self.ticks))
        if late > number:
            number = self._number = late
        for key, tick in list(self.ticks.items()):
            try:
                tick(number, now_s)
            except Exception:  # noqa: BLE001 (one call's defect is not the others')
                self.ticks.pop(key, None)
                _log.exception("a call's media broke down")
        if self.ticks and self._timer is None:
            self._wait()


_TICKERS: WeakKeyDictionary[asyncio.AbstractEventLoop, FrameTicker] = WeakKeyDictionary()


def ticker_of(loop: asyncio.AbstractEventLoop) -> FrameTicker:
    """The one of this loop: its calls share it."""
    ticker = _TICKERS.get(loop)
    if ticker is None:
        ticker = _TICKERS[loop] = FrameTicker(loop.time())
    return ticker
