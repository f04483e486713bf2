"""The gate, fed second by second."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engines.api import LaneHealth
from gateway.admission import ASLEEP_S, FALL, MAX_LAGS, SECONDS, WARM_UP_S, Limits, Load, LoadGate, Measure
from gateway.admission_settings import AdmissionSettings

LIMITS = Limits(loop_lag_s=0.06, late_frames=0.01, lane_late_s=1.0, lane_use=0.98)
CPU = ("cpu", "cpu")


class Rig:
    """A gate that is past its warm-up, and has seen nothing."""

    def __init__(self, *, warm: bool = True) -> None:
        self.now = 1_000.0
        self.gate = LoadGate(LIMITS, self.now)
        self.frames = self.late = 0
        self.busy_s = 0.0
        if warm:
            self.now += WARM_UP_S
            self.gate.note(Load(), self.now)

    def second(
        self, *, lag_s: float = 0.0, late: float = 0.0, lane_late_ms: float = 0.0, use: float = 0.0, frames: int = 1_000
    ) -> Measure | None:
        """One more, with this load in it."""
        for _ in range(20):
            self.gate.lagged(lag_s)
        self.frames += frames
        self.late += round(frames * late)
        self.busy_s += 2 * use
        self.now += 1.0
        lane = LaneHealth(slots=2, waiting=1, running=2, late_ms=lane_late_ms, busy_s=self.busy_s)
        self.gate.note(Load(self.frames, self.late, {CPU: lane}), self.now)
        return self.gate.closed_by

    def seconds(self, count: int, **load: float) -> list[Measure | None]:
        return [self.second(**load) for _ in range(count)]  # type: ignore[arg-type]


def test_without_load_it_is_open() -> None:
    rig = Rig()
    assert rig.seconds(20) == [None] * 20
    assert set(rig.gate.ratios.values()) == {0.0}


@pytest.mark.parametrize(
    ("load", "measure"),
    [
        ({"lag_s": 0.06}, Measure.LOOP_LAG),
        ({"late": 0.01}, Measure.LATE_FRAMES),
        ({"lane_late_ms": 1_000.0}, Measure.LANE_LATE),
        ({"use": 1.0, "lane_late_ms": 10.0}, Measure.LANE_USE),
    ],
)
def test_a_load_that_stays_closes_it_within_seconds_and_one_that_goes_opens_it(
    load: dict[str, float], measure: Measure
) -> None:
    rig = Rig()
    closed = rig.seconds(2 * SECONDS, **load)
    assert closed[:2] == [None, None]
    assert set(closed[SECONDS + 2 :]) == {measure}
    assert rig.gate.over[measure]
    assert set(rig.seconds(3 * SECONDS)[2 * SECONDS :]) == {None}


def test_a_single_stall_refuses_nobody() -> None:
    rig = Rig()
    rig.seconds(3)
    for _ in range(5):
        assert rig.second(lag_s=0.8, late=0.3) is None
        assert rig.seconds(SECONDS) == [None] * SECONDS


def test_a_stall_of_seconds_counts_as_long_as_it_was() -> None:
    rig = Rig()
    rig.gate.lagged(4.0)
    rig.now += 4.0
    rig.gate.note(Load(), rig.now)
    assert rig.gate.closed_by is Measure.LOOP_LAG


def test_a_laptop_that_slept_takes_calls_when_it_wakes_up() -> None:
    rig = Rig()
    rig.seconds(10)
    rig.now += ASLEEP_S
    assert rig.second(lag_s=ASLEEP_S, late=1.0, lane_late_ms=ASLEEP_S * 1000) is None
    assert rig.seconds(10) == [None] * 10


def test_it_does_not_come_and_go_with_a_load_about_the_limit() -> None:
    rig = Rig()
    rig.seconds(SECONDS, lag_s=0.061)
    about = itertools.islice(itertools.cycle((0.058, 0.0, 0.061, 0.05, 0.059)), 50)
    assert {rig.second(lag_s=lag_s) for lag_s in about} == {Measure.LOOP_LAG}
    assert rig.seconds(SECONDS, lag_s=0.06 * FALL * 0.99)[-1] is None
    assert rig.seconds(10, lag_s=0.059) == [None] * 10


def test_the_rare_slow_moment_of_a_second_does_not_count() -> None:
    rig = Rig()
    for _ in range(10):
        rig.gate.lagged(0.5)
        assert rig.second(lag_s=0.01) is None
    assert rig.gate.ratios[Measure.LOOP_LAG] == pytest.approx(0.01 / 0.06)


def test_nothing_is_refused_while_it_warms_up() -> None:
    rig = Rig(warm=False)
    closed = rig.seconds(12, lag_s=1.0)
    assert closed[:9] == [None] * 9
    assert closed[-1] is Measure.LOOP_LAG


def test_a_few_frames_say_nothing() -> None:
    rig = Rig()
    assert rig.seconds(10, frames=3, late=1.0) == [None] * 10


def test_a_lane_that_is_never_behind_may_be_as_busy_as_it_likes() -> None:
    rig = Rig()
    assert rig.seconds(20, use=1.0) == [None] * 20


def test_a_lane_that_was_started_again_is_not_taken_for_a_busy_one() -> None:
    rig = Rig()
    rig.seconds(SECONDS, use=0.5, lane_late_ms=10.0)
    rig.busy_s = 0.0
    assert rig.second(use=0.1, lane_late_ms=10.0) is None
    assert rig.gate.ratios[Measure.LANE_USE] < 0.6


def test_of_two_over_their_limits_the_one_that_is_furthest_is_named() -> None:
    rig = Rig()
    assert rig.seconds(SECONDS, lag_s=0.07, late=0.5)[-1] is Measure.LATE_FRAMES


def test_a_host_that_tells_of_its_lane_once_in_a_while_is_not_misread() -> None:
    rig = Rig()
    rig.seconds(SECONDS)
    for number in range(40):
        rig.second(use=(0.0, 1.2)[number % 2], lane_late_ms=5.0)  # told of two seconds at once, then not at all
        assert rig.gate.ratios[Measure.LANE_USE] < 0.9


def test_settings_say_the_limits() -> None:
    assert AdmissionSettings(loop_lag_ms=60).limits == LIMITS
    assert AdmissionSettings(by_load=False).limits is None


@pytest.mark.parametrize("name", ["loop_lag_ms", "lane_late_ms", "late_frames", "lane_use"])
@pytest.mark.parametrize("value", [0, -1, 1e-300, float("nan"), float("inf"), 1e9])
def test_no_limit_shuts_the_gate_for_ever_or_is_none(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        AdmissionSettings.model_validate({name: value})


@given(st.lists(st.floats(0, 0.5), min_size=SECONDS, max_size=60))
def test_who_is_always_below_the_limit_is_always_served(lags_s: list[float]) -> None:
    rig = Rig()
    for lag_s in lags_s:
        assert rig.second(lag_s=lag_s * 0.119) is None


class Machine(RuleBasedStateMachine):
    """Any loads in any order, with notes that come early and late: what holds whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.gate = LoadGate(LIMITS, self.now)
        self.frames = self.late = 0
        self.busy_s = 0.0
        self.quiet_s = 0.0

    @rule(lag_s=st.floats(0, 10), count=st.integers(1, 5_000))
    def lag(self, lag_s: float, count: int) -> None:
        for _ in range(count):
            self.gate.lagged(lag_s)
        if lag_s > 0:
            self.quiet_s = 0.0

    @rule(frames=st.integers(0, 10_000), share=st.floats(0, 1))
    def send(self, frames: int, share: float) -> None:
        self.frames += frames
        self.late += round(frames * share)
        if share > 0:
            self.quiet_s = 0.0

    @rule(passed_s=st.floats(0, 30), late_ms=st.floats(0, 5_000), busy_s=st.floats(-100, 100), there=st.booleans())
    def note(self, passed_s: float, late_ms: float, busy_s: float, there: bool) -> None:
        self.now += passed_s
        self.busy_s = max(0.0, self.busy_s + busy_s)
        lanes = {CPU: LaneHealth(2, 1, 2, late_ms, self.busy_s)} if there else {}
        self.gate.note(Load(self.frames, self.late, lanes), self.now)
        if lanes and late_ms > 0:
            self.quiet_s = 0.0

    @rule(seconds=st.integers(1, 20))
    def rest(self, seconds: int) -> None:
        """Nothing happens."""
        for _ in range(seconds):
            self.now += 1.0
            self.gate.note(Load(self.frames, self.late, {}), self.now)
        self.quiet_s += seconds

    @invariant()
    def names_what_is_over(self) -> None:
        over = [measure for measure in Measure if self.gate.over[measure]]
        assert (self.gate.closed_by in over) if over else (self.gate.closed_by is None)
        assert all(self.gate.ratios[measure] >= FALL for measure in over)

    @invariant()
    def is_open_while_it_warms_up(self) -> None:
        assert self.now >= WARM_UP_S or self.gate.closed_by is None

    @invariant()
    def keeps_little(self) -> None:
        assert len(self.gate._lags_s) <= MAX_LAGS
        assert len(self.gate._notes) <= SECONDS
        assert all(len(values) == SECONDS for values in self.gate._values.values())

    @precondition(lambda self: self.quiet_s > SECONDS)
    @invariant()
    def opens_again(self) -> None:
        assert self.gate.closed_by is None


TestMachine = Machine.TestCase
