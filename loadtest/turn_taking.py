"""How well an agent takes its turns: the score of EVA, ServiceNow's framework for evaluating voice agents, as its
``docs/metrics/turn_taking.md`` has it in 2026.

Every turn that wants an answer scores 0 to 1, by what happened in it. Undisturbed: by the latency of the answer, 0 for
one that begins 500 ms before the caller's end or earlier, rising to 1 at 500 ms after it, 1 until 2 s, falling to 0 at
3.5 s. An interrupted agent: by how fast it yields, 1 at once and 0 after 2 s. An agent that talks into the caller's
line: at most a half, less the longer and the more often it does, and by the latency of its answer after it. The lesser
of two counts.

Two things differ. EVA allows 3 s and 5 s in turns with a tool call, which a caller can't hear; here none is allowed
more. EVA leaves out turns without an answer; here they score 0.
"""

from __future__ import annotations

from loadtest.outcome import TurnOutcome

EARLY_MS = 200.0
"""Answers before this are early, those from :data:`LATE_MS` on are late; the score does not depend on it."""
LATE_MS = 2_750.0

_EARLIEST_MS = -500.0
_BEST_FROM_MS = 500.0
_BEST_UNTIL_MS = 2_000.0
_LATEST_MS = 3_500.0
_YIELD_LATEST_MS = 2_000.0
_OVERLAP_MOST_MS = 2_000.0
_CUT_IN_BEST = 0.5
_CUT_INS_MOST = 3


def latency_score(latency_ms: float) -> float:
    """Last sound of the caller to first sound of the answer; negative where the agent was first."""
    rising = (latency_ms - _EARLIEST_MS) / (_BEST_FROM_MS - _EARLIEST_MS)
    falling = (_LATEST_MS - latency_ms) / (_LATEST_MS - _BEST_UNTIL_MS)
    return _within(min(1.0, rising, falling))


def yield_score(stop_ms: float) -> float:
    """Of an agent that was interrupted and was heard for so long after that."""
    return _within(1.0 - stop_ms / _YIELD_LATEST_MS)


def cut_in_score(overlap_ms: float, times: int) -> float:
    """Of an agent that began ``times`` while the caller spoke, and talked over it for ``overlap_ms`` in all."""
    by_count = 1.0 - (times - 1) / (_CUT_INS_MOST - 1)
    return _CUT_IN_BEST * _within(min(1.0 - overlap_ms / _OVERLAP_MOST_MS, by_count))


def turn_score(turn: TurnOutcome) -> float:
    """Of a turn that wants an answer."""
    if turn.voice_to_voice_ms is None and not turn.cut_ins:
        return 0.0
    scores: list[float] = []
    if turn.kind == "interrupt" and turn.stop_ms is not None:
        scores.append(yield_score(turn.stop_ms))
    if turn.cut_ins:
        scores.append(cut_in_score(turn.cut_in_ms or 0.0, turn.cut_ins))
    if turn.voice_to_voice_ms is not None and (turn.cut_ins or not scores):
        scores.append(latency_score(turn.voice_to_voice_ms))
    return min(scores)


def _within(score: float) -> float:
    return max(0.0, min(1.0, score))
