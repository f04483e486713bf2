"""Kokoro on MLX: segments of all calls that are alike in length are spoken as one batch on the executor's thread.

The class here is the event loop's half; :class:`engines.tts.mlx_kokoro_rows.KokoroRows` is the thread's. A segment is
one inference (Kokoro does not stream), cut into several only past the last bucket of ids. Word times are exact: they
are the model's own durations.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import structlog

from engines.api import EngineError
from engines.executor.tenancy import Tenancy
from engines.executor.thread import MlxExecutor
from engines.tts.kokoro_text import RATE_HZ, KokoroInput, KokoroText, voice_names
from engines.tts.mlx_kokoro_rows import FRAME_BUCKETS, ID_BUCKETS, Buckets, KokoroRows
from engines.tts.mlx_segments import Segments
from engines.tts.spoken_audio import bounded_speed
from streaming.jobs import Synthesis, SynthesisChunk, Synthesize

_log = structlog.get_logger(__name__)


class MlxKokoro:
    """:class:`engines.api.TextToSpeech` over a checkpoint folder: ``config.json``, ``*.safetensors`` and
    ``voices/NAME.safetensors``; ``lexicon_dir`` and ``g2p_dir`` hold the catalogue's ``misaki-en`` and ``g2p-en``.

    ``voices`` are offered, the first as the default (left out: the English ones that are there).
    ``id_buckets`` are lengths of text (phonemes and two), ``frame_buckets`` lengths of speech (25 ms each); every pair
    of batch size and bucket is run once at the start, which takes about a second each on CUDA, and for ``warm_s`` at
    most (those of one segment in any case). Failure codes:
    ``unknown_voice``, ``unsupported_language``, ``not_started``, ``invalid_request``, ``overloaded``, ``bad_audio``,
    ``synthesis_failed``, ``executor_dead``, ``executor_closed``.
    """

    rate_hz = RATE_HZ

    def __init__(
        self,
        model_dir: Path,
        lexicon_dir: Path,
        g2p_dir: Path,
        executor: MlxExecutor,
        *,
        voices: Sequence[str] | None = None,
        max_segments: int = 128,
        max_batch: int = 8,
        id_buckets: Sequence[int] = ID_BUCKETS,
        frame_buckets: Sequence[int] = FRAME_BUCKETS,
        warm: bool = True,
        warm_s: float = 120.0,
    ) -> None:
        self._folders = (model_dir, lexicon_dir, g2p_dir)
        self._executor = executor
        self._warm = warm
        self._warm_s = warm_s
        batches = tuple(size for size in (1, 2, 4, 8, 16, 32) if size < max_batch)
        self._buckets = Buckets(
            tuple(id_buckets),
            tuple(frame_buckets),
            (*batches, max_batch),
            id_units=4 * id_buckets[-1],
            frame_units=frame_buckets[-1],
        )
        self._voices = tuple(voices) if voices is not None else voice_names(model_dir, ".safetensors")
        self._segments = Segments(executor, max_segments)
        self._tenancy = Tenancy(executor, self._segments.fail_all)
        self._rows = KokoroRows(executor, self._buckets, self._segments.answer)
        self._text: KokoroText | None = None

    @property
    def voices(self) -> tuple[str, ...]:
        return self._voices

    async def start(self) -> None:
        model_dir = self._folders[0]
        async with self._tenancy.loading(model_dir):
            missing = [name for name in self._voices if not (model_dir / "voices" / f"{name}.safetensors").is_file()]
            if missing or not self._voices:
                names = " ".join(missing) or "for English"
                raise EngineError("load_failed", f"no voice {names} in {model_dir / 'voices'}")
            text = await asyncio.to_thread(KokoroText.load, *self._folders, self._buckets.max_phonemes)
            await self._executor.run(partial(self._rows.load, model_dir, self._voices))
            if self._warm:
                await self._warm_shapes()
        self._text = text

    async def _warm_shapes(self) -> None:
        """One segment alone of every length first: larger batches are what a spent budget leaves out."""
        end = self._executor.now() + self._warm_s
        for shape in sorted(self._buckets.shapes(), key=lambda shape: shape[1]):
            if shape[1] > 1 and self._executor.now() >= end:
                _log.warning("the time for warming is spent: larger batches of segments will stall once", rows=shape[1])
                return
            # A run each: others' work goes on between two compilations.
            await self._executor.run(partial(self._rows.warm, *shape))

    async def close(self) -> None:
        """Cancel everything and free the weights; the executor goes on: its owner closes it."""
        self._text = None
        self._segments.clear()
        await self._tenancy.leave(self._rows.detach)

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        text = self._text
        if request.voice not in self._voices:
            self._segments.refuse(request, deliver, "unknown_voice", f"no voice {request.voice!r}")
        elif request.language.partition("-")[0].lower() != "en":
            self._segments.refuse(request, deliver, "unsupported_language", "this voice speaks English only")
        elif text is None:
            self._segments.refuse(request, deliver, "not_started", "the engine was not started")
        elif self._segments.open(request, deliver):
            # Looking words up takes a millisecond or two: neither the loop's nor the GPU's.
            phonemes = asyncio.get_running_loop().run_in_executor(None, text.inputs, request.text)
            phonemes.add_done_callback(partial(self._insert, request))

    def cancel(self, call: str, epoch: int) -> None:
        if self._segments.cancel(call, epoch):
            self._tenancy.control(partial(self._rows.cancel, call, epoch))

    def _insert(self, request: Synthesize, phonemes: asyncio.Future[list[KokoroInput]]) -> None:
        if phonemes.cancelled() or not self._segments.is_open(request):
            with contextlib.suppress(asyncio.CancelledError):
                phonemes.exception()  # looked at, or asyncio would log it
            return
        error = phonemes.exception()
        if error is not None:
            _log.error("text could not be made phonemes", error=str(error), error_type=type(error).__name__)
            self._segments.fail(request, "synthesis_failed", f"{type(error).__name__}: {error}")
            return
        inputs = phonemes.result()
        if not inputs:
            silence = SynthesisChunk(request.epoch, request.segment, b"", RATE_HZ, last=True)
            self._segments.answer(request, [silence], last=True)
            return
        self._segments.post(request, partial(self._rows.insert, request, bounded_speed(request.speed), inputs))
