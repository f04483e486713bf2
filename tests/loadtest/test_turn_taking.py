from __future__ import annotations

import pytest

from loadtest.turn_taking import latency_score, turn_score, yield_score


@pytest.mark.parametrize(
    ("latency_ms", "score"),
    [
        (-5_000, 0),
        (-500, 0),
        (0, 0.5),
        (250, 0.75),
        (500, 1),
        (1_200, 1),
        (2_000, 1),
        (2_750, 0.5),
        (3_500, 0),
        (9_000, 0),
    ],
)
def test_the_curve(latency_ms: float, score: float) -> None:
    assert latency_score(latency_ms) == pytest.approx(score)


@pytest.mark.parametrize(("stop_ms", "score"), [(0, 1), (500, 0.75), (2_000, 0), (4_000, 0)])
def test_yielding(stop_ms: float, score: float) -> None:
    assert yield_score(stop_ms) == pytest.approx(score)


def test_a_turn_is_as_good_as_its_worse_half() -> None:
    assert turn_score(1_000, None) == 1
    assert turn_score(1_000, 500) == pytest.approx(0.75)
    assert turn_score(3_500, 0) == 0
    assert turn_score(None, None) == turn_score(None, 0) == 0
