"""A model's samples made fit to play: its own silence cut off, PCM in chunks, word times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engines.api import Pcm16
from streaming.jobs import SynthesisChunk, Synthesize, WordEnd

CHUNK_MS = 200
MIN_SPEED, MAX_SPEED = 0.5, 2.0
MAX_PEAK = 0.97
_AUDIBLE_DB = -48.0
"""Against the segment's peak: quieter 5 ms frames at its edges are the model's own silence (up to 0.3 s at each)."""
_FRAME_MS = 5
_LEAD_MS = 10
_TAIL_MS = {"": 40, ",": 140, ":": 180, ";": 180, ".": 240, "!": 240, "?": 240}
_FADE_MS = 5


class BadAudioError(Exception):
    """The model made NaN or silence."""


class WordOfText(Protocol):
    @property
    def text_end(self) -> int:
        """The index after the word in the segment's text."""


def bounded_speed(speed: float) -> float:
    return min(max(speed, MIN_SPEED), MAX_SPEED) if math.isfinite(speed) else 1.0


def trimmed(
    samples: npt.NDArray[np.float32],
    word_ends: Sequence[int],
    pause: str,
    rate_hz: int,
    *,
    min_peak: float,
    gain: float = 1.0,
) -> tuple[Pcm16, list[float]]:
    """The PCM of one inference and where each of its words ends in it, in ms.

    ``samples`` are the model's, shape (n,), ``word_ends`` indexes of them. Kept are a 10 ms lead and a tail that suits
    the punctuation ``pause``. The ``gain`` is less only where it would clip.

    Raises:
        BadAudioError: a sample is not finite, or nothing can be heard: the loudest is under ``min_peak``.
    """
    if not samples.size or not np.isfinite(samples).all():
        raise BadAudioError("the model made samples that are not numbers")
    peak = float(np.abs(samples).max())
    if peak < min_peak:
        raise BadAudioError("the model made silence")
    first, last = _audible(samples, peak, rate_hz)
    start = max(0, first - rate_hz * _LEAD_MS // 1000)
    end = last + rate_hz * _TAIL_MS.get(pause, 40) // 1000
    cut = samples[start:end] * (min(gain, MAX_PEAK / peak) * 32767)
    fade = min(rate_hz * _FADE_MS // 1000, cut.size)
    cut[cut.size - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
    pcm = np.zeros(end - start, np.int16)
    pcm[: cut.size] = np.rint(cut)
    return pcm, [(min(max(at, start), last) - start) * 1000 / rate_hz for at in word_ends]


def chunks(
    request: Synthesize,
    pcm: Pcm16,
    rate_hz: int,
    *,
    last: bool,
    words: Sequence[WordOfText] = (),
    ends_ms: Sequence[float] = (),
    before_samples: int = 0,
) -> list[SynthesisChunk]:
    """``pcm`` as chunks of at most 200 ms; its ``words``, which end in it at ``ends_ms`` (empty where the model does
    not tell), come with the first. ``before_samples`` of the segment went out already; ``last`` closes it."""
    offset_ms = before_samples * 1000 / rate_hz
    ends = tuple(WordEnd(word.text_end, offset_ms + ms) for word, ms in zip(words, ends_ms, strict=False))
    step = rate_hz * CHUNK_MS // 1000
    starts = range(0, pcm.size, step)
    return [
        SynthesisChunk(
            request.epoch,
            request.segment,
            pcm[at : at + step].astype("<i2", copy=False).tobytes(),
            rate_hz,
            last=last and at == starts[-1],
            words=ends if at == 0 else (),
        )
        for at in starts
    ]


def _audible(samples: npt.NDArray[np.float32], peak: float, rate_hz: int) -> tuple[int, int]:
    """The first and the end of what can be heard, as sample indexes."""
    frame = rate_hz * _FRAME_MS // 1000
    whole = samples.size // frame * frame
    loudness = np.abs(samples[:whole].reshape(-1, frame)).max(axis=1)
    audible = np.flatnonzero(loudness > peak * 10 ** (_AUDIBLE_DB / 20))
    if not audible.size:
        return 0, int(samples.size)
    return int(audible[0]) * frame, (int(audible[-1]) + 1) * frame
