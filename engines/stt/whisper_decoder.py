"""Whisper on CTranslate2 with a short mel window: one clip of audio to one hypothesis, on the calling thread.

Whisper was trained on 30 s windows and spends most of its time encoding the padding. CTranslate2's encoder takes a
shorter window, so a clip costs a quarter; but with too little silence after the speech the decoder loops
("... shop. The shop. The shop."). :data:`FINAL_PAD_FRAMES` is where that stops; :data:`PARTIAL_PAD_FRAMES` needs a
repetition penalty, which makes it fit only for words that will be replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engines.api import EngineError, Pcm16
from engines.stt.whisper_batch import Batcher
from streaming.jobs import INPUT_RATE_HZ

FRAME_SAMPLES = 160
"""One mel frame: 10 ms."""

FULL_WINDOW_FRAMES = 3000
FINAL_PAD_FRAMES = 1000
PARTIAL_PAD_FRAMES = 200
REPETITION_PENALTY = 1.3
BUCKET_FRAMES = 100
"""Windows are rounded up to this, so that few shapes exist and each can be warmed."""

MIN_SAMPLES = FRAME_SAMPLES * 3
"""A shorter clip holds no word."""

_WARM_S = (1, 2, 4, 8, 15)
_TOKENS_PER_SECOND = 8
_MIN_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What the decoder made of a clip. ``average_log_probability`` is per token, ``no_speech_probability`` in 0..1."""

    text: str
    no_speech_probability: float
    average_log_probability: float


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    pad_frames: int
    repetition_penalty: float = 1.0


FINAL = DecodeOptions(FINAL_PAD_FRAMES)
PARTIAL = DecodeOptions(PARTIAL_PAD_FRAMES, REPETITION_PENALTY)
RETRY = DecodeOptions(FULL_WINDOW_FRAMES, 1.1)
"""For a hypothesis that loops: the window Whisper was trained on."""

Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class _Shape:
    """Clips of one shape can be decoded as one batch."""

    frames: int
    repetition_penalty: float


@dataclass(frozen=True, slots=True)
class _Clip:
    mel: npt.NDArray[np.float32]
    prompt: list[int]
    max_tokens: int


def max_tokens(samples: int) -> int:
    """More than anyone can say in a clip of that length: where a decoder that has lost its place is stopped."""
    return _MIN_TOKENS + int(samples / INPUT_RATE_HZ * _TOKENS_PER_SECOND)


class WhisperDecoder:
    """Holds the weights. Up to ``workers`` threads may call :meth:`decode` at once, each computing on one core.

    ``device`` "auto" is CUDA where there is a GPU, else the CPU. ``compute_type`` is CTranslate2's; by default int8 on
    the CPU and float16 on CUDA. With ``full_window`` (by default on CUDA, where padding costs little) all clips take
    the 30 s window that Whisper knows best, so that clips of several threads can be one batch of up to ``batch``.

    Raises :class:`EngineError` (``bad_weights``) when ``model_dir`` holds no CTranslate2 Whisper model, and
    ``no_cuda`` when CUDA was asked for and there is none.
    """

    def __init__(
        self,
        model_dir: Path,
        workers: int,
        *,
        device: Device = "cpu",
        compute_type: str = "",
        full_window: bool | None = None,
        batch: int = 8,
    ) -> None:
        import ctranslate2
        from faster_whisper.feature_extractor import FeatureExtractor
        from tokenizers import Tokenizer

        gpus = ctranslate2.get_cuda_device_count() if device != "cpu" else 0
        if device == "cuda" and not gpus:
            raise EngineError("no_cuda", "there is no CUDA GPU, or CTranslate2 can't use it")
        on_gpu = gpus > 0
        try:
            self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
            self._model: Any = ctranslate2.models.Whisper(
                str(model_dir),
                device="cuda" if on_gpu else "cpu",
                compute_type=compute_type or ("float16" if on_gpu else "int8"),
                inter_threads=1 if on_gpu else workers,
                intra_threads=1,
            )
        except Exception as error:  # the extensions raise bare types
            raise EngineError("bad_weights", f"{model_dir} holds no Whisper model: {error}") from error
        self._full_window = on_gpu if full_window is None else full_window
        # On the CPU each thread runs the model itself: a batch is no faster there.
        self._batched = Batcher(self._generate, batch) if on_gpu and batch > 1 else None
        self._features: Any = FeatureExtractor(feature_size=self._model.n_mels)
        self._storage = ctranslate2.StorageView
        self._multilingual: bool = self._model.is_multilingual
        self._first_special = self._id("<|endoftext|>")

    def decode(self, pcm: Pcm16, options: DecodeOptions, language: str = "en") -> Hypothesis:
        """``pcm`` is mono at 16 kHz; what exceeds the 30 s window is cut off."""
        if pcm.size < MIN_SAMPLES:
            return Hypothesis("", 1.0, 0.0)
        mel = self._features(pcm.astype(np.float32) / 32768.0)
        pad_frames = FULL_WINDOW_FRAMES if self._full_window else options.pad_frames
        window = min(FULL_WINDOW_FRAMES, -(-(mel.shape[1] + pad_frames) // BUCKET_FRAMES) * BUCKET_FRAMES)
        padded = np.zeros((mel.shape[0], window), dtype=np.float32)
        used = min(mel.shape[1], window)
        padded[:, :used] = mel[:, :used]
        seconds = pcm.size / INPUT_RATE_HZ
        clip = _Clip(padded, self._prompt(language), _MIN_TOKENS + int(seconds * _TOKENS_PER_SECOND))
        shape = _Shape(window, options.repetition_penalty)
        result = self._batched(shape, clip) if self._batched is not None else self._generate(shape, [clip])[0]
        ids = [token for token in result.sequences_ids[0] if token < self._first_special]
        return Hypothesis(self._tokenizer.decode(ids).strip(), float(result.no_speech_prob), float(result.scores[0]))

    def _generate(self, shape: _Shape, clips: Sequence[_Clip]) -> Sequence[Any]:
        results: Sequence[Any] = self._model.generate(
            self._storage.from_array(np.stack([clip.mel for clip in clips])),
            [clip.prompt for clip in clips],
            beam_size=1,
            max_length=max(clip.max_tokens for clip in clips),
            repetition_penalty=shape.repetition_penalty,
            return_scores=True,
            return_no_speech_prob=True,
        )
        return results

    def supports(self, language: str) -> bool:
        """Whether the model was trained on this ISO 639-1 language."""
        if not self._multilingual:
            return language == "en"
        return self._tokenizer.token_to_id(f"<|{language}|>") is not None

    def warm(self) -> None:
        """Run windows from the shortest to the longest once, so that no caller pays for first-use allocation."""
        for seconds in _WARM_S:
            silence = np.zeros(seconds * INPUT_RATE_HZ, dtype=np.int16)
            self.decode(silence, PARTIAL)
            self.decode(silence, FINAL)

    def close(self) -> None:
        self._model.unload_model()

    def _prompt(self, language: str) -> list[int]:
        start, transcribe = self._id("<|startoftranscript|>"), self._id("<|transcribe|>")
        spoken = [self._id(f"<|{language}|>"), transcribe] if self._multilingual else []
        return [start, *spoken, self._id("<|notimestamps|>")]

    def _id(self, token: str) -> int:
        found: int | None = self._tokenizer.token_to_id(token)
        if found is None:
            raise EngineError("bad_weights", f"the tokenizer has no token {token}")
        return found
