"""One clock for all callers of a process: each is called every 20 ms, spread over the slots of that frame.

Deadlines are absolute, so nothing drifts. After a stall the ticks that were missed are skipped and counted, never made
up for in a burst: a loop that catches up sends callers' sound in lumps and starves what comes in. How late every tick
was is kept, the skipped ones included (left out, a stall of a second would count as one late tick).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

FRAME_S = 0.02


def running_clock() -> Callable[[], float]:
    """The clock of the running loop. uvloop's own counts whole ms."""
    loop = asyncio.get_running_loop()
    return time.monotonic if type(loop).__module__.startswith("uvloop") else loop.time


_STEPS_A_MS = 10
_STEPS = 1_000  # up to 100 ms; what is later is counted with the last


class Member(Protocol):
    """Who is called: every frame, in the order of joining within a slot."""

    def tick(self, deadline_s: float, now_s: float) -> None:
        """``deadline_s`` is when this should have been, ``now_s`` when it is. Must not raise and not wait. Frames that
        were skipped lie between this deadline and the last."""


class Lateness:
    """How late ticks were, in steps of 0.1 ms; bounded whatever the run's length."""

    def __init__(self) -> None:
        self.ticks = 0
        """All that should have been, the skipped ones too."""
        self.skipped = 0
        self.worst_ms = 0.0
        self._recent_ms = 0.0
        self._counts = [0] * (_STEPS + 1)

    def note(self, late_s: float) -> None:
        step = int(late_s * 1000 * _STEPS_A_MS) if late_s > 0 else 0
        self._counts[step if step < _STEPS else _STEPS] += 1
        self.ticks += 1
        late_ms = late_s * 1000
        if late_ms > self._recent_ms:
            self._recent_ms = late_ms
            self.worst_ms = max(self.worst_ms, late_ms)

    def note_skipped(self, late_s: float) -> None:
        """A tick that was never made, though it was due so long ago."""
        self.skipped += 1
        self.note(late_s)

    @property
    def p99_ms(self) -> float | None:
        """Nearest rank, rounded up to 0.1 ms; :attr:`worst_ms` beyond 100 ms; None before the first tick."""
        if self.ticks == 0:
            return None
        rank = math.ceil(self.ticks * 0.99)
        passed = 0
        for step, count in enumerate(self._counts[:_STEPS]):
            passed += count
            if passed >= rank:
                return (step + 1) / _STEPS_A_MS
        return self.worst_ms

    def take_worst_ms(self) -> float:
        """The worst since this was last asked."""
        worst_ms, self._recent_ms = self._recent_ms, 0.0
        return worst_ms


class Ticker:
    """Calls every member once in :data:`FRAME_S`, in one of ``slots`` equal parts of it. ``clock`` is
    :func:`running_clock`."""

    def __init__(self, clock: Callable[[], float], *, slots: int = 5) -> None:
        self.lateness = Lateness()
        self._clock = clock
        self._members: list[dict[Member, None]] = [{} for _ in range(slots)]
        self._joined = asyncio.Event()

    @property
    def size(self) -> int:
        return sum(map(len, self._members))

    def join(self, member: Member) -> int:
        """From the next turn of the emptiest slot on, whose number is returned. Its first tick comes within a frame."""
        slot = min(range(len(self._members)), key=lambda number: len(self._members[number]))
        self._members[slot][member] = None
        self._joined.set()
        return slot

    def leave(self, member: Member) -> None:
        """No more ticks from here on. Leaving twice is no error."""
        for members in self._members:
            members.pop(member, None)

    async def run(self) -> None:
        """Tick until cancelled. Sleeps while it has no members."""
        slots = len(self._members)
        slot_s = FRAME_S / slots
        origin_s = self._clock()
        number = 0  # of the slot, since the origin
        ticked = [-1] * slots
        while True:
            if not self.size:
                self._joined.clear()
                await self._joined.wait()
                number = max(number, math.ceil((self._clock() - origin_s) / slot_s))
            slot = number % slots
            members = self._members[slot]
            if not members or ticked[slot] >= number:
                number += 1
                continue
            deadline_s = origin_s + number * slot_s
            await asyncio.sleep(deadline_s - self._clock())  # yields even when it is late: what came in goes first
            missed = int(max(0.0, self._clock() - deadline_s) / FRAME_S)
            self._skip(len(members), deadline_s, missed)
            ticked[slot] = number + missed * slots
            self._tick(members, deadline_s + missed * FRAME_S)
            number += 1

    def _skip(self, members: int, deadline_s: float, frames: int) -> None:
        now_s = self._clock()
        for frame in range(frames):
            for _ in range(members):
                self.lateness.note_skipped(now_s - deadline_s - frame * FRAME_S)

    def _tick(self, members: dict[Member, None], deadline_s: float) -> None:
        for member in tuple(members):
            if member not in members:  # another's tick made it leave
                continue
            now_s = self._clock()
            self.lateness.note(now_s - deadline_s)
            member.tick(deadline_s, now_s)


@contextlib.asynccontextmanager
async def ticking(slots: int = 5) -> AsyncIterator[Ticker]:
    """A ticker that runs on this loop while the block does."""
    ticker = Ticker(running_clock(), slots=slots)
    running = asyncio.create_task(ticker.run())
    try:
        yield ticker
    finally:
        running.cancel()
        await asyncio.wait((running,))
        if not running.cancelled():
            running.result()
