from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.percentiles import nearest_rank, percentiles_of, percentiles_of_histogram
from loadtest.run_report import Percentiles


def test_nearest_rank_by_hand() -> None:
    values = [15.0, 20.0, 35.0, 40.0, 50.0]
    assert [nearest_rank(values, share) for share in (0.05, 0.3, 0.4, 0.5, 1.0)] == [15, 20, 20, 35, 50]
    assert nearest_rank([], 0.5) is None


def test_rounding_makes_no_rank_more() -> None:
    values = [float(value) for value in range(1, 21)]
    assert nearest_rank(values, 0.95) == 19
    assert nearest_rank(values, 95 / 100) == 19


@given(st.lists(st.floats(0, 1e5), min_size=1), st.integers(1, 100))
def test_it_is_the_smallest_that_enough_do_not_exceed(values: list[float], rank: int) -> None:
    found = nearest_rank(sorted(values), rank / 100)
    assert found is not None
    assert found in values
    assert sum(value <= found for value in values) * 100 >= rank * len(values)
    assert sum(value < found for value in values) * 100 < rank * len(values)


def test_of_values() -> None:
    assert percentiles_of([]) == Percentiles()
    found = percentiles_of(float(value) for value in range(100, 0, -1))
    assert found == Percentiles(count=100, p50=50, p90=90, p95=95, p99=99, max=100)


def test_of_a_histogram_within_buckets() -> None:
    found = percentiles_of_histogram({0.1: 0, 0.2: 50, 0.4: 100, math.inf: 100})
    assert found.count == 100
    assert found.p50 == pytest.approx(200)
    assert found.p90 == pytest.approx(360)
    assert found.max == pytest.approx(400)


def test_beyond_the_last_bound_a_histogram_knows_no_more_than_that() -> None:
    found = percentiles_of_histogram({0.1: 1, math.inf: 100})
    assert (found.p50, found.max) == (100, 100)
    assert percentiles_of_histogram({0.1: 100, math.inf: 100}).p99 == pytest.approx(99)


def test_of_an_empty_histogram() -> None:
    assert percentiles_of_histogram({}) == percentiles_of_histogram({0.1: 0, math.inf: 0}) == Percentiles()
