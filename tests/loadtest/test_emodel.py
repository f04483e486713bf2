from __future__ import annotations

import pytest

from loadtest.emodel import DEFAULT_R, G711, delay_impairment, mos, r_factor


def test_a_perfect_narrowband_call() -> None:
    assert r_factor(G711, delay_ms=0) == DEFAULT_R
    assert mos(DEFAULT_R) == pytest.approx(4.41, abs=0.005)


def test_delay_costs_nothing_at_first_and_then_more_and_more() -> None:
    """The usual reading of G.107: about 150 ms is felt by few, 400 ms by most."""
    assert [delay_impairment(delay_ms) for delay_ms in (0, 50, 100)] == [0, 0, 0]
    costs = [delay_impairment(delay_ms) for delay_ms in (110, 150, 200, 300, 400, 800)]
    assert costs == sorted(costs)
    assert delay_impairment(150) < 1.5
    assert delay_impairment(200) == pytest.approx(3.0, abs=0.3)
    assert delay_impairment(400) == pytest.approx(24.0, abs=1.0)


def test_loss_costs_by_how_it_is_heard() -> None:
    concealed = r_factor(G711, delay_ms=0, concealed=0.01)
    silent = r_factor(G711, delay_ms=0, silent=0.01)
    assert DEFAULT_R - concealed == pytest.approx(95 * 1 / (1 + 25.1))
    assert DEFAULT_R - silent == pytest.approx(95 * 1 / (1 + 4.3))
    assert r_factor(G711, delay_ms=0, concealed=1.0, silent=1.0) == pytest.approx(DEFAULT_R - 95)


@pytest.mark.parametrize(
    ("r", "quality"), [(-5, 1.0), (0, 1.0), (3, 1.0), (50, 2.58), (80, 4.02), (100, 4.5), (120, 4.5)]
)
def test_mos_of_annex_b(r: float, quality: float) -> None:
    assert mos(r) == pytest.approx(quality, abs=0.01)
