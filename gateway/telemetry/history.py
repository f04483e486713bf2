"""The last minutes, a point a second: what the console draws. Bounded, and kept whether anybody looks or not, because
an operator looks once something has happened."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import msgspec

from engines.api import EngineHealth, LaneHealth
from gateway.telemetry.percentiles import nearest_rank

EVERY_S = 1.0
MAX_POINTS = 600
RESPONSES_S = 60.0
"""Percentiles are those of the answers of so many seconds."""
MAX_RESPONSES = 4_096
HERE = "gateway"
"""What stands for the host of lanes that run in this process."""


class LanePoint(msgspec.Struct, frozen=True):
    """``busy`` is the share of the lane's slots in use since the point before, None where that can't be told."""

    busy: float | None
    waiting: int
    running: int
    late_ms: float
    slots: int
    overload: int


class Point(msgspec.Struct, frozen=True):
    """One second. ``p50_ms`` and ``p95_ms`` are of the time from a caller's last word to the first sound of the
    answer; None where nobody was answered. ``lag_ms`` is the longest that the event loop was busy."""

    number: int
    at_ms: int
    live: int
    p50_ms: float | None
    p95_ms: float | None
    lag_ms: float
    overload: int
    lanes: dict[str, LanePoint]
    """By ``HOST/LANE``."""


class History:
    """``now_s`` is monotonic, ``wall_s`` Unix time."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._wall_s = wall_s
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)
        self._responses: deque[tuple[float, float]] = deque(maxlen=MAX_RESPONSES)
        self._worst_lag_s = 0.0
        self._sampled_at = now_s()
        self._busy_s: dict[str, float] = {}
        self.number = 0
        """Of the latest point; the first is 1."""

    def responded(self, after_ms: float) -> None:
        """A caller heard an answer so long after the last word."""
        self._responses.append((self._now_s(), after_ms))

    def lagged(self, lag_s: float) -> None:
        self._worst_lag_s = max(self._worst_lag_s, lag_s)

    def sample(self, live: int, health: EngineHealth) -> None:
        """Add a point."""
        now = self._now_s()
        passed_s, self._sampled_at = now - self._sampled_at, now
        while self._responses and self._responses[0][0] < now - RESPONSES_S:
            self._responses.popleft()
        took = sorted(after_ms for _, after_ms in self._responses)
        lanes = {f"{host}/{lane}": how for (host, lane), how in lanes_of(health).items()}
        self.number += 1
        point = Point(
            self.number,
            round(self._wall_s() * 1000),
            live,
            _rounded(nearest_rank(took, 0.5)),
            _rounded(nearest_rank(took, 0.95)),
            round(self._worst_lag_s * 1000, 1),
            int(health.overload),
            {name: self._lane_point(name, lane, passed_s) for name, lane in lanes.items()},
        )
        self._worst_lag_s = 0.0
        self._busy_s = {name: lane.busy_s for name, lane in lanes.items()}
        self._points.append(point)

    def since(self, number: int) -> list[Point]:
        """The points after that one, the oldest first."""
        new = min(self.number - number, len(self._points))
        return [self._points[index] for index in range(-new, 0)]

    def _lane_point(self, name: str, lane: LaneHealth, passed_s: float) -> LanePoint:
        worked_s = lane.busy_s - self._busy_s.get(name, float("inf"))  # less: its host was started again
        busy = round(min(1.0, worked_s / passed_s / lane.slots), 3) if passed_s > 0 and worked_s >= 0 else None
        return LanePoint(busy, lane.waiting, lane.running, round(lane.late_ms, 1), lane.slots, int(lane.overload))


def lanes_of(health: EngineHealth) -> dict[tuple[str, str], LaneHealth]:
    """By the host (:data:`HERE`: this process) and the lane's name."""
    lanes = {(HERE, name): lane for name, lane in health.lanes.items()}
    return lanes | {(host, name): lane for host, how in health.hosts.items() for name, lane in how.lanes.items()}


def _rounded(value_ms: float | None) -> float | None:
    return None if value_ms is None else round(value_ms, 1)


async def keep_history(
    history: History, live: Callable[[], int], health: Callable[[], EngineHealth], *, every_s: float = EVERY_S
) -> None:
    """Runs until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        history.sample(live(), health())
