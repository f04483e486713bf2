from __future__ import annotations

import pytest

from loadtest.outcome import Fate, TurnOutcome
from loadtest.run_report import MAX_TIMELINE_POINTS, MAX_TURN_POINTS
from loadtest.timeline import BOUNDS_MS, Ups, step_s, timeline_of, turn_points
from tests.loadtest.recordings import outcome


def turn(at_s: float, ms: float | None, late: int = 0) -> TurnOutcome:
    return TurnOutcome(kind="say", at_s=at_s, in_call_ms=0.0, voice_to_voice_ms=ms, late_frames=late)


def test_how_many_are_up() -> None:
    refused = outcome(3, fate=Fate.REFUSED, answered_s=None)
    ups = Ups([outcome(0, answered_s=1.0, ended_s=5.0), outcome(1, answered_s=2.0, ended_s=3.0), refused])
    assert [ups.at(at_s) for at_s in (0, 1, 1.5, 2, 2.9, 3, 4.9, 5, 9)] == [0, 1, 1, 2, 2, 1, 1, 0, 0]
    assert ups.most == 2
    assert ups.most_within(2.5, 2.6) == 2
    assert ups.most_within(0.0, 1.0) == 0, "the end is not within"
    assert ups.most_within(4.0, 100.0) == 1
    assert (Ups([]).most, Ups([]).at(1.0)) == (0, 0)


def test_a_call_that_follows_at_once_is_not_one_more() -> None:
    ups = Ups([outcome(0, answered_s=1.0, ended_s=2.0), outcome(1, answered_s=2.0, ended_s=3.0)])
    assert ups.most == 1


def test_second_by_second() -> None:
    calls = [
        outcome(0, answered_s=0.5, ended_s=2.5, turns=(turn(1.1, 400.0), turn(1.9, 9_000.0, late=3), turn(2.1, None))),
        outcome(1, offered_s=1.0, answered_s=None, ended_s=1.2, fate=Fate.REFUSED, faults=("refused",)),
    ]
    points = timeline_of(calls, Ups(calls), 3.0)
    assert [point.at_s for point in points] == [0, 1, 2]
    assert [point.up for point in points] == [1, 1, 1]
    assert [point.offered for point in points] == [1, 1, 0]
    assert [(point.ended, point.refused, point.bad) for point in points] == [(0, 0, 0), (1, 1, 1), (1, 0, 0)]
    middle = points[1]
    assert (middle.turns, middle.p50_ms, middle.p95_ms, middle.max_ms, middle.late) == (2, 400, 9_000, 9_000, 3)
    assert len(middle.buckets) == len(BOUNDS_MS) + 1
    assert middle.buckets[BOUNDS_MS.index(400.0)] == 1
    assert middle.buckets[-1] == 1
    assert points[2].p50_ms is None


def test_a_long_run_has_coarser_points() -> None:
    assert (step_s(0.0), step_s(60.0), step_s(1_800.0), step_s(1_801.0), step_s(24 * 3_600.0)) == (1, 1, 1, 2, 48)
    call = outcome(0, offered_s=0.0, answered_s=1.0, ended_s=5_000.0)
    points = timeline_of([call], Ups([call]), 5_000.0)
    assert len(points) <= MAX_TIMELINE_POINTS
    assert points[-1].at_s < 5_000 <= points[-1].at_s + step_s(5_000.0)
    assert points[-1].ended == 1


def test_dots_are_in_order_and_bounded() -> None:
    calls = [
        outcome(
            number, answered_s=0.0, ended_s=1e6, turns=tuple(turn(index * 7.0 + number, 500.0) for index in range(600))
        )
        for number in range(40)
    ]
    points = turn_points(calls, Ups(calls))
    assert len(points) == MAX_TURN_POINTS
    assert [point.at_s for point in points] == sorted(point.at_s for point in points)
    assert points[0].at_s == 0
    assert points[-1].at_s == pytest.approx(599 * 7 + 39, abs=5)
    assert {point.up for point in points} == {40}
    assert turn_points([outcome(0, turns=(turn(1.0, None),))], Ups([])) == ()
