"""The last minutes, point by point."""

from __future__ import annotations

from engines.api import HEALTHY, EngineHealth, HostHealth, LaneHealth, Overload
from gateway.telemetry.history import MAX_POINTS, RESPONSES_S, History


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def lane(busy_s: float, slots: int = 2) -> EngineHealth:
    here = {"cpu": LaneHealth(slots, 3, 1, 12.34, busy_s)}
    there = {"mlx": HostHealth(up=True, lanes={"mlx": LaneHealth(1, 0, 1, 0.0, busy_s, Overload.SHORT_CLAUSES)})}
    return EngineHealth(healthy=True, lanes=here, hosts=there)


def test_how_busy_a_lane_was_between_two_points() -> None:
    clock = Clock()
    history = History(clock, clock)
    for busy_s in (10.0, 11.0, 99.0, 0.5):
        clock.now_s += 2.0
        history.sample(1, lane(busy_s))
    shares = [point.lanes["gateway/cpu"].busy for point in history.since(0)]
    assert shares == [None, 0.25, 1.0, None], "unknown at first, and when the host was started again"
    last = history.since(3)[0]
    assert (last.number, last.at_ms, last.lanes["gateway/cpu"].late_ms) == (4, 1_008_000, 12.3)
    assert last.lanes["mlx/mlx"].overload == Overload.SHORT_CLAUSES


def test_percentiles_are_those_of_the_last_minute() -> None:
    clock = Clock()
    history = History(clock, clock)
    history.sample(0, HEALTHY)
    for after_ms in range(100, 1_100, 100):
        history.responded(after_ms)
    history.lagged(0.02)
    history.lagged(0.01)
    history.sample(2, HEALTHY)
    clock.now_s += RESPONSES_S + 1
    history.sample(0, HEALTHY)
    assert [(point.p50_ms, point.p95_ms) for point in history.since(0)] == [(None, None), (500, 1_000), (None, None)]
    assert [point.lag_ms for point in history.since(0)] == [0, 20, 0]


def test_the_median_of_two_is_the_lesser() -> None:
    clock = Clock()
    history = History(clock, clock)
    for took_ms in (3_000, 700):
        history.responded(took_ms)
    history.sample(1, HEALTHY)
    point = history.since(0)[0]
    assert (point.p50_ms, point.p95_ms) == (700, 3_000)


def test_it_is_bounded() -> None:
    clock = Clock()
    history = History(clock, clock)
    for _ in range(MAX_POINTS + 5):
        history.sample(0, HEALTHY)
    assert len(history.since(0)) == MAX_POINTS
    assert [point.number for point in history.since(MAX_POINTS + 3)] == [MAX_POINTS + 4, MAX_POINTS + 5]
    assert history.since(MAX_POINTS + 5) == []
