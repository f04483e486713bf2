from __future__ import annotations

import numpy as np
import pytest

from loadtest.readings import ServerReading
from loadtest.slopes import ALLOWED, MIN_SAMPLES, slope_of, slopes_of

MIB = 1024 * 1024


def memory(per_hour: float, length_s: int = 600, noise: float = 0.0) -> list[tuple[float, float]]:
    chance = np.random.default_rng(2)
    return [(float(s), 100 * MIB + per_hour * s / 3600 + chance.normal(0, noise or 1e-9)) for s in range(length_s)]


def test_the_line_is_found_through_noise() -> None:
    slope = slope_of(memory(60 * MIB, noise=0.5 * MIB), ALLOWED["rss_bytes"])
    assert slope is not None
    assert slope.uncertainty_per_hour is not None
    assert slope.per_hour == pytest.approx(60 * MIB, abs=1.5 * slope.uncertainty_per_hour)
    assert slope.uncertainty_per_hour < 3 * MIB
    assert (slope.from_s, slope.to_s, slope.samples, slope.unit) == (0, 599, 600, "bytes")
    assert slope.last - slope.first == pytest.approx(slope.per_hour * 599 / 3600)
    assert slope.flat is False


def test_noise_that_goes_nowhere_is_flat() -> None:
    slope = slope_of(memory(0, noise=2 * MIB), ALLOWED["rss_bytes"])
    assert slope is not None
    assert slope.flat is True


def test_a_leak_shows_in_ten_minutes() -> None:
    """One task a second that nobody ends, one descriptor a minute."""
    tasks = slope_of([(float(s), 200.0 + s) for s in range(600)], ALLOWED["tasks"])
    fds = slope_of([(float(s), 60.0 + s // 60) for s in range(600)], ALLOWED["fds"])
    assert tasks is not None
    assert fds is not None
    assert (tasks.flat, fds.flat) == (False, False)


def test_what_falls_is_flat() -> None:
    slope = slope_of(memory(-500 * MIB), ALLOWED["rss_bytes"])
    assert slope is not None
    assert slope.flat is True


def test_too_short_or_too_few_says_nothing() -> None:
    few = slope_of(memory(900 * MIB)[:: 600 // (MIN_SAMPLES - 2)], ALLOWED["rss_bytes"])
    short = slope_of(memory(900 * MIB, length_s=100), ALLOWED["rss_bytes"])
    assert few is not None
    assert short is not None
    assert (few.flat, short.flat) == (None, None)
    assert slope_of([], ALLOWED["fds"]) is None
    assert slope_of([(1.0, 5.0), (1.0, 6.0)], ALLOWED["fds"]) is None
    two = slope_of([(1.0, 5.0), (2.0, 6.0)], ALLOWED["fds"])
    assert two is not None
    assert (two.per_hour, two.uncertainty_per_hour) == (3_600, None)


def test_only_what_was_told_within_the_steady_part() -> None:
    readings = [ServerReading(at_s=float(s), rss_bytes=float(s), fds=9.0 if s < 50 else None) for s in range(400)]
    slopes = slopes_of(readings, [(float(s), 700.0) for s in range(400)], (100.0, 300.0))
    assert set(slopes) == {"rss_bytes", "voice_to_voice_ms"}
    assert (slopes["rss_bytes"].from_s, slopes["rss_bytes"].to_s) == (100, 300)
    assert slopes["voice_to_voice_ms"].flat is True


def held(live: list[float], leak_per_hour: float = 0.0) -> list[ServerReading]:
    """One descriptor a call that is up, and a leak beside."""
    return [
        ServerReading(at_s=float(s), fds=20 + calls + leak_per_hour * s / 3600, calls_live=calls)
        for s, calls in enumerate(live)
    ]


def arrivals(growing: float) -> list[float]:
    """Calls up: Poisson, by chance more towards the end."""
    chance = np.random.default_rng(5)
    return [float(chance.poisson(6 + growing * s / 3600)) for s in range(3600)]


def test_more_calls_at_the_end_are_no_leak() -> None:
    by_chance = slopes_of(held(arrivals(growing=2)), [], (0, 3600))["fds"]
    assert by_chance.per_hour == pytest.approx(0, abs=1e-6)
    assert by_chance.flat is True
    leaking = slopes_of(held(arrivals(growing=-4), leak_per_hour=5), [], (0, 3600))["fds"]
    assert leaking.per_hour == pytest.approx(5, abs=1e-6)
    assert leaking.flat is False


def test_where_calls_grow_with_time_alone_neither_is_told_from_the_other() -> None:
    climbing = slopes_of(held([s / 60 for s in range(3600)]), [], (0, 3600))["fds"]
    assert climbing.per_hour == pytest.approx(60)
    assert climbing.flat is False


def test_readings_without_calls_are_left_as_they_are() -> None:
    readings = [ServerReading(at_s=float(s), fds=20 + s / 60) for s in range(600)]
    assert slopes_of(readings, [], (0, 600))["fds"].per_hour == pytest.approx(60)
