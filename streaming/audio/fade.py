"""How a voice that is cut off falls silent: a step from a loud sample would be a click."""

from __future__ import annotations

import numpy as np

from streaming.audio.g711 import Pcm16

FADE_MS = 5
_MIN_STEP = 64
"""A quieter end makes no click."""


def falling_silent(last_sample: int, samples: int, rate_hz: int) -> Pcm16:
    """What follows ``last_sample``: shape (``samples``,), silence after at most :data:`FADE_MS`."""
    frame = np.zeros(samples, np.int16)
    if abs(last_sample) >= _MIN_STEP:
        fade = min(samples, rate_hz * FADE_MS // 1000)
        frame[:fade] = last_sample * np.linspace(1.0, 0.0, fade, endpoint=False) ** 2
    return frame
