"""The cost model: learned averages, what is guessed between and beyond them, outliers and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.executor.costs import BELIEVED, DOUBTED_AFTER, EARLY, Costs
from engines.executor.kinds import Kind

STEP = Kind("llm", "decode", max_batch=64)
PREFILL = Kind("llm", "prefill", max_units=4096)


def learned(*samples: float, kind: Kind = STEP, batch: int = 1, length: int = 1) -> Costs:
    costs = Costs()
    for seconds in samples:
        costs.observe(kind, batch, length, seconds)
    return costs


def test_nothing_is_known_at_first() -> None:
    costs = Costs()
    assert costs.estimate(STEP, 4) == 0.0
    assert costs.bound(STEP) is None
    assert len(costs) == 0


def test_a_new_cell_takes_the_middle_of_its_first_samples() -> None:
    assert learned(25.0).estimate(STEP) == 25.0
    assert learned(25.0, 0.1).estimate(STEP) == 0.1
    assert learned(25.0, 0.1, 0.2).estimate(STEP) == 0.2


def test_an_outlier_moves_an_average_by_a_tenth_at_most() -> None:
    costs = learned(*[0.1] * 20, 30.0)
    assert costs.estimate(STEP) <= 0.1 * 1.1 + 1e-9


def test_a_lasting_change_is_believed() -> None:
    costs = learned(*[0.01] * 20, *[0.1] * 60)
    assert costs.estimate(STEP) == pytest.approx(0.1, rel=0.1)


def test_estimates_follow_small_changes_only_once_they_add_up() -> None:
    costs = learned(*[0.1] * 10)
    assert costs.estimate(STEP) == pytest.approx(0.1)
    costs.observe(STEP, 1, 1, 0.101)
    assert costs.estimate(STEP) == pytest.approx(0.1)
    for _ in range(100):
        costs.observe(STEP, 1, 1, 0.12)
    assert costs.estimate(STEP) == pytest.approx(0.12, rel=0.06)


def test_between_buckets_it_is_interpolated() -> None:
    costs = Costs()
    costs.seed(PREFILL, 1, 64, 0.02)
    costs.seed(PREFILL, 1, 128, 0.03)
    assert costs.estimate(PREFILL, 1, 96) == pytest.approx(0.025)
    costs.seed(STEP, 2, 1, 0.01)
    costs.seed(STEP, 4, 1, 0.02)
    assert costs.estimate(STEP, 3) == pytest.approx(0.015)


def test_below_the_smallest_known_it_costs_as_much() -> None:
    costs = Costs()
    costs.seed(PREFILL, 4, 256, 0.03)
    assert costs.estimate(PREFILL, 1, 16) == 0.03


def test_beyond_the_largest_known() -> None:
    costs = Costs()
    costs.seed(PREFILL, 1, 64, 0.02)
    assert costs.estimate(PREFILL, 1, 128) == pytest.approx(0.04)  # one length known: in proportion
    costs.seed(PREFILL, 1, 128, 0.03)
    assert costs.estimate(PREFILL, 1, 256) == pytest.approx(0.05)  # else on along the slope
    costs.seed(PREFILL, 1, 256, 0.01)
    assert costs.estimate(PREFILL, 1, 512) == pytest.approx(0.01)  # but never down
    costs.seed(STEP, 1, 1, 0.01)
    assert costs.estimate(STEP, 4) == pytest.approx(0.01 * 1.25**2)  # a batch nobody ran is worth trying


def test_points_that_grew_together_do_not_divide_by_nothing() -> None:
    costs = Costs()
    for _ in range(3):
        costs.observe(PREFILL, 1, 64, 0.01)
        costs.observe(PREFILL, 1, 65, 0.02)
    for _ in range(400):
        costs.observe(PREFILL, 1, 65, 0.02)
    assert 0.01 <= costs.estimate(PREFILL, 1, 65) <= 0.02
    assert costs.estimate(PREFILL, 0, 0) == pytest.approx(0.01)


def test_the_bound_covers_the_dearest_shape_and_its_spread() -> None:
    costs = Costs()
    for seconds in (0.1, 0.12) * 20:
        costs.observe(STEP, 8, 1, seconds)
        costs.observe(STEP, 1, 1, seconds / 10)
    bound = costs.bound(STEP)
    assert bound is not None
    assert 0.12 < bound < 0.25


def test_a_seed_replaces_what_was_learned_and_is_learned_from() -> None:
    costs = learned(9.0)
    costs.seed(STEP, 1, 1, 0.01)
    assert costs.estimate(STEP) == 0.01
    costs.observe(STEP, 1, 1, 9.0)
    assert costs.estimate(STEP) < 0.012


def test_cells_are_bounded_and_the_oldest_goes() -> None:
    costs = Costs(max_cells=3)
    for batch in (1, 2, 4):
        costs.seed(STEP, batch, 1, batch / 100)
    costs.observe(STEP, 1, 1, 0.01)
    costs.seed(PREFILL, 1, 1, 0.5)
    assert len(costs) == 3
    assert set(costs.of(STEP).cells) == {(0, 0), (2, 0)}


def test_remembered_estimates_are_bounded() -> None:
    costs = learned(*[0.1] * EARLY)
    for length in range(5000):
        costs.estimate(STEP, 1, length)
    assert len(costs.of(STEP)._remembered) <= 4096


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 512), st.floats(0.001, 2.0)), min_size=1, max_size=40),
    st.integers(1, 128),
    st.integers(1, 1024),
)
def test_an_estimate_is_a_sane_number(samples: list[tuple[int, int, float]], batch: int, length: int) -> None:
    costs = Costs()
    for seen, units, seconds in samples:
        costs.observe(STEP, seen, units, seconds)
    least = min(seconds for _, _, seconds in samples)
    assert least * 0.99 <= costs.estimate(STEP, batch, length) < 1e5


def test_the_first_of_a_new_shape_is_not_believed_far_beyond_its_neighbours() -> None:
    """It may have compiled for seconds, and what looks dear is avoided: nothing would ever put it right."""
    costs = learned(*[0.01] * 10, batch=8)
    expected = costs.estimate(STEP, 12)
    costs.observe(STEP, 12, 1, 5.0)
    assert costs.estimate(STEP, 12) == pytest.approx(BELIEVED * expected)
    costs.observe(STEP, 12, 1, 0.012)
    assert costs.estimate(STEP, 12) == pytest.approx(0.012, rel=0.05)


def test_a_new_shape_that_is_dear_indeed_is_believed_soon() -> None:
    costs = learned(*[0.01] * 10, batch=1)
    for _ in range(30):
        costs.observe(STEP, 8, 1, 0.2)
    assert costs.estimate(STEP, 8) == pytest.approx(0.2, rel=0.06)


def test_a_dear_shape_that_is_avoided_is_forgotten_and_so_tried_again() -> None:
    costs = learned(*[0.01] * 10, batch=4)
    for _ in range(60):
        costs.observe(STEP, 8, 1, 1.0)  # the GPU was busy with something else
    assert costs.estimate(STEP, 8) > 0.9
    for _ in range(2 * DOUBTED_AFTER):
        costs.observe(STEP, 4, 1, 0.01)
    assert costs.estimate(STEP, 8) < 0.02
    assert len(costs) == 1


def test_what_is_run_or_likely_is_not_forgotten() -> None:
    costs = Costs()
    costs.seed(STEP, 1, 1, 0.01)
    costs.seed(STEP, 8, 1, 0.1)
    costs.seed(STEP, 64, 1, 0.02)
    for _ in range(2 * DOUBTED_AFTER):
        costs.observe(STEP, 1, 1, 0.01)
        costs.observe(STEP, 8, 1, 0.1)
    assert len(costs) == 3
