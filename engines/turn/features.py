"""The log-mel picture of the last 8 s of speech that the Smart Turn model looks at.

It is the input of OpenAI's Whisper (Radford et al. 2022, section 2.2) cut to 8 s: zeros before the audio where there
is less, the waveform brought to zero mean and unit variance (over the zeros too), 400-sample Hann windows every 160
samples with reflected edges, 80 Slaney mel bands, log10, a floor 8 below the maximum, (x + 4) / 4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from engines.api import Pcm16
from streaming.jobs import INPUT_RATE_HZ

INPUT_SAMPLES = 8 * INPUT_RATE_HZ
BANDS = 80
FRAMES = 800

_FFT_SAMPLES = 400
_HOP_SAMPLES = 160
_HALF = _FFT_SAMPLES // 2
_VARIANCE_FLOOR = 1e-7
_POWER_FLOOR = 1e-10

Doubles = npt.NDArray[np.float64]


def log_mel(pcm: Pcm16) -> npt.NDArray[np.float32]:
    """Features of shape (80, 800) of the last 8 s of ``pcm`` (16 kHz)."""
    speech = pcm[-INPUT_SAMPLES:].astype(np.float32) / np.float32(32768.0)
    padding = INPUT_SAMPLES - len(speech)
    audio = np.zeros(INPUT_SAMPLES, np.float32)
    audio[padding:] = speech
    audio = (audio - audio.mean()) / np.sqrt(audio.var() + np.float32(_VARIANCE_FLOOR))
    # Frames that lie in the padding are all alike (a constant, once the mean is taken off): one stands for them,
    # which makes the picture of a short utterance three times cheaper and changes nothing.
    alike = min((padding - _HALF) // _HOP_SAMPLES + 1, FRAMES) if padding > _HALF else 0
    edged = np.pad(audio.astype(np.float64), _HALF, mode="reflect")
    first = max(alike - 1, 0)
    frames = sliding_window_view(edged, _FFT_SAMPLES)[first * _HOP_SAMPLES :: _HOP_SAMPLES][: FRAMES - first]
    spectrum = np.fft.rfft(frames * _WINDOW, axis=-1)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    bands = np.log10(np.maximum(_in_bands(power), _POWER_FLOOR))
    bands = np.maximum(bands, bands.max() - 8.0)
    picture = np.empty((BANDS, FRAMES), np.float32)
    picture[:, first:] = (bands + 4.0) / 4.0
    picture[:, :first] = picture[:, first : first + 1]
    return picture


def _in_bands(power: Doubles) -> Doubles:
    """Power of shape (frames, 201) in the bands, shape (80, frames). Not by a matrix product: NumPy's would take all
    cores, and its threads spin on each of them for tens of milliseconds after every picture."""
    bands: Doubles = np.add.reduceat(power.T[_BINS] * _WEIGHTS[:, np.newaxis], _STARTS, axis=0)
    return bands


def _hz_of_mel(mel: Doubles) -> Doubles:
    """The Slaney scale: linear below 1 kHz (15 mel), then logarithmic with 27 steps to a factor of 6.4."""
    return np.where(mel < 15.0, mel * 200.0 / 3.0, 1000.0 * np.exp((mel - 15.0) * np.log(6.4) / 27.0))


def _mel_filters() -> Doubles:
    """Triangles of equal area, shape (201, 80)."""
    top_mel = 15.0 + np.log(INPUT_RATE_HZ / 2 / 1000.0) * 27.0 / np.log(6.4)
    corners_hz = _hz_of_mel(np.linspace(0.0, top_mel, BANDS + 2))
    bins_hz = np.linspace(0.0, INPUT_RATE_HZ / 2, _HALF + 1)[:, np.newaxis]
    low, middle, high = corners_hz[:-2], corners_hz[1:-1], corners_hz[2:]
    rising = (bins_hz - low) / (middle - low)
    falling = (high - bins_hz) / (high - middle)
    triangles: Doubles = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low))
    return triangles


_WINDOW: Doubles = np.hanning(_FFT_SAMPLES + 1)[:-1]
_MEL_FILTERS = _mel_filters()
_OF_BAND, _BINS = np.nonzero(_MEL_FILTERS.T)  # sorted by band; every band has a bin
_WEIGHTS = _MEL_FILTERS[_BINS, _OF_BAND]
_STARTS = np.searchsorted(_OF_BAND, np.arange(BANDS))
