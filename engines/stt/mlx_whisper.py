"""Speech-to-text with Whisper on MLX: the calls' clips decode as one batch on the executor's thread.

The class here is the event loop's half; :class:`engines.stt.mlx_whisper_clips.WhisperClips` is the thread's. What is
decoded when, and how long speech is cut, is :mod:`engines.stt.utterance`, as for every Whisper.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from engines.api import EngineError
from engines.executor.tenancy import Tenancy
from engines.executor.thread import ExecutorUnavailableError, MlxExecutor
from engines.stt.mlx_whisper_clips import ClipLimits, WhisperClips
from engines.stt.utterance import Job, Outcome, RefusedError, Utterance
from engines.stt.whisper_decoder import (
    FINAL_PAD_FRAMES,
    FULL_WINDOW_FRAMES,
    PARTIAL_PAD_FRAMES,
    REPETITION_PENALTY,
    DecodeOptions,
)
from streaming.jobs import OpenTranscription, Priority, Transcript

WINDOWS_S = (4, 6, 8, 10, 12, 14, 16, 20, 25, 30)
"""Window lengths: the encoder's cost grows with them, each is a shape of its own, and all are warmed."""

_FRAMES_PER_SECOND = 100


class MlxWhisper:
    """A :class:`engines.api.SpeechToText` over a checkpoint folder that mlx-whisper takes.

    ``final_pad_s`` and ``partial_pad_s`` are how much nothing follows the speech in its window: with too little of it
    Whisper repeats itself, which is what ``repetition_penalty`` is against, for partials. At most half of ``max_jobs``
    are partials, and while there is other work their windows take at most ``partial_share`` of the thread's time; what
    is beyond that is left out. ``pad``: as :class:`engines.stt.mlx_whisper_batch.DecodeBatch` has it; ``warm_s`` bounds
    the warm-up. Failure codes: ``decode_failed``, ``unsupported_language``, ``overloaded``, ``engine_error``,
    ``executor_dead``, ``executor_closed``.
    """

    def __init__(
        self,
        model_dir: Path,
        executor: MlxExecutor,
        *,
        windows_s: Sequence[int] = WINDOWS_S,
        final_pad_s: float = FINAL_PAD_FRAMES / _FRAMES_PER_SECOND,
        partial_pad_s: float = PARTIAL_PAD_FRAMES / _FRAMES_PER_SECOND,
        repetition_penalty: float = REPETITION_PENALTY,
        tokens_per_quantum: int = 8,
        max_jobs: int = 64,
        partial_share: float = 0.25,
        pad: bool | None = None,
        warm_s: float = 60.0,
    ) -> None:
        self._model_dir = model_dir
        self._executor = executor
        buckets = sorted({*(seconds * _FRAMES_PER_SECOND for seconds in windows_s), FULL_WINDOW_FRAMES})
        limits = ClipLimits(
            buckets=tuple(frames for frames in buckets if frames <= FULL_WINDOW_FRAMES),
            tokens_per_quantum=tokens_per_quantum,
            max_rows=max_jobs,
            final=DecodeOptions(int(final_pad_s * _FRAMES_PER_SECOND)),
            partial=DecodeOptions(int(partial_pad_s * _FRAMES_PER_SECOND), repetition_penalty),
            partial_share=partial_share,
            pad=pad,
            warm_s=warm_s,
        )
        self._max_jobs = max_jobs
        self._tenancy = Tenancy(executor, self._on_death)
        self._clips = WhisperClips(executor, limits, self._on_outcome)
        self._serials = itertools.count()
        self._live: dict[int, Job] = {}
        self._serial_of: dict[Job, int] = {}
        self._open: set[Utterance] = set()
        self._languages: frozenset[str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start the executor if need be, load the weights and warm every window. Raises :class:`EngineError`."""
        self._loop = asyncio.get_running_loop()
        async with self._tenancy.loading(self._model_dir):
            self._languages = await self._executor.run(partial(self._clips.load, self._model_dir))

    async def close(self) -> None:
        """Forget every utterance and free the weights; the executor goes on: its owner closes it."""
        for utterance in list(self._open):
            utterance.close()
        self._languages = None
        await self._tenancy.leave(self._clips.detach)

    def open(self, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> Utterance:
        if self._languages is None:
            raise EngineError("not_started", "the speech-to-text engine is not running")
        utterance = Utterance(
            request, deliver, self, supported=request.language in self._languages, closed=self._open.discard
        )
        self._open.add(utterance)
        return utterance

    # --- the utterances' workplace ----------------------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    def submit(self, job: Job, priority: Priority, deadline: float) -> None:
        allowed = self._max_jobs // 2 if job.partial else self._max_jobs
        if len(self._live) >= allowed:
            raise RefusedError("overloaded", f"{len(self._live)} clips are being decoded already")
        serial = next(self._serials)
        try:
            self._executor.post(partial(self._clips.insert, serial, job, priority, deadline))
        except ExecutorUnavailableError as error:
            raise RefusedError(error.code, str(error)) from error
        self._live[serial] = job
        self._serial_of[job] = serial

    def reprioritize(self, job: Job, priority: Priority, deadline: float) -> None:
        if job in self._serial_of:
            key = self._clips.key_of(self._serial_of[job], job)
            self._tenancy.control(partial(self._clips.move, key, priority, deadline))

    def abandon(self, job: Job) -> None:
        serial = self._serial_of.pop(job, None)
        if serial is not None:
            del self._live[serial]
            self._tenancy.control(partial(self._clips.cancel, self._clips.key_of(serial, job)))

    def _on_outcome(self, serial: int, outcome: Outcome) -> None:
        """On the loop. What comes for a job abandoned meanwhile ends here."""
        job = self._live.pop(serial, None)
        if job is not None:
            del self._serial_of[job]
            job.done(job, outcome)

    def _on_death(self, code: str, message: str) -> None:
        for serial in list(self._live):
            self._on_outcome(serial, Outcome(failure=message, code=code))
