"""How many calls a server holds: the climb to its knee. Pure; :mod:`loadtest.run` runs its levels.

A level is *held* when goodput is at least 99 % and fewer than 0.1 % of frames were late. Levels double until one is
not held, then the gap between the best held and the least not held is halved until it is within 10 %. A void level
(the load test itself was late) says nothing of the server and is tried again, twice; then the climb ends there, and
the report says that the generators were the limit.
"""

from __future__ import annotations

import enum

GOODPUT = 0.99
LATE_SHARE = 0.001
CLOSE_ENOUGH = 0.1
"""Of the best held level: the step that is no longer worth a run."""
VOID_TRIES = 2
"""More, after a void level."""
MAX_LEVELS = 24


class Held(enum.StrEnum):
    """What became of a level; the values are part of the JSON document."""

    HELD = "held"
    MISSED = "missed"
    VOID = "void"


class Climb:
    """Ask :meth:`next_level`, run it, :meth:`note` what came of it, until there is none."""

    def __init__(self, start: int = 1, most: int = 10_000) -> None:
        if not 1 <= start <= most:
            raise ValueError("a climb begins at one call or more, below its most")
        self.best: int | None = None
        """The largest level that was held."""
        self.void = False
        """The climb ended because the load test itself could do no more."""
        self._most = most
        self._least_missed: int | None = None
        self._next: int | None = start
        self._void_tries = 0
        self._levels = 0

    def next_level(self) -> int | None:
        """Calls of the level to run now; None: the knee is found."""
        return self._next

    def note(self, held: Held) -> None:
        """What came of the level that :meth:`next_level` gave."""
        level = self._next
        if level is None:
            raise ValueError("there is no level to tell of")
        self._levels += 1
        if held is Held.VOID:
            self._void_tries += 1
            if self._void_tries > VOID_TRIES:
                self.void, self._next = True, None
            return
        self._void_tries = 0
        if held is Held.HELD:
            self.best = level
        else:
            self._least_missed = level
        self._next = None if self._levels >= MAX_LEVELS else self._after()

    def _after(self) -> int | None:
        best, missed = self.best or 0, self._least_missed
        if missed is None:
            return min(best * 2, self._most) if best < self._most else None
        step = (missed - best) // 2
        if missed - best <= max(1.0, best * CLOSE_ENOUGH) or step < 1:
            return None
        return best + step


def held(*, goodput: float, late_share: float, void: bool) -> Held:
    """Judges a level by its report."""
    if void:
        return Held.VOID
    return Held.HELD if goodput >= GOODPUT and late_share < LATE_SHARE else Held.MISSED
