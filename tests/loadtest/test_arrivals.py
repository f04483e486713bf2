from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.arrivals import BETWEEN_S, SHORTEST_SHARE, Arrival, Pattern, most_at_once, plan_arrivals, share_arrivals


def lines_of(arrivals: tuple[Arrival, ...]) -> dict[int | None, list[Arrival]]:
    lines: dict[int | None, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        lines[arrival.line].append(arrival)
    return lines


def test_the_same_seed_plans_the_same_run_and_another_another() -> None:
    for pattern in Pattern:
        plans = [
            plan_arrivals(pattern, calls=5, ramp_s=2, hold_s=60, length_s=10, jitter=0.2, every_s=20, seed=seed)
            for seed in (1, 1, 2)
        ]
        assert plans[0] == plans[1] != plans[2]
        assert [arrival.number for arrival in plans[0]] == list(range(len(plans[0])))
        assert [arrival.at_s for arrival in plans[0]] == sorted(arrival.at_s for arrival in plans[0])


def test_lines_come_one_by_one_over_the_ramp_and_each_has_one_call_at_a_time() -> None:
    planned = plan_arrivals(Pattern.LINES, calls=4, ramp_s=8, hold_s=40, length_s=10, jitter=0.3, seed=3)
    lines = lines_of(planned)
    assert [lines[line][0].at_s for line in range(4)] == [0, 2, 4, 6]
    for calls in lines.values():
        for call, following in itertools.pairwise(calls):
            assert following.at_s == pytest.approx(call.at_s + call.length_s + BETWEEN_S)
    assert most_at_once(planned) == 4


@given(st.integers(1, 30), st.floats(0, 30), st.floats(1, 200), st.floats(0.5, 100), st.floats(0, 0.9), st.integers())
def test_lines_end_with_the_run(
    calls: int, ramp_s: float, hold_s: float, length_s: float, jitter: float, seed: int
) -> None:
    planned = plan_arrivals(
        Pattern.LINES, calls=calls, ramp_s=ramp_s, hold_s=hold_s, length_s=length_s, jitter=jitter, seed=seed
    )
    lines = lines_of(planned)
    assert len(lines) == calls
    assert most_at_once(planned) <= calls
    for line in lines.values():
        *others, last = line
        assert all(length_s * (1 - jitter) - 1e-9 <= each.length_s <= length_s * (1 + jitter) for each in others)
        assert last.at_s + last.length_s == pytest.approx(ramp_s + hold_s)
        assert 0 < last.length_s <= length_s * (1 + jitter + SHORTEST_SHARE) + BETWEEN_S + 1e-6


def test_a_call_as_long_as_the_run_is_placed_once_a_line() -> None:
    planned = plan_arrivals(Pattern.LINES, calls=3, ramp_s=3, hold_s=60, length_s=3600)
    assert [arrival.at_s + arrival.length_s for arrival in planned] == [63, 63, 63]


def test_independent_callers_come_at_the_rate_that_has_so_many_up() -> None:
    planned = plan_arrivals(Pattern.POISSON, calls=50, ramp_s=100, hold_s=1000, length_s=20, seed=7)
    steady = [arrival for arrival in planned if arrival.at_s >= 100]
    assert len(steady) == pytest.approx(50 / 20 * 1000, rel=0.06)
    gaps = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(steady)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.1)  # exponential: they do not come like a clock
    assert all(arrival.line is None for arrival in planned)


@pytest.mark.parametrize(("ramp_s", "length_s"), [(5, 30), (20, 45), (5, 4), (0, 30)])
def test_independent_callers_are_as_many_as_asked_for_from_the_end_of_the_ramp_on(
    ramp_s: float, length_s: float
) -> None:
    moments = [ramp_s / 2, *(ramp_s + after_s for after_s in (0.0, 5.0, 10.0, 20.0, 40.0, 59.0))]
    ups: list[list[int]] = []
    for seed in range(150):
        planned = plan_arrivals(
            Pattern.POISSON, calls=40, ramp_s=ramp_s, hold_s=60, length_s=length_s, jitter=0.5, seed=seed
        )
        assert all(0 <= each.at_s < ramp_s + 60 and each.length_s > 0 for each in planned)
        ups.append([sum(each.at_s <= at_s < each.at_s + each.length_s for each in planned) for at_s in moments])
    halfway, *steady = ([row[index] for row in ups] for index in range(len(moments)))
    for counts in steady:
        mean = sum(counts) / len(counts)
        assert mean == pytest.approx(40, abs=2)
        assert sum((count - mean) ** 2 for count in counts) / len(counts) == pytest.approx(40, rel=0.4)  # Poisson's own
    if ramp_s:
        assert 12 < sum(halfway) / len(halfway) < 28


def test_a_burst_comes_at_one_moment_and_again() -> None:
    once = plan_arrivals(Pattern.BURST, calls=50, ramp_s=0, hold_s=30, length_s=5)
    assert {arrival.at_s for arrival in once} == {0}
    assert len(once) == 50
    again = plan_arrivals(Pattern.BURST, calls=50, ramp_s=0, hold_s=30, length_s=5, every_s=10)
    assert sorted({arrival.at_s for arrival in again}) == [0, 10, 20]
    assert len(again) == 150


def test_generators_share_neighbours_and_keep_lines_together() -> None:
    planned = plan_arrivals(Pattern.LINES, calls=5, ramp_s=5, hold_s=60, length_s=10)
    shares = share_arrivals(planned, 2)
    assert sorted((arrival for share in shares for arrival in share), key=lambda each: each.number) == list(planned)
    assert not {arrival.line for arrival in shares[0]} & {arrival.line for arrival in shares[1]}
    burst = share_arrivals(plan_arrivals(Pattern.BURST, calls=7, ramp_s=0, hold_s=5, length_s=5), 3)
    assert [len(share) for share in burst] == [3, 2, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls": 0},
        {"length_s": 0},
        {"hold_s": 0},
        {"hold_s": math.nan},
        {"ramp_s": math.inf},
        {"ramp_s": -1},
        {"jitter": 1.0},
        {"every_s": 0.0},
        {"calls": 100_000, "hold_s": 3600.0},
    ],
)
def test_what_is_no_run_is_said(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"calls|run|bursts"):
        plan_arrivals(Pattern.LINES, **{"calls": 1, "ramp_s": 0.0, "hold_s": 10.0, "length_s": 5.0} | wrong)  # type: ignore[arg-type]
