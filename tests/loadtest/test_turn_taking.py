from __future__ import annotations

import pytest

from loadtest.outcome import TurnOutcome
from loadtest.turn_taking import cut_in_score, latency_score, turn_score, yield_score


@pytest.mark.parametrize(
    ("latency_ms", "score"),
    [
        (-500, 0),
        (0, 0.5),
        (200, 0.7),
        (500, 1),
        (2_000, 1),
        (2_750, 0.5),
        (3_000, 1 / 3),
        (3_500, 0),
        (-9_000, 0),
        (9_000, 0),
    ],
)
def test_the_table_of_latencies(latency_ms: float, score: float) -> None:
    assert latency_score(latency_ms) == pytest.approx(score)


@pytest.mark.parametrize(("stop_ms", "score"), [(0, 1), (500, 0.75), (2_000, 0), (4_000, 0)])
def test_yielding(stop_ms: float, score: float) -> None:
    assert yield_score(stop_ms) == pytest.approx(score)


@pytest.mark.parametrize(
    ("overlap_ms", "times", "score"),
    [(0, 1, 0.5), (500, 1, 0.375), (1_000, 1, 0.25), (2_000, 1, 0), (5_000, 1, 0), (0, 2, 0.25), (0, 3, 0), (0, 9, 0)],
)
def test_cutting_in(overlap_ms: float, times: int, score: float) -> None:
    assert cut_in_score(overlap_ms, times) == pytest.approx(score)


@pytest.mark.parametrize(
    ("turn", "score"),
    [
        ({"voice_to_voice_ms": 1_000.0}, 1),
        ({"voice_to_voice_ms": None}, 0),
        ({"kind": "interrupt", "voice_to_voice_ms": 3_500.0, "stop_ms": 500.0}, 0.75),
        ({"kind": "interrupt", "voice_to_voice_ms": None, "stop_ms": 0.0}, 0),
        ({"kind": "interrupt", "voice_to_voice_ms": 2_750.0}, 0.5),
        ({"voice_to_voice_ms": 1_000.0, "cut_ins": 1, "cut_in_ms": 500.0}, 0.375),
        ({"voice_to_voice_ms": 3_500.0, "cut_ins": 1, "cut_in_ms": 0.0}, 0),
        ({"voice_to_voice_ms": None, "cut_ins": 1, "cut_in_ms": 500.0}, 0.375),
    ],
)
def test_a_turn_is_scored_by_what_happened_in_it(turn: dict[str, object], score: float) -> None:
    fields = {"kind": "say", "at_s": 0.0, "in_call_ms": 0.0} | turn
    assert turn_score(TurnOutcome(**fields)) == pytest.approx(score)  # type: ignore[arg-type]
