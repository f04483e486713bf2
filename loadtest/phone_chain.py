"""What a telephone does to a voice: the band, the level control, the codec. Pure functions on mono int16.

Each is a model of the network's, not of one telephone: the band is that of ITU-T G.712 (300 to 3,400 Hz), the level
control a slow compressor towards :data:`TARGET_DBFS`, the codec mu-law (G.711) at 8 kHz.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streaming.audio.g711 import decode_mulaw, encode_mulaw
from streaming.audio.resample import Resampler

Pcm16 = npt.NDArray[np.int16]
_Floats = npt.NDArray[np.float64]

BAND_HZ = (300.0, 3_400.0)
TARGET_DBFS = -20.0
"""Level of speech that the level control leaves as it is."""

MAX_GAIN_DB = 12.0
PHONE_HZ = 8_000

_RATIO = 2.0  # a line 10 dB too soft comes out 5 dB too soft
_BLOCK_MS = 10
_ATTACK_MS = 20.0
_RELEASE_MS = 300.0
_GATE_DBFS = -50.0  # what is softer is no speech: its gain stays what it was, so that pauses are not pumped up
_TAPS_MS = 16

_MARGIN_DB = 15.9


@dataclass(frozen=True, slots=True)
class PhoneChain:
    """Which parts of it a voice goes through, in this order."""

    band: bool = True
    agc: bool = True
    mulaw: bool = True


def through_phone(pcm: Pcm16, rate_hz: int, chain: PhoneChain) -> Pcm16:
    """The voice as the far end gets it, at the same rate, equally long. Raises :class:`ValueError` for a rate that
    can't be resampled."""
    length = len(pcm)
    if chain.band:
        pcm = band_limited(pcm, rate_hz)
    if chain.agc:
        pcm = levelled(pcm, rate_hz)
    if chain.mulaw:
        narrow = _resampled(pcm, rate_hz, PHONE_HZ)
        pcm = _resampled(decode_mulaw(encode_mulaw(narrow)), PHONE_HZ, rate_hz)
    return np.concatenate((pcm[:length], np.zeros(max(0, length - len(pcm)), dtype=np.int16)))


def band_limited(pcm: Pcm16, rate_hz: int) -> Pcm16:
    """Through a linear-phase band-pass of :data:`BAND_HZ`, its delay taken out: shape (n,) again."""
    taps = _taps(rate_hz)
    half = len(taps) // 2
    return _clipped(np.convolve(np.pad(pcm.astype(np.float64), half), taps, mode="valid"))


def levelled(pcm: Pcm16, rate_hz: int) -> Pcm16:
    """Through a compressor of 2:1 around :data:`TARGET_DBFS`, which follows louder sound at once and softer slowly."""
    block = rate_hz * _BLOCK_MS // 1000
    count = len(pcm) // block
    if count == 0:
        return pcm
    power = np.mean(np.square(pcm[: count * block].reshape(count, block), dtype=np.float64), axis=1) / 32768.0**2
    level_db = 10 * np.log10(np.maximum(power, 1e-12))
    attack, release = (1 - math.exp(-_BLOCK_MS / ms) for ms in (_ATTACK_MS, _RELEASE_MS))
    heard = level_db[level_db >= _GATE_DBFS]
    envelope_db = float(heard[0]) if len(heard) else TARGET_DBFS
    gains_db = np.empty(count)
    for index, now_db in enumerate(level_db):
        if now_db >= _GATE_DBFS:
            envelope_db += (attack if now_db > envelope_db else release) * (now_db - envelope_db)
        gains_db[index] = (TARGET_DBFS - envelope_db) * (1 - 1 / _RATIO)
    np.clip(gains_db, -MAX_GAIN_DB, MAX_GAIN_DB, out=gains_db)
    centres = (np.arange(count) + 0.5) * block
    gain_db = np.interp(np.arange(len(pcm)), centres, gains_db)
    return _clipped(pcm * 10 ** (gain_db / 20))


def speech_dbfs(pcm: Pcm16, rate_hz: int) -> float | None:
    """Level of the speech in a line, its pauses left out; None of silence.

    After ITU-T P.56's idea: active is what lies less than 15.9 dB below the active level itself, found by iteration
    over blocks of 20 ms (P.56 works on an envelope, so levels differ by some tenths of a dB).
    """
    block = rate_hz * 20 // 1000
    count = len(pcm) // block
    if count == 0:
        return None
    power = np.mean(np.square(pcm[: count * block].reshape(count, block), dtype=np.float64), axis=1) / 32768.0**2
    level = float(power.mean())
    if level <= 0:
        return None
    for _ in range(8):
        level = float(power[power >= level * 10 ** (-_MARGIN_DB / 10)].mean())
    return 10 * math.log10(level)


@functools.lru_cache(maxsize=8)
def _taps(rate_hz: int) -> _Floats:
    """A windowed sinc; the upper edge is left out where the rate has no room for it."""
    count = rate_hz * _TAPS_MS // 1000 | 1
    n = np.arange(count) - count // 2
    low, high = BAND_HZ[0] / rate_hz, min(BAND_HZ[1] / rate_hz, 0.5)
    ideal = 2 * high * np.sinc(2 * high * n) - 2 * low * np.sinc(2 * low * n)
    return np.asarray(ideal * np.blackman(count))


def _resampled(pcm: Pcm16, from_hz: int, to_hz: int) -> Pcm16:
    if from_hz == to_hz:
        return pcm
    resampler = Resampler(from_hz, to_hz)
    return np.concatenate((resampler.process(pcm), resampler.flush()))


def _clipped(sound: _Floats) -> Pcm16:
    return np.rint(np.clip(sound, -32768, 32767)).astype(np.int16)
