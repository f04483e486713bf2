"""The overload ladder: how far behind a lane is, as a level with hysteresis. Pure."""

from __future__ import annotations

import math

from engines.api import Overload

SMOOTHED_OVER_S = 2.0
"""Time constant of the average, so that one long quantum (a compile) is no overload but a standing backlog is."""
RISE_S: dict[Overload, float] = {
    Overload.NO_SPECULATION: 0.25,
    Overload.SHORT_CLAUSES: 0.5,
    Overload.REFUSE_CALLS: 1.0,
}
"""The average lateness at which each level begins."""
FALL = 0.5
"""A level ends at this share of the lateness at which it begins."""


class Ladder:
    """Follows the projected lateness of the job that will be latest."""

    def __init__(self) -> None:
        self._level = Overload.NONE
        self._smoothed_s = 0.0
        self._late_s = 0.0
        self._as_of = -math.inf

    def note(self, late_s: float, now: float) -> None:
        """From ``now`` on, and until told otherwise, the latest job will be so late (0 if none will)."""
        self._advance(now)
        self._late_s = max(0.0, late_s)

    def level(self, now: float) -> Overload:
        self._advance(now)
        while self._level < Overload.REFUSE_CALLS and self._smoothed_s >= RISE_S[Overload(self._level + 1)]:
            self._level = Overload(self._level + 1)
        while self._level > Overload.NONE and self._smoothed_s < FALL * RISE_S[self._level]:
            self._level = Overload(self._level - 1)
        return self._level

    def _advance(self, now: float) -> None:
        passed_s = now - self._as_of
        if passed_s <= 0.0:
            return
        self._as_of = now
        if passed_s < math.inf:
            self._smoothed_s += (1.0 - math.exp(-passed_s / SMOOTHED_OVER_S)) * (self._late_s - self._smoothed_s)
