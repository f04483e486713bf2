"""The tones of telephone keys (ITU-T Q.23), for wires that carry keys as sound only."""

from __future__ import annotations

import numpy as np

from streaming.audio.g711 import Pcm16

KEYS = frozenset("0123456789*#ABCD")
"""All that a telephone can have; each is its digit."""

TONE_MS = 120
PAUSE_MS = 80
"""ITU-T Q.24: a receiver takes 40 ms of each; networks that compress want more."""

_LEVEL = 7_500.0
"""Of each of the two, in int16: some -13 dBFS, as phones send them."""

_RAMP_MS = 2
_ROWS_HZ = (697.0, 770.0, 852.0, 941.0)
_COLUMNS_HZ = (1209.0, 1336.0, 1477.0, 1633.0)
_GRID = "123A456B789C*0#D"


def keypad_tones(digits: str, rate_hz: int) -> Pcm16:
    """``0-9*#A-D``, each :data:`TONE_MS` long and followed by :data:`PAUSE_MS` of silence; shape (n,). Raises
    :class:`ValueError` for anything else."""
    times = np.arange(rate_hz * TONE_MS // 1000) / rate_hz
    ramp = np.minimum(1.0, np.minimum(times, times[::-1]) * 1000 / _RAMP_MS)
    pause = np.zeros(rate_hz * PAUSE_MS // 1000)
    parts = []
    for digit in digits:
        row, column = divmod(_GRID.index(digit), 4)
        tone = np.sin(2 * np.pi * _ROWS_HZ[row] * times) + np.sin(2 * np.pi * _COLUMNS_HZ[column] * times)
        parts += [tone * ramp * _LEVEL, pause]
    return np.concatenate(parts or [pause[:0]]).astype(np.int16)
