"""Kokoro's samples made fit to play: its own silence cut off, PCM in chunks, word times. Shared by all its backends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engines.api import Pcm16
from engines.tts.kokoro_text import FRAME_SAMPLES, RATE_HZ, KokoroInput
from streaming.jobs import SynthesisChunk, Synthesize, WordEnd

CHUNK_MS = 200
MIN_SPEED, MAX_SPEED = 0.5, 2.0
MIN_PEAK = 0.005
MAX_PEAK = 0.97
_AUDIBLE_DB = -48.0
"""Against the segment's peak: quieter 5 ms frames at its edges are the model's own silence (up to 0.3 s at each)."""
_FRAME_MS = 5
_LEAD_MS = 10
_TAIL_MS = {"": 40, ",": 140, ":": 180, ";": 180, ".": 240, "!": 240, "?": 240}
_FADE_MS = 5


class BadAudioError(Exception):
    """The model made NaN or silence."""


def spoken_pcm(
    samples: npt.NDArray[np.float32],
    durations: Sequence[int] | npt.NDArray[np.int32],
    said: KokoroInput,
    frame_samples: int = FRAME_SAMPLES,
) -> tuple[Pcm16, list[float]]:
    """The PCM of one inference and where each of its words ends in it, in ms.

    ``samples`` are the model's, shape (n,), ``durations`` its predicted frames an id. Kept are a 10 ms lead and a tail
    that suits the punctuation. Only what would clip is made quieter.

    Raises:
        BadAudioError: a sample is not finite, or nothing can be heard.
    """
    if not samples.size or not np.isfinite(samples).all():
        raise BadAudioError("the model made samples that are not numbers")
    peak = float(np.abs(samples).max())
    if peak < MIN_PEAK:
        raise BadAudioError("the model made silence")
    first, last = _audible(samples, peak)
    start = max(0, first - RATE_HZ * _LEAD_MS // 1000)
    end = last + RATE_HZ * _TAIL_MS.get(said.pause, 40) // 1000
    cut = samples[start:end] * (min(1.0, MAX_PEAK / peak) * 32767)
    fade = min(RATE_HZ * _FADE_MS // 1000, cut.size)
    cut[cut.size - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
    pcm = np.zeros(end - start, np.int16)
    pcm[: cut.size] = np.rint(cut)
    ends = np.cumsum(durations) * frame_samples
    at = [min(max(int(ends[word.end - 1]), start), last) for word in said.words]
    return pcm, [(sample - start) * 1000 / RATE_HZ for sample in at]


def chunks(
    request: Synthesize, pcm: Pcm16, said: KokoroInput, ends_ms: Sequence[float], before_samples: int, last: bool
) -> list[SynthesisChunk]:
    """``pcm`` as chunks of at most 200 ms; its words come with the first. ``before_samples`` of the segment went out
    already; ``last`` closes it."""
    offset_ms = before_samples * 1000 / RATE_HZ
    words = tuple(WordEnd(word.text_end, offset_ms + ms) for word, ms in zip(said.words, ends_ms, strict=True))
    step = RATE_HZ * CHUNK_MS // 1000
    starts = range(0, pcm.size, step)
    return [
        SynthesisChunk(
            request.epoch,
            request.segment,
            pcm[at : at + step].astype("<i2", copy=False).tobytes(),
            RATE_HZ,
            last=last and at == starts[-1],
            words=words if at == 0 else (),
        )
        for at in starts
    ]


def _audible(samples: npt.NDArray[np.float32], peak: float) -> tuple[int, int]:
    """The first and the end of what can be heard, as sample indexes."""
    frame = RATE_HZ * _FRAME_MS // 1000
    whole = samples.size // frame * frame
    loudness = np.abs(samples[:whole].reshape(-1, frame)).max(axis=1)
    audible = np.flatnonzero(loudness > peak * 10 ** (_AUDIBLE_DB / 20))
    if not audible.size:
        return 0, int(samples.size)
    return int(audible[0]) * frame, (int(audible[-1]) + 1) * frame
