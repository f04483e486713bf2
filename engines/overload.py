"""When engines are too far behind, seen from where their answers arrive: it holds for any backend."""

from __future__ import annotations

from collections import deque
from statistics import median

from engines.api import Overload

WINDOW_S = 10.0
LEAST_ANSWERS = 6
"""Fewer within the window say nothing: one slow answer is no overload, nor are the first three of a first turn."""
MAX_ANSWERS = 256

LATE_S = {Overload.NO_SPECULATION: 0.8, Overload.SHORT_CLAUSES: 1.2, Overload.REFUSE_CALLS: 2.0}
"""The median time to an urgent answer (a transcript, a first token, a first piece of audio: a caller hears silence
through all three) from which each level holds."""
FALL = 0.6


class Lateness:
    """How long urgent jobs take to their first answer, over the last :data:`WINDOW_S`. Times are of one clock.

    A level ends at :data:`FALL` of the time from which it holds, so that it does not come and go with every answer."""

    def __init__(self) -> None:
        self._waiting: dict[object, float] = {}
        self._answers: deque[tuple[float, float]] = deque(maxlen=MAX_ANSWERS)
        self._level = Overload.NONE

    def asked(self, job: object, now: float) -> None:
        """An urgent job begins."""
        self._waiting[job] = now

    def answered(self, job: object, now: float) -> None:
        """Its first answer is there. A job that was never asked for, or has answered, is ignored."""
        asked_at = self._waiting.pop(job, None)
        if asked_at is not None:
            self._answers.append((now, now - asked_at))

    def dropped(self, job: object) -> None:
        """It ended otherwise: cancelled, failed."""
        self._waiting.pop(job, None)

    def level(self, now: float) -> Overload:
        """Of the answers in the window, and of those that are late already and still not there."""
        while self._answers and self._answers[0][0] < now - WINDOW_S:
            self._answers.popleft()
        took = [took_s for _, took_s in self._answers]
        took += [now - asked_at for asked_at in self._waiting.values() if now - asked_at >= min(LATE_S.values())]
        typical_s = median(took) if len(took) >= LEAST_ANSWERS else 0.0
        reached = max((level for level, late_s in LATE_S.items() if typical_s >= late_s), default=Overload.NONE)
        kept = max((level for level, late_s in LATE_S.items() if typical_s >= FALL * late_s), default=Overload.NONE)
        self._level = max(reached, min(kept, self._level))
        return self._level
