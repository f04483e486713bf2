"""How well an agent takes its turns: the timing curve of EVA (ServiceNow's framework for evaluating voice agents).

Of every turn by its latency alone: 0 for an agent that begins 500 ms before the caller's end or earlier, rising to 1 at
500 ms after it, 1 until 2 s, falling to 0 at 3.5 s. An interrupted agent is scored
by how fast it yields as well, 1 for at once and 0 for 2 s, and the lesser of both counts. A turn without an answer
scores 0. EVA allows 3 s and 5 s in turns with a tool call, which a caller can't hear; here none is allowed more.
"""

from __future__ import annotations

EARLIEST_MS = -500.0
ON_TIME_FROM_MS = 500.0
ON_TIME_UNTIL_MS = 2_000.0
LATEST_MS = 3_500.0
YIELD_LATEST_MS = 2_000.0


def latency_score(latency_ms: float) -> float:
    """0 to 1. Negative: the agent began while the caller spoke."""
    rising = (latency_ms - EARLIEST_MS) / (ON_TIME_FROM_MS - EARLIEST_MS)
    falling = (LATEST_MS - latency_ms) / (LATEST_MS - ON_TIME_UNTIL_MS)
    return max(0.0, min(1.0, rising, falling))


def yield_score(stop_ms: float) -> float:
    """0 to 1."""
    return max(0.0, min(1.0, 1.0 - stop_ms / YIELD_LATEST_MS))


def turn_score(latency_ms: float | None, stop_ms: float | None) -> float:
    """Of a turn that wants an answer. ``stop_ms`` is None where the agent was not interrupted."""
    answered = 0.0 if latency_ms is None else latency_score(latency_ms)
    return answered if stop_ms is None else min(answered, yield_score(stop_ms))
