"""Kokoro's samples and durations as PCM with word times. Shared by all its backends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engines.api import Pcm16
from engines.tts.kokoro_text import FRAME_SAMPLES, RATE_HZ, KokoroInput
from engines.tts.spoken_audio import trimmed

MIN_PEAK = 0.005


def spoken_pcm(
    samples: npt.NDArray[np.float32],
    durations: Sequence[int] | npt.NDArray[np.int32],
    said: KokoroInput,
    frame_samples: int = FRAME_SAMPLES,
) -> tuple[Pcm16, list[float]]:
    """The PCM of one inference and where each of its words ends in it, in ms.

    ``samples`` are the model's, shape (n,), ``durations`` its predicted frames an id. Raises
    :class:`engines.tts.spoken_audio.BadAudioError`.
    """
    ends = np.cumsum(durations) * frame_samples
    return trimmed(samples, [int(ends[word.end - 1]) for word in said.words], said.pause, RATE_HZ, min_peak=MIN_PEAK)
