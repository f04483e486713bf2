"""Does it grow? A straight line by ordinary least squares through readings of a steady run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.readings import ServerReading, Slope

MIN_SAMPLES = 30
MIN_LENGTH_S = 120.0
"""Of shorter runs no slope says anything."""

_HOUR_S = 3_600.0
_TWO_SIDED_95 = 1.96


@dataclass(frozen=True, slots=True)
class Allowance:
    """What growth is still flat: ``per_hour`` or ``share_per_hour`` of where the line begins, whichever is more; and
    never less than ``least`` over the whole run, which is what allocators and pools move by."""

    unit: str
    per_hour: float
    least: float
    share_per_hour: float = 0.0


ALLOWED = {
    "rss_bytes": Allowance("bytes", 4 * 1024 * 1024, 2 * 1024 * 1024, 0.02),
    "fds": Allowance("count", 1.0, 1.0),
    "tasks": Allowance("count", 1.0, 2.0),
    "threads": Allowance("count", 1.0, 1.0),
    "voice_to_voice_ms": Allowance("ms", 10.0, 20.0, 0.05),
}


def slope_of(points: Sequence[tuple[float, float]], allowance: Allowance) -> Slope | None:
    """``points`` are (seconds, value); None of fewer than two moments. ``flat`` is None of too few or too short."""
    if len({at_s for at_s, _ in points}) < 2:
        return None
    count = len(points)
    middle_s = sum(at_s for at_s, _ in points) / count
    mean = sum(value for _, value in points) / count
    spread = sum((at_s - middle_s) ** 2 for at_s, _ in points)
    per_s = sum((at_s - middle_s) * (value - mean) for at_s, value in points) / spread
    from_s, to_s = min(at_s for at_s, _ in points), max(at_s for at_s, _ in points)
    first, last = (mean + per_s * (at_s - middle_s) for at_s in (from_s, to_s))
    uncertainty: float | None = None
    if count > 2:
        errors = sum((value - mean - per_s * (at_s - middle_s)) ** 2 for at_s, value in points)
        uncertainty = _TWO_SIDED_95 * math.sqrt(errors / (count - 2) / spread) * _HOUR_S
    allowed = max(allowance.per_hour, allowance.share_per_hour * abs(first))
    flat: bool | None = None
    if count >= MIN_SAMPLES and to_s - from_s >= MIN_LENGTH_S:
        flat = last - first <= allowance.least or per_s * _HOUR_S - (uncertainty or 0.0) <= allowed
    return Slope(
        unit=allowance.unit,
        per_hour=per_s * _HOUR_S,
        samples=count,
        from_s=from_s,
        to_s=to_s,
        first=first,
        last=last,
        uncertainty_per_hour=uncertainty,
        allowed_per_hour=allowed,
        flat=flat,
    )


def slopes_of(
    readings: Sequence[ServerReading], latencies: Sequence[tuple[float, float]], steady: tuple[float, float]
) -> dict[str, Slope]:
    """Of the server's readings and of voice-to-voice latencies (seconds of the run, ms) within ``steady``, the seconds
    in which the same number of calls was up; nothing of what was not told."""
    series = {
        name: [(reading.at_s, value) for reading in readings if (value := getattr(reading, name)) is not None]
        for name in ("rss_bytes", "fds", "tasks", "threads")
    }
    series["voice_to_voice_ms"] = list(latencies)
    slopes: dict[str, Slope] = {}
    for name, points in series.items():
        slope = slope_of([point for point in points if steady[0] <= point[0] <= steady[1]], ALLOWED[name])
        if slope is not None:
            slopes[name] = slope
    return slopes
