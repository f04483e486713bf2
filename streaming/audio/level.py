"""Loudness of a block and the quietest place in it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Pcm16 = npt.NDArray[np.int16]

SILENCE_DBFS = -100.0
"""What :func:`rms_dbfs` says of digital silence and of an empty block: below the smallest int16 signal (-90.3)."""


def rms_dbfs(pcm: Pcm16) -> float:
    """Root mean square in dB of full scale (a square wave of 32768 is 0 dBFS); at least :data:`SILENCE_DBFS`."""
    if len(pcm) == 0:
        return SILENCE_DBFS
    power = float(np.mean(np.square(pcm, dtype=np.float64))) / 32768.0**2
    return max(SILENCE_DBFS, 10.0 * math.log10(power)) if power > 0.0 else SILENCE_DBFS


def quietest_dip(pcm: Pcm16, rate_hz: int, window_ms: int = 20) -> int:
    """Sample index of the centre of the window with the least energy.

    Where neighbouring windows tie (digital silence), the middle of the first such run. A block no longer than a window
    gives its own middle.
    """
    window = max(1, rate_hz * window_ms // 1000)
    if len(pcm) <= window:
        return len(pcm) // 2
    # Integers: sums of squares stay exact, so ties are real ties.
    total = np.concatenate(([0], np.cumsum(np.square(pcm, dtype=np.int64))))
    energy = total[window:] - total[:-window]
    first = int(np.argmin(energy))
    louder = np.flatnonzero(energy[first:] > energy[first])
    last = first + int(louder[0]) - 1 if len(louder) else len(energy) - 1
    return (first + last + window) // 2
