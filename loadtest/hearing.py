"""The caller's own ears: speech-to-text of what was recorded, after the call (extra ``loadtest-stt``).

Uses the faster-whisper library directly with a model directory it is given, so it shares no code with the gateway. The
full 30 s window is used: accuracy matters here and time does not.

Which model: measured on 62 sentences of an agent, each spoken three times by Piper's "joe" (1,362 words). Whisper
tiny.en as it is: 3.5 % of the words wrong; with :data:`PAD_MS` around: 2.5 %, in 0.5 s a sentence. The multilingual
Whisper base: 2.7 % either way, in 1.0 s, for 133 MB more to fetch. So tiny.en it is for English. What is left is mostly
not misheard but written otherwise ("eight" or "8", "France is" or "Francis"): compare sounds, not letters.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from loadtest.measure import Span, voiced_spans
from streaming.audio.resample import Resampler

Pcm16 = npt.NDArray[np.int16]

_MODEL_RATE_HZ = 16_000
_MARGIN_MS = 200

PAD_MS = 500
"""Of silence on both sides: a first word that begins with the clip is often taken for another."""


class Hearing(Protocol):
    def text_of(self, pcm: Pcm16, rate_hz: int) -> str:
        """The words in mono samples, shape (n,); empty if there are none. Blocks."""


class WhisperHearing:
    """faster-whisper on a local CTranslate2 model directory. Raises whatever the library raises if it can't load."""

    def __init__(self, model: Path) -> None:
        library: Any = importlib.import_module("faster_whisper")
        self._model = library.WhisperModel(str(model), device="cpu", compute_type="int8", local_files_only=True)

    def text_of(self, pcm: Pcm16, rate_hz: int) -> str:
        resampler = Resampler(rate_hz, _MODEL_RATE_HZ)
        speech = np.concatenate((resampler.process(pcm), resampler.flush())).astype(np.float32) / 32768.0
        audio = np.pad(speech, _MODEL_RATE_HZ * PAD_MS // 1000)
        language = None if self._model.model.is_multilingual else "en"
        segments, _ = self._model.transcribe(audio, language=language, beam_size=5, condition_on_previous_text=False)
        return " ".join(segment.text.strip() for segment in segments).strip()


def open_hearing(model: Path | None) -> Hearing | None:
    """None without a model or without the extra. Blocks while it loads."""
    if model is None:
        return None
    try:
        return WhisperHearing(model)
    except ImportError:
        return None


def hear_spans(
    agent: Pcm16, rate_hz: int, spans: Sequence[Span], hearing: Hearing, noise_dbfs: float | None = None
) -> list[str | None]:
    """What was heard in each stretch of a recording; None where it is silent (a model asked about silence makes words
    up). Blocks: run it in a worker thread."""
    texts: list[str | None] = []
    margin = rate_hz * _MARGIN_MS // 1000
    for span in spans:
        part = agent[span.start : span.end]
        voiced = voiced_spans(part, rate_hz, noise_dbfs=noise_dbfs)
        if not voiced:
            texts.append(None)
            continue
        begin, end = max(0, voiced[0].start - margin), voiced[-1].end + margin
        texts.append(hearing.text_of(part[begin:end], rate_hz) or None)
    return texts
