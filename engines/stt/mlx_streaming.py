"""Speech-to-text with the streaming models of mlx-audio (Nemotron ASR, Voxtral Realtime): words while the caller
speaks, each computed once.

The class here is the event loop's half; :class:`engines.stt.mlx_sessions.Sessions` is the thread's. No weights of these
models can be had from a package index, so what their words are worth was never seen here: tests run them with random
weights, which shows that audio, finals and copies of sessions go where they should.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from engines.api import EngineError, Pcm16
from engines.executor.tenancy import Tenancy
from engines.executor.thread import ExecutorUnavailableError, MlxExecutor
from engines.stt.mlx_sessions import SessionLimits, Sessions, WaitingAudio
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    OpenTranscription,
    PartialTranscript,
    Transcript,
    TranscriptionFailed,
)

_log = structlog.get_logger(__name__)


class MlxStreamingStt:
    """A :class:`engines.api.SpeechToText` over a checkpoint folder of mlx-audio whose model has
    ``create_streaming_session``.

    ``delay_ms`` is how far the model's words lag behind the audio (its own default if None; what values it takes is the
    model's). A quantum is at most ``feed_s`` of audio and ``tokens_per_quantum`` decode steps. Failure codes:
    ``decode_failed``, ``unsupported_language``, ``overloaded``, ``executor_dead``, ``executor_closed``.
    """

    def __init__(
        self,
        model_dir: Path,
        executor: MlxExecutor,
        *,
        delay_ms: int | None = None,
        feed_s: float = 0.5,
        tokens_per_quantum: int = 16,
        max_streams: int = 64,
        max_waiting_s: float = 30.0,
        cut_s: float = 30.0,
        longest_s: float = 45.0,
    ) -> None:
        self._model_dir = model_dir
        self._executor = executor
        self._max_streams = max_streams
        self._waiting_samples = int(max_waiting_s * INPUT_RATE_HZ)
        limits = SessionLimits(
            feed_samples=int(feed_s * INPUT_RATE_HZ),
            tokens_per_quantum=tokens_per_quantum,
            waiting_samples=self._waiting_samples,
            cut_samples=int(cut_s * INPUT_RATE_HZ),
            longest_samples=int(longest_s * INPUT_RATE_HZ),
            delay_ms=delay_ms,
        )
        self._tenancy = Tenancy(executor, self._on_death)
        self._sessions = Sessions(executor, limits, self._on_transcript)
        self._serials = itertools.count()
        self._open: dict[int, StreamedUtterance] = {}
        self._languages: frozenset[str] | None = None
        self._running = False

    async def start(self) -> None:
        """Start the executor if need be, load the weights and warm a session. Raises :class:`EngineError`."""
        async with self._tenancy.loading(self._model_dir):
            self._languages = await self._executor.run(partial(self._sessions.load, self._model_dir))
        self._running = True

    async def close(self) -> None:
        """Forget every utterance and free the weights; the executor goes on: its owner closes it."""
        self._running = False
        for utterance in list(self._open.values()):
            utterance.close()
        await self._tenancy.leave(self._sessions.detach)

    def open(self, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> StreamedUtterance:
        if not self._running:
            raise EngineError("not_started", "the speech-to-text engine is not running")
        refusal: tuple[str, str] | None = None
        audio, serial = WaitingAudio(self._waiting_samples), next(self._serials)
        if self._languages is not None and request.language not in self._languages:
            refusal = ("unsupported_language", f"this model does not know the language {request.language!r}")
        elif len(self._open) >= self._max_streams:
            refusal = ("overloaded", f"{self._max_streams} utterances are open already")
        else:
            try:
                self._executor.post(partial(self._sessions.open, serial, request, audio))
            except ExecutorUnavailableError as error:
                refusal = (error.code, str(error))
        utterance = StreamedUtterance(self, serial, request, deliver, audio, refusal)
        if refusal is None:
            self._open[serial] = utterance
        return utterance

    # --- for the utterances -----------------------------------------------------------------------------------

    def _wake(self, utterance: StreamedUtterance) -> None:
        key = self._sessions.key_of(utterance.serial, utterance.request)

        def wake() -> None:
            utterance.waking = False  # first: audio that comes from here on wakes again
            self._sessions.wake(key)

        if not utterance.waking:
            utterance.waking = True
            self._tenancy.control(wake)  # if nothing runs there any more, a final will tell

    def _finalize(self, utterance: StreamedUtterance, request: FinalizeTranscription, upto: int) -> None:
        """Raises :class:`ExecutorUnavailableError`."""
        key = self._sessions.key_of(utterance.serial, utterance.request)
        self._executor.post(partial(self._sessions.finalize, key, request, upto), control=True)

    def _forget(self, utterance: StreamedUtterance) -> None:
        if self._open.pop(utterance.serial, None) is not None:
            key = self._sessions.key_of(utterance.serial, utterance.request)
            self._tenancy.control(partial(self._sessions.forget, key))

    def _soon(self, act: Callable[[], None]) -> None:
        self._executor.soon(act)

    def _on_transcript(self, serial: int, transcript: Transcript) -> None:
        """On the loop. What comes for an utterance closed meanwhile ends here."""
        utterance = self._open.get(serial)
        if utterance is not None:
            utterance.tell(transcript)

    def _on_death(self, code: str, message: str) -> None:
        for utterance in list(self._open.values()):
            utterance.fail_pending(code, message)


class StreamedUtterance:
    """A :class:`engines.api.TranscriptionStream`."""

    def __init__(
        self,
        engine: MlxStreamingStt,
        serial: int,
        request: OpenTranscription,
        deliver: Callable[[Transcript], None],
        audio: WaitingAudio,
        refusal: tuple[str, str] | None,
    ) -> None:
        self.serial = serial
        self.request = request
        self.waking = False
        self._engine = engine
        self._deliver = deliver
        self._audio = audio
        self._refusal = refusal
        self._pending: FinalizeTranscription | None = None
        self._closed = False

    def feed(self, pcm: Pcm16) -> None:
        if self._closed or self._refusal is not None or not pcm.size:
            return
        if not self._audio.push(pcm):
            _log.warning("speech was given up: decoding can't keep up", call=self.request.call)
        self._engine._wake(self)

    def finalize(self, request: FinalizeTranscription) -> None:
        if self._closed:
            return
        refusal = self._refusal
        if refusal is None:
            try:
                self._engine._finalize(self, request, self._audio.pushed)
                self._pending = request
            except ExecutorUnavailableError as error:
                refusal = (error.code, str(error))
        if refusal is not None:
            failed = TranscriptionFailed(request.utterance, request.revision, *refusal)
            # Not inside the caller's own call: an engine answers later, always.
            self._engine._soon(partial(self.tell, failed))

    def close(self) -> None:
        self._closed = True
        self._engine._forget(self)

    def tell(self, transcript: Transcript) -> None:
        if self._closed:
            return
        revision = None if isinstance(transcript, PartialTranscript) else transcript.revision
        if self._pending is not None and revision == self._pending.revision:
            self._pending = None
        self._deliver(transcript)

    def fail_pending(self, code: str, message: str) -> None:
        """The thread died: a final that was asked for will get no other answer."""
        if self._pending is not None:
            self.tell(TranscriptionFailed(self._pending.utterance, self._pending.revision, code, message))
