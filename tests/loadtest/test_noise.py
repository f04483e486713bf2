from __future__ import annotations

import numpy as np
import pytest

from loadtest.noise import LOOP_S, NoiseKind, Pcm16, noise_loop
from streaming.audio.level import rms_dbfs

RATE_HZ = 8_000


def power_db(pcm: Pcm16, low_hz: float, high_hz: float) -> float:
    spectrum = np.abs(np.fft.rfft(pcm.astype(np.float64))) ** 2
    frequency = np.fft.rfftfreq(len(pcm), 1 / RATE_HZ)
    return float(10 * np.log10(spectrum[(frequency >= low_hz) & (frequency < high_hz)].sum() + 1e-9))


@pytest.mark.parametrize("kind", NoiseKind)
def test_noise_is_as_loud_as_asked_and_the_same_every_time(kind: NoiseKind) -> None:
    loop = noise_loop(kind, RATE_HZ, -40.0)
    assert len(loop) == LOOP_S * RATE_HZ
    assert rms_dbfs(loop) == pytest.approx(-40, abs=0.2)
    again = noise_loop.__wrapped__(kind, RATE_HZ, -40.0)
    assert np.array_equal(loop, again)
    assert not np.array_equal(loop, noise_loop(kind, RATE_HZ, -40.0, seed=1))


@pytest.mark.parametrize("kind", NoiseKind)
def test_the_end_goes_on_into_the_beginning(kind: NoiseKind) -> None:
    loop = noise_loop(kind, RATE_HZ, -30.0).astype(np.int32)
    steps = np.abs(np.diff(loop))
    assert abs(loop[0] - loop[-1]) <= steps.max()


@pytest.mark.parametrize(("kind", "an_octave_db"), [(NoiseKind.PINK, 0.0), (NoiseKind.BROWN, -3.0)])
def test_the_colour_is_a_slope(kind: NoiseKind, an_octave_db: float) -> None:
    loop = noise_loop(kind, RATE_HZ, -30.0)
    low, high = power_db(loop, 250, 500), power_db(loop, 1_000, 2_000)
    assert high - low == pytest.approx(2 * an_octave_db, abs=1)


@pytest.mark.parametrize("kind", NoiseKind)
def test_over_a_telephone_it_has_a_telephones_band(kind: NoiseKind) -> None:
    loop = noise_loop(kind, RATE_HZ, -30.0, narrow=True)
    inside = power_db(loop, 300, 3_400)
    assert power_db(loop, 0, 280) < inside - 40
    assert power_db(loop, 3_450, 4_000) < inside - 40
