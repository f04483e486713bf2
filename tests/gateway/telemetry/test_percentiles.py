from __future__ import annotations

import pytest

from gateway.telemetry.percentiles import nearest_rank


@pytest.mark.parametrize(
    ("count", "share", "rank"),
    [(1, 0.0, 1), (1, 0.95, 1), (2, 0.5, 1), (20, 0.95, 19), (21, 0.95, 20), (100, 1.0, 100)],
)
def test_the_least_value_that_so_many_are_no_greater_than(count: int, share: float, rank: int) -> None:
    assert nearest_rank([float(number) for number in range(1, count + 1)], share) == rank


def test_a_product_that_is_a_bit_more_than_whole_is_whole() -> None:
    values = [float(number) for number in range(1, 101)]
    assert 0.07 * 100 > 7
    assert nearest_rank(values, 0.07) == 7


def test_of_nothing_there_is_none() -> None:
    assert nearest_rank([], 0.5) is None
