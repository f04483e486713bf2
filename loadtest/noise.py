"""Noise to call from: pink, brown, and babble of many voices; loops without a seam, by seed."""

from __future__ import annotations

import enum
import functools

import numpy as np
import numpy.typing as npt

from loadtest.phone_chain import BAND_HZ
from loadtest.voice import LINES, read_line

Pcm16 = npt.NDArray[np.int16]
_Floats = npt.NDArray[np.float64]

LOOP_S = 8
_TALKERS = 8
_LOWEST_HZ = 20.0


class NoiseKind(enum.StrEnum):
    """The values are part of scenarios."""

    PINK = "pink"
    """3 dB less an octave: an office, a fan."""
    BROWN = "brown"
    """6 dB less an octave: a car, wind."""
    BABBLE = "babble"
    """Eight people who talk at once, in the voices of the shipped lines."""


@functools.lru_cache(maxsize=32)
def noise_loop(kind: NoiseKind, rate_hz: int, dbfs: float, *, narrow: bool = False, seed: int = 0) -> Pcm16:
    """Noise of :data:`LOOP_S`, shape (n,), read-only, whose end goes on into its beginning. Its root mean square is
    ``dbfs``; with ``narrow`` it has a telephone's band. Blocks for some 100 ms: make it before it is needed."""
    count = rate_hz * LOOP_S
    random = np.random.default_rng([seed, list(NoiseKind).index(kind), rate_hz])
    if kind is NoiseKind.BABBLE:
        spectrum = np.fft.rfft(_babble(count, rate_hz, random))
    else:
        spectrum = np.fft.rfft(random.standard_normal(count))
    frequency = np.fft.rfftfreq(count, 1 / rate_hz)
    if kind is not NoiseKind.BABBLE:
        spectrum *= np.maximum(frequency, _LOWEST_HZ) ** (-0.5 if kind is NoiseKind.PINK else -1.0)
    spectrum[frequency < (BAND_HZ[0] if narrow else _LOWEST_HZ)] = 0
    if narrow:
        spectrum[frequency > BAND_HZ[1]] = 0
    sound = np.fft.irfft(spectrum, count)
    sound *= 10 ** (dbfs / 20) * 32768 / np.sqrt(np.mean(np.square(sound)))
    pcm = np.rint(np.clip(sound, -32768, 32767)).astype(np.int16)
    pcm.setflags(write=False)
    return pcm


def _babble(count: int, rate_hz: int, random: np.random.Generator) -> _Floats:
    """Every talker says lines in an order and at an offset of its own, round and round."""
    files = sorted(LINES.glob("*.wav"))
    mix = np.zeros(count)
    for _ in range(_TALKERS):
        said: list[Pcm16] = []
        missing = count
        while missing > 0:
            said.append(read_line(files[int(random.integers(len(files)))], rate_hz))
            missing -= len(said[-1])
        talker = np.concatenate(said)[:count].astype(np.float64)
        mix += np.roll(talker / max(1.0, float(np.sqrt(np.mean(np.square(talker))))), int(random.integers(count)))
    return mix
