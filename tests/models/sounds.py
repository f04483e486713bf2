"""Ten seconds each of what a telephone brings that is not speech, made from arithmetic: 16 kHz, seeded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engines.api import Pcm16
from streaming.jobs import INPUT_RATE_HZ

SECONDS = 10
_N = SECONDS * INPUT_RATE_HZ
_T = np.arange(_N) / INPUT_RATE_HZ

Wave = npt.NDArray[np.float64]


def coloured(exponent: float, dbfs: float, seed: int = 1) -> Pcm16:
    """Noise whose power falls with frequency to the ``exponent``: 0 white, 1 pink, 2 brown."""
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(_N))
    hertz = np.fft.rfftfreq(_N, 1 / INPUT_RATE_HZ)
    shaped = np.fft.irfft(spectrum * np.maximum(hertz, 20.0) ** (-exponent / 2) * (hertz > 20), _N)
    return at_level(shaped, dbfs)


def at_level(wave: Wave, dbfs: float) -> Pcm16:
    """Scaled to an RMS level; peaks beyond full scale are clipped."""
    rms = float(np.sqrt(np.mean(wave**2)))
    return pcm(wave * (10 ** (dbfs / 20) / rms))


def pcm(wave: Wave) -> Pcm16:
    """From -1..1."""
    samples: Pcm16 = np.clip(wave * 32767, -32768, 32767).astype(np.int16)
    return samples


def silence() -> Pcm16:
    return np.zeros(_N, np.int16)


def room_tone() -> Pcm16:
    """Brown noise and a little mains hum, as a quiet room over a telephone."""
    hum = 0.001 * np.sin(2 * np.pi * 50 * _T) + 0.0005 * np.sin(2 * np.pi * 150 * _T)
    return pcm(coloured(2, -55) / 32768 + hum)


def coughs() -> Pcm16:
    """Bursts of shaped noise, two or three in a row: a blast, then air through a throat that resonates."""
    wave = 0.0005 * np.random.default_rng(2).standard_normal(_N)
    rng = np.random.default_rng(3)
    for start in (0.8, 1.15, 4.0, 4.3, 4.65, 7.6):
        length = int(0.28 * INPUT_RATE_HZ)
        t = np.arange(length) / INPUT_RATE_HZ
        air = rng.standard_normal(length)
        throat = sum(_resonance(air, hertz, 180.0) for hertz in (500.0, 1400.0, 2600.0))
        envelope = np.minimum(t / 0.008, 1) * (np.exp(-t / 0.035) + 0.35 * np.exp(-t / 0.12))
        at = int(start * INPUT_RATE_HZ)
        wave[at : at + length] += 0.5 * throat / np.abs(throat).max() * envelope
    return pcm(wave)


def keyboard() -> Pcm16:
    """Some eight keystrokes a second: a click down, a fainter one up."""
    wave = 0.0005 * np.random.default_rng(4).standard_normal(_N)
    rng = np.random.default_rng(5)
    at = 0.3
    while at < SECONDS - 0.3:
        for offset, level in ((0.0, 0.25), (0.07, 0.12)):
            length = int(0.012 * INPUT_RATE_HZ)
            t = np.arange(length) / INPUT_RATE_HZ
            click = _resonance(rng.standard_normal(length), rng.uniform(1500, 4000), 900.0) * np.exp(-t / 0.003)
            start = int((at + offset) * INPUT_RATE_HZ)
            wave[start : start + length] += level * click / np.abs(click).max()
        at += rng.uniform(0.07, 0.2)
    return pcm(wave)


def dtmf() -> Pcm16:
    """Sixteen keys, 200 ms each, as ITU-T Q.23 has them."""
    low, high = (697, 770, 852, 941), (1209, 1336, 1477, 1633)
    wave = np.zeros(_N)
    for number in range(16):
        start = int((0.5 + number * 0.55) * INPUT_RATE_HZ)
        t = np.arange(INPUT_RATE_HZ // 5) / INPUT_RATE_HZ
        key = np.sin(2 * np.pi * low[number // 4] * t) + np.sin(2 * np.pi * high[number % 4] * t)
        wave[start : start + len(t)] = 0.2 * key
    return pcm(wave)


def ringback() -> Pcm16:
    """The North American ring: 440 and 480 Hz, 2 s of 6."""
    tone = np.sin(2 * np.pi * 440 * _T) + np.sin(2 * np.pi * 480 * _T)
    return pcm(0.15 * tone * (_T % 6 < 2))


def hold_music() -> Pcm16:
    """Plucked chords, a melody with overtones and vibrato, a bass and drums, 100 beats a minute."""
    beat = 0.6
    chords = ((60, 64, 67), (57, 60, 64), (53, 57, 60), (55, 59, 62))
    melody = (72, 74, 76, 72, 69, 72, 76, 74, 77, 76, 72, 69, 71, 74, 79, 74)
    wave = np.zeros(_N)
    for number in range(int(SECONDS / beat)):
        start = int(number * beat * INPUT_RATE_HZ)
        for note in chords[number // 4 % 4]:
            _add(wave, start, _pluck(note, 0.8, 4) * 0.10)
        _add(wave, start, _pluck(melody[number % 16], 0.55, 6, vibrato=0.004) * 0.22)
        _add(wave, start, _pluck(chords[number // 4 % 4][0] - 24, 0.5, 3) * 0.2)
        _add(wave, start, _drum(number) * (0.30 if number % 2 == 0 else 0.18))
    return pcm(wave / np.abs(wave).max() * 0.5)


def _add(wave: Wave, start: int, part: Wave) -> None:
    end = min(len(wave), start + len(part))
    wave[start:end] += part[: end - start]


def _pluck(note: int, seconds: float, overtones: int, vibrato: float = 0.0) -> Wave:
    t = np.arange(int(seconds * INPUT_RATE_HZ)) / INPUT_RATE_HZ
    hertz = 440.0 * 2 ** ((note - 69) / 12)
    phase = 2 * np.pi * hertz * (t + vibrato / 5.5 / 2 / np.pi * np.sin(2 * np.pi * 5.5 * t))
    tone: Wave = sum(np.sin(k * phase) / k**1.5 for k in range(1, overtones + 1)) + np.zeros(len(t))
    return tone * np.minimum(t / 0.01, 1) * np.exp(-t / (seconds / 2.5))


def _drum(number: int) -> Wave:
    t = np.arange(int(0.2 * INPUT_RATE_HZ)) / INPUT_RATE_HZ
    if number % 2 == 0:
        kick: Wave = np.sin(2 * np.pi * (50 * t + 3 * (1 - np.exp(-t * 30)))) * np.exp(-t / 0.06)
        return kick
    snare: Wave = np.random.default_rng(number).standard_normal(len(t)) * 0.5 * np.exp(-t / 0.04)
    return snare


def _resonance(wave: Wave, hertz: float, width_hz: float) -> Wave:
    """Through one formant: the spectrum weighted by a resonance curve."""
    spectrum = np.fft.rfft(wave)
    at = np.fft.rfftfreq(len(wave), 1 / INPUT_RATE_HZ)
    shaped: Wave = np.fft.irfft(spectrum / (1 + ((at - hertz) / width_hz) ** 2), len(wave))
    return shaped


WORDLESS: dict[str, Callable[[], Pcm16]] = {
    "silence": silence,
    "room tone": room_tone,
    "coughs": coughs,
    "white -30": lambda: coloured(0, -30),
    "white -45": lambda: coloured(0, -45),
    "pink -30": lambda: coloured(1, -30),
    "pink -45": lambda: coloured(1, -45),
    "brown -30": lambda: coloured(2, -30),
    "brown -45": lambda: coloured(2, -45),
    "keyboard": keyboard,
    "dtmf": dtmf,
    "ringback": ringback,
    "hold music": hold_music,
}
