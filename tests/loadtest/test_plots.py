from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.plots import (
    Axis,
    HeatColumn,
    Limit,
    Series,
    around,
    heat_map,
    heat_step,
    line_plot,
    over_latency,
    over_time,
    range_bar,
    range_scale,
    say_clock,
    say_count,
    say_ms,
    stacked_bar,
    up_to,
    worst_of,
)

ACROSS = Axis(0.0, 10.0, (0.0, 5.0, 10.0), say_clock)
UPWARD = Axis(0.0, 100.0, (0.0, 50.0, 100.0), say_count)


def plot(*values: float | None, limit: Limit | None = None, mark: Limit | None = None, dots: bool = False) -> str:
    at = [10.0 * index / max(1, len(values) - 1) for index in range(len(values))]
    series = [Series("Up", "one", values)]
    return line_plot("Calls", at, series, across=ACROSS, upward=UPWARD, limit=limit, mark=mark, dots=dots)


# --- axes ---


@given(st.floats(min_value=0, max_value=1e12), st.booleans())
def test_an_axis_reaches_what_it_must_in_a_few_even_steps(most: float, whole: bool) -> None:
    axis = up_to(most, say_count, whole=whole)
    assert axis.high >= most * 0.9999
    assert axis.ticks[0] == 0
    assert axis.ticks[-1] == axis.high
    assert 2 <= len(axis.ticks) <= 6
    steps = [later - earlier for earlier, later in itertools.pairwise(axis.ticks)]
    assert max(steps) == pytest.approx(min(steps))
    assert not whole or all(tick == round(tick) for tick in axis.ticks)


@given(st.floats(min_value=0, max_value=1e9), st.floats(min_value=0, max_value=1e9), st.sampled_from([0.1, 1.0, 2e7]))
def test_an_axis_around_what_hardly_changes_holds_it_in_a_few_steps(one: float, other: float, least: float) -> None:
    axis = around(min(one, other), max(one, other), say_count, least=least)
    assert axis.low <= min(one, other) <= max(one, other) <= axis.high
    assert 3 <= len(axis.ticks) <= 6


def test_what_is_no_number_of_this_world_has_an_axis_too() -> None:
    assert up_to(math.inf, say_count).high == 1
    assert up_to(math.nan, say_count).high == 1
    assert over_latency(10, math.inf).high > 10


@given(st.floats(min_value=0, max_value=1e7))
def test_an_axis_of_time_has_few_ticks_within_the_run(span_s: float) -> None:
    axis = over_time(span_s)
    assert axis.high == max(span_s, 1.0)
    assert 1 <= len(axis.ticks) <= 7
    assert all(0 <= tick <= axis.high for tick in axis.ticks)


@given(st.floats(min_value=-100, max_value=1e7), st.floats(min_value=0, max_value=1e7))
def test_an_axis_of_latency_holds_both_ends_if_they_are_of_this_world(one: float, other: float) -> None:
    axis = over_latency(min(one, other), max(one, other))
    assert 0 < axis.low < axis.high
    assert axis.ticks
    assert axis.high >= min(max(one, other), 500_000)


def test_a_logarithmic_axis_gives_each_doubling_the_same_room() -> None:
    axis = over_latency(100, 1_600)
    assert axis.share(400) - axis.share(200) == pytest.approx(axis.share(800) - axis.share(400))


@given(st.floats(allow_nan=False), st.booleans())
def test_no_value_lies_outside_the_plot(value: float, log: bool) -> None:
    assert 0 <= Axis(1.0, 100.0, (), say_count, log=log).share(value) <= 1
    assert Axis(5.0, 5.0, (), say_count, log=log).share(value) == 0


# --- words ---


@pytest.mark.parametrize(
    ("ms", "said"), [(0, "0 ms"), (3.21, "3.2 ms"), (9, "9 ms"), (512.4, "512 ms"), (999.7, "1 s"), (1_240, "1.24 s")]
)
def test_times_are_said_as_on_the_call_page(ms: float, said: str) -> None:
    assert say_ms(ms) == said.replace(" ", "\N{NO-BREAK SPACE}")


@pytest.mark.parametrize(("seconds", "said"), [(0, "0:00"), (75, "1:15"), (3_661, "1:01:01"), (-3, "0:00")])
def test_a_clock_has_hours_only_where_there_are_some(seconds: float, said: str) -> None:
    assert say_clock(seconds) == said


# --- many points ---


def test_few_points_stay_as_they_are() -> None:
    assert worst_of([0.0, 1.0], [[1.0, None]]) == ([0.0, 1.0], [[1.0, None]])


def test_no_peak_is_lost_in_bins() -> None:
    values: list[float | None] = [1.0] * 10_000
    values[7_777] = 99.0
    values[100:400] = [None] * 300
    at, (shown,) = worst_of([float(index) for index in range(10_000)], [values], most=50)
    assert len(at) == len(shown) == 50
    assert at[0] == 0
    assert max(value for value in shown if value is not None) == 99
    assert shown.count(None) == 1


# --- lines ---


def test_a_line_is_broken_where_nothing_is_known_and_a_lonely_value_is_a_dot() -> None:
    (path,) = re.findall(r' d="([^"]*)"', plot(0.0, 50.0, None, 100.0, None, 25.0, 25.0))
    assert path == "M0.0 1000.0L166.7 500.0M500.0 0.0h0.01M833.3 750.0L1000.0 750.0"


def test_every_place_says_its_values() -> None:
    drawn = plot(1.0, None, 3.0)
    assert re.findall(r"<title>([^<]*)</title>", drawn) == ["0:00\nUp: 1", "0:05", "0:10\nUp: 3"]


def test_places_cover_the_plot_without_holes() -> None:
    places = re.findall(r'<rect class="hit"[^>]* x="([\d.]+)%" width="([\d.]+)%"', plot(*[1.0] * 7))
    assert sum(float(width) for _, width in places) == pytest.approx(100, abs=0.1)
    assert float(places[0][0]) == 0


def test_a_limit_outside_the_plot_is_not_drawn() -> None:
    assert "too much" in plot(1.0, 2.0, limit=Limit(50.0, "too much"))
    assert "too much" not in plot(1.0, 2.0, limit=Limit(500.0, "too much"))


def test_a_mark_on_the_right_is_named_to_its_left() -> None:
    assert 'text-anchor="start">here' in plot(1.0, mark=Limit(2.0, "here"))
    assert 'text-anchor="end">here' in plot(1.0, mark=Limit(9.0, "here"))


def test_measured_points_are_marked() -> None:
    assert plot(1.0, None, 3.0, dots=True).count("<circle") == 2
    assert plot(1.0, None, 3.0).count("<circle") == 0


def test_a_plot_is_told_to_who_cannot_see_it() -> None:
    assert 'role="img" aria-label="Calls. Up: from 1 to 9, 4 at the end."' in plot(1.0, 9.0, 4.0, None)
    assert 'aria-label="Calls. Up: no values."' in plot(None)
    assert "Calls" in plot()


# --- heat, ranges, shares ---


def test_a_heat_map_has_a_cell_for_each_count_that_is_one() -> None:
    columns = [HeatColumn(0.0, 5.0, [1, 0, 40]), HeatColumn(5.0, 5.0, [0, 2, 0])]
    drawn = heat_map("Latency", columns, ["low", "middle", "high"], across=ACROSS)
    assert re.findall(r"<title>([^<]*)</title>", drawn) == ["0:00, low: 1", "0:00, high: 40", "0:05, middle: 2"]
    assert 'class="heat h8" x="0%" width="50%" y="0%"' in drawn
    assert 'class="heat h1"' in drawn
    assert "At most 40 in one cell." in drawn


def test_an_empty_heat_map_is_none_the_less_one() -> None:
    assert "At most 0" in heat_map("Latency", [], [], across=ACROSS)


@given(st.integers(min_value=1, max_value=10**6), st.integers(min_value=0, max_value=10**6))
def test_more_is_never_lighter(count: int, more: int) -> None:
    most = count + more
    assert 1 <= heat_step(count, most) <= heat_step(most, most) == 8


def test_a_range_without_a_largest_value_has_no_mark_for_it() -> None:
    axis = over_latency(100, 1_000)
    assert "largest" in range_bar(axis, 200, 300, 400, 500)
    assert "largest" not in range_bar(axis, 200, 300, 400, None)
    assert 'class="body"' in range_bar(axis, 200, 200, 200, 200)


def test_names_on_a_scale_keep_apart() -> None:
    axis = over_latency(1, 100_000)
    places = [float(x) for x in re.findall(r'<text x="([\d.]+)%"', range_scale(axis))]
    assert len(places) >= 3
    assert all(later - earlier > 12 for earlier, later in itertools.pairwise(places))


def test_shares_fill_the_bar() -> None:
    drawn = stacked_bar([("Good", "good", 3), ("Bad", "poor", 0), ("Refused", "refused", 1)])
    assert [float(width) for width in re.findall(r'width="([\d.]+)%"', drawn)] == [75, 25]
    assert math.isclose(float(re.findall(r'x="([\d.]+)%"', drawn)[1]), 75)
    assert "<rect" not in stacked_bar([("Good", "good", 0)])
