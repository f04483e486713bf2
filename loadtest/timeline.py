"""A run second by second, from the outcomes of its calls."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from loadtest.outcome import CallOutcome, Fate
from loadtest.percentiles import nearest_rank
from loadtest.run_report import MAX_TIMELINE_POINTS, MAX_TURN_POINTS, TimelinePoint, TurnPoint

BOUNDS_MS = (100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 800.0, 1_000.0, 1_500.0, 2_000.0, 3_000.0, 5_000.0)
"""Of the heat map's rows: a value is in the first that it does not exceed."""


class Ups:
    """How many calls were up at any moment."""

    def __init__(self, outcomes: Sequence[CallOutcome]) -> None:
        changes: dict[float, int] = {}
        for outcome in outcomes:
            if outcome.answered_s is not None:
                changes[outcome.answered_s] = changes.get(outcome.answered_s, 0) + 1
                changes[outcome.ended_s] = changes.get(outcome.ended_s, 0) - 1
        self._at_s = sorted(changes)
        self._up: list[int] = []
        for at_s in self._at_s:
            self._up.append(changes[at_s] + (self._up[-1] if self._up else 0))

    @property
    def most(self) -> int:
        return max(self._up, default=0)

    def at(self, at_s: float) -> int:
        index = bisect_right(self._at_s, at_s)
        return self._up[index - 1] if index else 0

    def most_within(self, from_s: float, to_s: float) -> int:
        """The most in [from, to)."""
        first, last = bisect_right(self._at_s, from_s), bisect_right(self._at_s, math.nextafter(to_s, from_s))
        return max([self.at(from_s), *self._up[first:last]])


def step_s(length_s: float) -> float:
    """Whole seconds, as many as keep a timeline short."""
    return float(max(1, math.ceil(length_s / MAX_TIMELINE_POINTS)))


def timeline_of(outcomes: Sequence[CallOutcome], ups: Ups, length_s: float) -> tuple[TimelinePoint, ...]:
    """One point a :func:`step_s`, also where nothing happened."""
    step = step_s(length_s)
    count = max(1, math.ceil(length_s / step))
    rows = [_Row() for _ in range(count)]

    def row(at_s: float) -> _Row:
        return rows[min(count - 1, max(0, int(at_s / step)))]

    for outcome in outcomes:
        row(outcome.offered_s).offered += 1
        ended = row(outcome.ended_s)
        ended.ended += 1
        ended.refused += outcome.fate is Fate.REFUSED
        ended.bad += not outcome.good
        for turn in outcome.turns:
            begun = row(turn.at_s)
            begun.late += turn.late_frames
            if turn.voice_to_voice_ms is not None:
                begun.latencies_ms.append(turn.voice_to_voice_ms)
    return tuple(
        each.point(index * step, ups.most_within(index * step, (index + 1) * step)) for index, each in enumerate(rows)
    )


def turn_points(outcomes: Sequence[CallOutcome], ups: Ups) -> tuple[TurnPoint, ...]:
    """Answered turns in order of time, an even sample where there are too many."""
    points = sorted(
        (
            TurnPoint(
                at_s=round(turn.at_s, 2),
                voice_to_voice_ms=round(turn.voice_to_voice_ms, 1),
                call=outcome.number,
                up=ups.at(turn.at_s),
            )
            for outcome in outcomes
            for turn in outcome.turns
            if turn.voice_to_voice_ms is not None
        ),
        key=lambda point: point.at_s,
    )
    if len(points) <= MAX_TURN_POINTS:
        return tuple(points)
    return tuple(points[index * len(points) // MAX_TURN_POINTS] for index in range(MAX_TURN_POINTS))


class _Row:
    def __init__(self) -> None:
        self.offered = self.refused = self.ended = self.bad = self.late = 0
        self.latencies_ms: list[float] = []

    def point(self, at_s: float, up: int) -> TimelinePoint:
        ordered = sorted(self.latencies_ms)
        counts = [0] * (len(BOUNDS_MS) + 1)
        for value in ordered:
            counts[next((row for row, bound in enumerate(BOUNDS_MS) if value <= bound), len(BOUNDS_MS))] += 1
        return TimelinePoint(
            at_s=at_s,
            up=up,
            offered=self.offered,
            refused=self.refused,
            ended=self.ended,
            bad=self.bad,
            turns=len(ordered),
            p50_ms=nearest_rank(ordered, 0.5),
            p95_ms=nearest_rank(ordered, 0.95),
            max_ms=ordered[-1] if ordered else None,
            late=self.late,
            buckets=tuple(counts),
        )
