"""Tells from the silence of the wire that a peer is gone: killed browsers and dead networks say nothing."""

from __future__ import annotations

import enum


class Verdict(enum.Enum):
    WELL = "well"
    SUSPECT = "suspect"
    LOST = "lost"


class Watchdog:
    """Pure: the clock is the caller's. ``suspect_after_s`` < ``lost_after_s``."""

    def __init__(self, suspect_after_s: float, lost_after_s: float, now_s: float) -> None:
        self._suspect_after_s = suspect_after_s
        self._lost_after_s = lost_after_s
        self._heard_s = now_s

    def heard(self, now_s: float) -> None:
        self._heard_s = max(self._heard_s, now_s)

    def verdict(self, now_s: float) -> Verdict:
        silent_s = now_s - self._heard_s
        if silent_s >= self._lost_after_s:
            return Verdict.LOST
        return Verdict.SUSPECT if silent_s >= self._suspect_after_s else Verdict.WELL

    def next_s(self, now_s: float) -> float:
        """When the verdict will change, if nothing is heard until then."""
        for after_s in (self._suspect_after_s, self._lost_after_s):
            if now_s < self._heard_s + after_s:
                return self._heard_s + after_s
        return now_s
