"""Streaming voices on MLX (Qwen3-TTS, Pocket TTS): the first 0.2 s of a segment are there before the rest is made.

The class here is the event loop's half; :class:`engines.tts.mlx_stream_rows.StreamRows` is the thread's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engines.api import EngineError
from engines.executor.tenancy import Tenancy
from engines.executor.thread import MlxExecutor
from engines.tts.mlx_segments import Segments
from engines.tts.mlx_stream_rows import StreamRows
from engines.tts.mlx_voices import Checkpoint, read_checkpoint
from engines.tts.reference_voice import ReferenceVoice, read_references
from streaming.jobs import Synthesis, SynthesisChunk, Synthesize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engines.tts.mlx_speakers import Speaker

_DEFAULT_RATE_HZ = 24_000


class MlxStreamingTts:
    """:class:`engines.api.TextToSpeech` over a checkpoint folder of mlx-audio's ``pocket_tts`` or ``qwen3_tts``.

    ``instances`` segments are spoken at once, over one copy of the weights. ``voices`` are cloned from recordings:
    ``{"name": {"ref_audio": "path.wav", "ref_text": "what it says"}}`` (WAV, 1 to 30 s; Qwen3-TTS Base clones best
    with the text); the first is the default. The models have no speed. Failure codes: ``unknown_voice``,
    ``unsupported_language``, ``not_started``, ``invalid_request``, ``overloaded``, ``bad_audio``,
    ``synthesis_failed``, ``executor_dead``, ``executor_closed``.
    """

    def __init__(
        self,
        model_dir: Path,
        executor: MlxExecutor,
        *,
        instances: int = 2,
        streaming_interval_s: float = 0.2,
        voices: Mapping[str, Mapping[str, str]] | None = None,
        temperature: float | None = None,
        max_segments: int = 64,
        warm: bool = True,
    ) -> None:
        if not 1 <= instances <= 16:
            raise ValueError("instances must be in 1..16")
        if not 0.08 <= streaming_interval_s <= 1.0:
            raise ValueError("streaming_interval_s must be in 0.08..1")
        self._model_dir = model_dir
        self._executor = executor
        self._instances = instances
        self._cloned = dict(voices or {})
        self._temperature = temperature
        self._warm = warm
        self._checkpoint, self._problem = _read(model_dir)
        self._voices = self._checkpoint.voices(self._cloned) if self._checkpoint is not None else ()
        self._segments = Segments(executor, max_segments)
        self._tenancy = Tenancy(executor, self._segments.fail_all)
        self._rows = StreamRows(executor, streaming_interval_s, self.rate_hz, self._segments.answer)
        self._running = False

    @property
    def rate_hz(self) -> int:
        return self._checkpoint.rate_hz if self._checkpoint is not None else _DEFAULT_RATE_HZ

    @property
    def voices(self) -> tuple[str, ...]:
        return self._voices

    async def start(self) -> None:
        """Load, encode the recordings and warm every instance. Raises :class:`EngineError` (``load_failed``,
        ``bad_voice``, and the executor's)."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            raise EngineError("load_failed", self._problem)
        if self._cloned and not checkpoint.clones:
            raise EngineError("bad_voice", f"{self._model_dir} has speakers of its own and can't clone others")
        if not self._voices:
            raise EngineError("load_failed", f"{self._model_dir} has no voice of its own: name a recording to clone")
        references = await asyncio.to_thread(read_references, self._cloned, checkpoint.rate_hz)
        async with self._tenancy.loading(self._model_dir):
            make = partial(_make, checkpoint, references, self._instances, self._temperature)
            count = await self._executor.run(partial(self._rows.load, make))
            language = next(iter(checkpoint.languages.values()), "auto")
            # The first one again at the end, when nothing is left to compile: then its times are what it costs.
            for instance in (*range(count), 0) if self._warm else ():
                # A run each: others' work goes on between two of them.
                await self._executor.run(partial(self._rows.warm, instance, self._voices[0], language))
        self._running = True

    async def close(self) -> None:
        """Cancel everything and free the weights; the executor goes on: its owner closes it."""
        self._running = False
        self._segments.clear()
        await self._tenancy.leave(self._rows.detach)

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        language = self._language(request.language)
        if request.voice not in self._voices:
            self._segments.refuse(request, deliver, "unknown_voice", f"no voice {request.voice!r}")
        elif language is None:
            self._segments.refuse(request, deliver, "unsupported_language", f"not a language of it: {request.language}")
        elif not self._running:
            self._segments.refuse(request, deliver, "not_started", "the engine was not started")
        elif self._segments.open(request, deliver):
            if any(character.isalnum() for character in request.text):
                self._segments.post(request, partial(self._rows.insert, request, language))
                return
            silence = SynthesisChunk(request.epoch, request.segment, b"", self.rate_hz, last=True)
            self._executor.soon(partial(self._segments.answer, request, [silence], True))

    def cancel(self, call: str, epoch: int) -> None:
        if self._segments.cancel(call, epoch):
            self._tenancy.control(partial(self._rows.cancel, call, epoch))

    def _language(self, language: str) -> str | None:
        known = self._checkpoint.languages if self._checkpoint is not None else {}
        return known.get(language.partition("-")[0].lower())


def _read(model_dir: Path) -> tuple[Checkpoint | None, str]:
    try:
        return read_checkpoint(model_dir), ""
    except OSError:
        return None, f"there is no model folder {model_dir}"
    except (ValueError, KeyError, TypeError) as error:
        return None, f"{model_dir}: {type(error).__name__}: {error}"


def _make(
    checkpoint: Checkpoint, references: Sequence[ReferenceVoice], instances: int, temperature: float | None
) -> Sequence[Speaker]:
    from engines.tts.mlx_speakers import load_speakers

    return load_speakers(checkpoint, references, instances, temperature)
