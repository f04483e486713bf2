"""How many calls a server holds: the climb to its knee. Pure; :mod:`loadtest.run` runs its levels.

A level is *held* when goodput is at least 99 %, no more frames were late than a run may have, and nobody heard another
caller's code word. Levels double until one is
not held, then the gap between the best held and the least not held is halved until it is within 10 %. A void level
(the load test itself was late) says nothing of the server and is tried again, twice; then the climb stays below it, and
says that the generators were the limit.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

GOODPUT = 0.99
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
            raise ValueError("a climb begins at one call or more, and not beyond its most")
        self.best: int | None = None
        """The largest level that was held."""
        self.broke: int | None = None
        """The smallest that was not."""
        self.void_at: int | None = None
        """The smallest at which the load test itself was late, however often it was tried."""
        self._most = most
        self._next: int | None = start
        self._tries = 0
        self._levels = 0

    @property
    def tries(self) -> int:
        """How often the level that comes next was void."""
        return self._tries

    def next_level(self) -> int | None:
        """Calls of the level to run now; None: the knee is found."""
        return self._next

    def note(self, held: Held) -> None:
        """What came of the level that :meth:`next_level` gave."""
        level = self._next
        if level is None:
            raise ValueError("there is no level to tell of")
        if held is Held.VOID and self._tries < VOID_TRIES:
            self._tries += 1
            return
        self._tries = 0
        self._levels += 1
        match held:
            case Held.HELD:
                self.best = level
            case Held.MISSED:
                self.broke = level
            case Held.VOID:
                self.void_at = level
        self._next = self._after() if self._levels < MAX_LEVELS else None

    def stopped_by(self, faults: Mapping[str, int] | None = None) -> str:
        """Why the climb ended, for a person. ``faults``: of the level that broke, calls by fault."""
        if self._next is not None:
            return "it was interrupted"
        if self.broke is None and self.void_at is None:
            return f"{self.best} calls were held, and more were not asked for"
        if self.void_at is not None and (self.broke is None or self.void_at < self.broke):
            return f"at {self.void_at} calls the load test itself was late: the server may hold more"
        told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in list((faults or {}).items())[:4])
        return f"{self.broke} calls were not held{f': {told}' if told else ''}"

    def _after(self) -> int | None:
        best = self.best or 0
        beyond = min((level for level in (self.broke, self.void_at) if level is not None), default=None)
        if beyond is None:
            return min(best * 2, self._most) if best < self._most else None
        if beyond - best <= max(1.0, best * CLOSE_ENOUGH):
            return None
        return best + (beyond - best) // 2


def held(*, goodput: float, late_share: float, late_limit: float | None, foreign: int, void: bool) -> Held:
    """Judges a level by its report. ``late_limit``: the share of late frames from which it is not held, if any;
    ``foreign``: code words of others that callers heard."""
    if void:
        return Held.VOID
    on_time = late_limit is None or late_share < late_limit
    return Held.HELD if goodput >= GOODPUT and on_time and not foreign else Held.MISSED
