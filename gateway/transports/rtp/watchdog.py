"""Tells from the silence of the wire that a peer is gone: killed browsers and dead networks say nothing."""

from __future__ import annotations

from collections.abc import Callable


class Watchdog:
    """The clock is the caller's. ``suspect_after_s`` < ``lost_after_s``; ``suspect`` is told when suspicion begins, and
    when it was wrong."""

    def __init__(
        self, suspect_after_s: float, lost_after_s: float, now_s: float, suspect: Callable[[bool], None]
    ) -> None:
        self._suspect_after_s = suspect_after_s
        self._lost_after_s = lost_after_s
        self._heard_s = now_s
        self._suspect = suspect
        self.suspicious = False

    def heard(self, now_s: float) -> None:
        self._heard_s = max(self._heard_s, now_s)
        if self.suspicious:
            self.suspicious = False
            self._suspect(False)

    def is_lost(self, now_s: float) -> bool:
        """Whether it has been silent for too long; if for long, that is suspect."""
        silent_s = now_s - self._heard_s
        if silent_s >= self._lost_after_s:
            return True
        if silent_s >= self._suspect_after_s and not self.suspicious:
            self.suspicious = True
            self._suspect(True)
        return False

    def next_s(self, now_s: float) -> float:
        """When :meth:`is_lost` will find something new, if nothing is heard until then."""
        for after_s in (self._suspect_after_s, self._lost_after_s):
            if now_s < self._heard_s + after_s:
                return self._heard_s + after_s
        return now_s
