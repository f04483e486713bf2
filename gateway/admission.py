"""Whether the machine has room for one more call, by what is measured of it. Pure: times are passed in.

A count of places says what a machine should carry; this says when it does not, whatever the reason: a slow machine, a
noisy neighbour, callers who talk more than others. Calls that are up are left alone: what is refused is the next one.

Every measure has one value a second. Its reading is the median of the last :data:`SECONDS`, so that a single stall (a
garbage collection, many calls that come at once) refuses nobody, while a load that stays does within three seconds. It
is over its limit from the limit on, and until it is below :data:`FALL` of it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from engines.api import LaneHealth
from gateway.telemetry.percentiles import nearest_rank

SECONDS = 5
WARM_UP_S = 10.0
"""After the start nothing is refused for so long: the first calls find caches empty, and their load tells of none that
lasts."""
FALL = 0.7
MAX_LAGS = 1_000
"""Moments looked at in one second; the first ones count."""
LEAST_FRAMES = 25
"""Of fewer frames in a second, one that is late says nothing."""
LAG_SHARE = 0.95
ASLEEP_S = 30.0
"""A process that was away for so long did not work: the machine slept, or somebody stopped it. That says nothing of a
load."""


class Measure(enum.StrEnum):
    """What can be over its limit; the names are those of the metrics' label."""

    LOOP_LAG = "loop_lag"
    """How late the event loop came to what was due: the 95th percentile of a second."""
    LATE_FRAMES = "late_frames"
    """The share of frames of agents' voices that left when the far end had none left to play."""
    LANE_LATE = "lane_late"
    """How far past its time a job is that waits for an engine's lane."""
    LANE_USE = "lane_use"
    """The share of a lane's slots that was in use, while jobs that wait for it are past their time."""


@dataclass(frozen=True, slots=True)
class Limits:
    loop_lag_s: float
    late_frames: float
    lane_late_s: float
    lane_use: float

    def of(self, measure: Measure) -> float:
        match measure:
            case Measure.LOOP_LAG:
                return self.loop_lag_s
            case Measure.LATE_FRAMES:
                return self.late_frames
            case Measure.LANE_LATE:
                return self.lane_late_s
            case Measure.LANE_USE:
                return self.lane_use


@dataclass(frozen=True, slots=True)
class Load:
    """What is counted since the start, and how the lanes are now."""

    frames: int = 0
    late_frames: int = 0
    lanes: Mapping[tuple[str, str], LaneHealth] = field(default_factory=dict)


class LoadGate:
    """Closed while a measure is over its limit."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._opens_at = now + WARM_UP_S
        self._noted_at = now
        self._notes: deque[tuple[float, Load]] = deque([(now, Load())], SECONDS)
        self._lags_s: list[float] = []
        self._values = {measure: deque[float]([0.0] * SECONDS, SECONDS) for measure in Measure}
        self._over: dict[Measure, bool] = dict.fromkeys(Measure, False)
        self._ratios: dict[Measure, float] = dict.fromkeys(Measure, 0.0)

    @property
    def ratios(self) -> Mapping[Measure, float]:
        """Each reading as a share of its limit."""
        return self._ratios

    @property
    def over(self) -> Mapping[Measure, bool]:
        return self._over

    @property
    def closed_by(self) -> Measure | None:
        """Which measure refuses calls now; of several the one that is furthest over."""
        over = [measure for measure in Measure if self._over[measure]]
        return max(over, key=self._ratios.__getitem__, default=None)

    def lagged(self, lag_s: float) -> None:
        """The event loop came so late to what was due."""
        if len(self._lags_s) < MAX_LAGS:
            self._lags_s.append(lag_s)

    def note(self, load: Load, now: float) -> None:
        """To be called about once a second. A loop that was held up calls it late: then what it found stands for all
        the seconds since, unless it was asleep."""
        passed_s = now - self._noted_at
        if passed_s <= 0:
            return
        times = min(SECONDS, max(1, round(passed_s))) if passed_s < ASLEEP_S else 1
        for measure, value in self._measured(load, now).items():
            self._values[measure].extend([value] * times)
            reading = median(self._values[measure])
            ratio = self._ratios[measure] = reading / self._limits.of(measure)
            self._over[measure] = now >= self._opens_at and ratio >= (FALL if self._over[measure] else 1.0)
        self._noted_at = now
        self._notes.append((now, load))
        self._lags_s.clear()

    def _measured(self, load: Load, now: float) -> dict[Measure, float]:
        """Since the last note; of the lanes' work since the oldest, for hosts tell of it about once a second, which two
        notes may have between them or none."""
        _, before = self._notes[-1]
        since, long_before = self._notes[0]
        uses = (_use(lane, long_before.lanes.get(name), now - since) for name, lane in load.lanes.items())
        return {
            Measure.LOOP_LAG: nearest_rank(sorted(self._lags_s), LAG_SHARE) or 0.0,
            Measure.LATE_FRAMES: _share(load.late_frames - before.late_frames, load.frames - before.frames),
            Measure.LANE_LATE: max((lane.late_ms / 1000 for lane in load.lanes.values()), default=0.0),
            Measure.LANE_USE: max(uses, default=0.0),
        }


def _share(late: int, frames: int) -> float:
    return late / frames if frames >= LEAST_FRAMES else 0.0


def _use(lane: LaneHealth, before: LaneHealth | None, passed_s: float) -> float:
    """0 where nothing is past its time: a lane that works on what nobody waits for is not full."""
    if before is None or lane.late_ms <= 0 or lane.slots <= 0:
        return 0.0
    worked_s = lane.busy_s - before.busy_s  # less than nothing: its host was started again
    return min(1.0, max(0.0, worked_s / passed_s / lane.slots))
