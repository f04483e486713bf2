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
_APART = 0.05
"""Of their spread: less, and time and calls are one."""


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


def at_equal_load(readings: Sequence[ServerReading], name: str) -> list[tuple[float, float]]:
    """(seconds, value) of one reading as it would be with the mean number of calls up: less what each call more goes
    with, by least squares on time and calls together. Where the two move together (or nobody tells how many calls are
    up) neither can be told from the other, and the values are left as they are."""
    known = [
        (reading.at_s, value, reading.calls_live)
        for reading in readings
        if (value := getattr(reading, name)) is not None
    ]
    points = [(at_s, value) for at_s, value, _ in known]
    told = [(at_s, value, calls) for at_s, value, calls in known if calls is not None]
    if not told or len(told) < len(known):
        return points
    count = len(told)
    middle_s, mean, usual = (sum(column) / count for column in zip(*told, strict=True))
    moments = [(at_s - middle_s, each - mean, calls - usual) for at_s, each, calls in told]
    by_time, by_calls = sum(t * t for t, _, _ in moments), sum(c * c for _, _, c in moments)
    together = sum(t * c for t, _, c in moments)
    apart = by_time * by_calls - together * together
    if apart <= _APART * by_time * by_calls:
        return points
    with_calls, with_time = sum(v * c for _, v, c in moments), sum(v * t for t, v, _ in moments)
    a_call = (with_calls * by_time - with_time * together) / apart
    return [(at_s, each - a_call * (calls - usual)) for at_s, each, calls in told]


def slopes_of(
    readings: Sequence[ServerReading], latencies: Sequence[tuple[float, float]], steady: tuple[float, float]
) -> dict[str, Slope]:
    """Of the server's readings and of voice-to-voice latencies (seconds of the run, ms) within ``steady``, the seconds
    in which calls were up as planned; nothing of what was not told. What a call that is up holds is no growth: the
    readings are brought to the same number of calls (:func:`at_equal_load`)."""
    steadily = [reading for reading in readings if steady[0] <= reading.at_s <= steady[1]]
    series = {name: at_equal_load(steadily, name) for name in ("rss_bytes", "fds", "tasks", "threads")}
    series["voice_to_voice_ms"] = [point for point in latencies if steady[0] <= point[0] <= steady[1]]
    slopes: dict[str, Slope] = {}
    for name, points in series.items():
        slope = slope_of(points, ALLOWED[name])
        if slope is not None:
            slopes[name] = slope
    return slopes
