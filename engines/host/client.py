"""Engines that live in a host, as a call sees them: the protocols of :mod:`engines.api` over the connection.

While a host is down or does not answer, and until its models are loaded again, every request fails with ``host_down``;
what was under way when it died, or ceased to answer, failed with ``host_lost``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from engines.api import EngineError, Pcm16, TranscriptionStream
from engines.host import protocol as wire
from engines.host.jobs import Job, Jobs, ends, wire_time
from engines.host.protocol import TooLargeError
from engines.registry import BackendSpec
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    Generate,
    Generation,
    GenerationFailed,
    OpenTranscription,
    PartialTranscript,
    Priority,
    Synthesis,
    SynthesisFailed,
    Synthesize,
    Transcript,
    TranscriptionFailed,
)

HOST_LOST = "host_lost"
HOST_DOWN = "host_down"
BLOCK_SAMPLES = INPUT_RATE_HZ // 10
"""Caller audio is sent in blocks of 100 ms, and what is left of one before its transcript is asked for."""


class Link(Protocol):
    """The host, as its engines need it."""

    @property
    def jobs(self) -> Jobs: ...

    def send(self, message: Any) -> None:
        """Raises :class:`TooLargeError`. What cannot be taken ends the connection, and with it every job."""

    def why_down(self, engine: int) -> str | None:
        """None when this engine takes requests."""

    async def load(self, engine: HostedEngine) -> None:
        """Raises :class:`EngineError`."""

    async def unload(self, engine: HostedEngine) -> None: ...


class HostedEngine:
    """The life of one engine in a host: loaded by :meth:`start`, and again whenever the host had to be restarted."""

    def __init__(self, link: Link, number: int, spec: BackendSpec, weights: Iterable[Path]) -> None:
        self._link = link
        self.number = number
        self.spec = spec
        self.weights = tuple(str(folder) for folder in weights)
        self.loaded: wire.Loaded | None = None
        """What the host last said when it had loaded; kept while the host is down."""

    @property
    def available(self) -> bool:
        """Whether a request would be taken now."""
        return self._link.why_down(self.number) is None

    async def start(self) -> None:
        """Load and warm it in its host, which is started if need be. Raises :class:`EngineError`: the engine's own, or
        ``host_failed``, ``host_lost``, ``host_down``, ``load_timeout``."""
        await self._link.load(self)

    async def close(self) -> None:
        """Free its weights there. The host stays."""
        await self._link.unload(self)

    def _tell(self, message: Any) -> None:
        """What needs no answer, and means nothing to a host that has forgotten everything. One that does not answer
        now reads it when it goes on."""
        self._link.send(message)


class _Stream:
    """One utterance in a host. Audio that was there when the host died is lost, and so is the utterance: its
    transcripts fail."""

    def __init__(self, link: Link, utterance: int, deliver: Callable[[Transcript], None]) -> None:
        self._link = link
        self._utterance = utterance
        self._deliver = deliver
        self._asked: set[int] = set()
        self._block: list[Pcm16] = []
        self._block_samples = 0
        self._dead: tuple[str, str] | None = None
        self._job = link.jobs.begin(self._answer, self._failures, wire.CloseStream)

    def open(self, engine: int, request: OpenTranscription) -> None:
        down = self._link.why_down(engine)
        if down is not None:
            self._dead = (HOST_DOWN, down)
        else:
            self._link.send(wire.OpenStream(engine, self._job.number, request))

    def feed(self, pcm: Pcm16) -> None:
        if self._open:
            self._block.append(pcm)
            self._block_samples += len(pcm)
            if self._block_samples >= BLOCK_SAMPLES:
                self._flush()

    def finalize(self, request: FinalizeTranscription) -> None:
        if self._dead is not None:
            failure = TranscriptionFailed(request.utterance, request.revision, *self._dead)
            asyncio.get_running_loop().call_soon(self._job.answer, failure)
        elif self._open:
            self._flush()
            self._asked.add(request.revision)
            request = msgspec.structs.replace(request, deadline=wire_time(request.deadline))
            if request.priority is Priority.FINAL:
                self._link.jobs.await_answer(self._job)
            self._link.send(wire.FinalizeStream(self._job.number, request))

    def close(self) -> None:
        if self._open:
            self._link.send(wire.CloseStream(self._job.number))
        self._link.jobs.end(self._job)

    @property
    def _open(self) -> bool:
        return self._job.alive and self._dead is None

    def _flush(self) -> None:
        if self._block:
            pcm = np.concatenate(self._block).astype("<i2", copy=False).tobytes()
            self._block, self._block_samples = [], 0
            self._link.send(wire.Feed(self._job.number, pcm))

    def _answer(self, result: Transcript) -> None:
        if not isinstance(result, PartialTranscript):
            # An older request, overtaken by this one, is not answered any more.
            self._asked = {revision for revision in self._asked if revision > result.revision}
        self._deliver(result)

    def _failures(self, code: str, message: str) -> list[Transcript]:
        self._dead = (code, message)
        return [TranscriptionFailed(self._utterance, revision, code, message) for revision in sorted(self._asked)]


class HostedSpeechToText(HostedEngine):
    """:class:`engines.api.SpeechToText`."""

    def open(self, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> TranscriptionStream:
        stream = _Stream(self._link, request.utterance, deliver)
        stream.open(self.number, request)
        return stream


class _Epochs:
    """The jobs of each call's epochs."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, int], list[Job]] = {}

    def add(self, key: tuple[str, int], job: Job) -> None:
        self._jobs.setdefault(key, []).append(job)

    def take(self, key: tuple[str, int]) -> list[Job]:
        return self._jobs.pop(key, [])

    def remove(self, key: tuple[str, int], job: Job) -> None:
        kept = [other for other in self._jobs.get(key, ()) if other is not job]
        if kept:
            self._jobs[key] = kept
        else:
            self._jobs.pop(key, None)

    def of_call(self, call: str) -> list[tuple[str, int]]:
        return [key for key in self._jobs if key[0] == call]

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._jobs


class _WithEpochs(HostedEngine):
    def __init__(self, link: Link, number: int, spec: BackendSpec, weights: Iterable[Path]) -> None:
        super().__init__(link, number, spec, weights)
        self._epochs = _Epochs()

    def cancel(self, call: str, epoch: int) -> None:
        jobs = self._epochs.take((call, epoch))
        for job in jobs:
            self._link.jobs.end(job)
        if jobs:
            self._tell(wire.CancelEpoch(self.number, call, epoch))

    def _run(
        self,
        key: tuple[str, int],
        deliver: Callable[[Any], None],
        failed: Callable[[str, str], Any],
        message: Callable[[int], Any],
        *,
        urgent: bool,
    ) -> None:
        """Ask the host, which is told the job's number; the job fails soon if that cannot be."""

        def pass_on(result: Any) -> None:
            if ends(result):
                self._epochs.remove(key, job)
            deliver(result)

        jobs = self._link.jobs
        job = jobs.begin(
            pass_on,
            lambda code, text: [failed(code, text)],
            lambda _: wire.CancelEpoch(self.number, *key),
        )
        self._epochs.add(key, job)
        down = self._link.why_down(self.number)
        if down is not None:
            jobs.fail_soon(job, HOST_DOWN, down)
            return
        try:
            self._link.send(message(job.number))
            if urgent:
                jobs.await_answer(job)
        except TooLargeError as error:
            jobs.fail_soon(job, "too_large", str(error))


class HostedLanguageModel(_WithEpochs):
    """:class:`engines.api.LanguageModel`."""

    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        sent = msgspec.structs.replace(request, deadline=wire_time(request.deadline))
        self._run(
            (request.call, request.epoch),
            deliver,
            lambda code, text: GenerationFailed(request.epoch, code, text),
            lambda number: wire.StartGeneration(self.number, number, sent),
            urgent=request.priority <= Priority.DECODE,
        )

    def prioritize(self, call: str, epoch: int) -> None:
        if (call, epoch) in self._epochs:
            self._tell(wire.Prioritize(self.number, call, epoch))

    def postpone(self, call: str, epoch: int, until: float) -> None:
        if (call, epoch) in self._epochs:
            self._tell(wire.Postpone(self.number, call, epoch, wire_time(until)))

    def forget(self, call: str) -> None:
        for key in self._epochs.of_call(call):
            for job in self._epochs.take(key):
                self._link.jobs.end(job)
        self._tell(wire.ForgetCall(self.number, call))


class HostedTextToSpeech(_WithEpochs):
    """:class:`engines.api.TextToSpeech`. Its rate and voices are known once it was loaded."""

    @property
    def rate_hz(self) -> int:
        return self._described().rate_hz

    @property
    def voices(self) -> tuple[str, ...]:
        return self._described().voices

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        sent = msgspec.structs.replace(request, deadline=wire_time(request.deadline))
        self._run(
            (request.call, request.epoch),
            deliver,
            lambda code, text: SynthesisFailed(request.epoch, request.segment, code, text),
            lambda number: wire.StartSynthesis(self.number, number, sent),
            urgent=request.priority <= Priority.FIRST_AUDIO,
        )

    def _described(self) -> wire.Loaded:
        if self.loaded is None:
            raise EngineError("not_started", f"{self.spec.name} was never loaded")
        return self.loaded


HOSTED: dict[str, type[HostedEngine]] = {
    "stt": HostedSpeechToText,
    "llm": HostedLanguageModel,
    "tts": HostedTextToSpeech,
}
"""By the kind of a backend. Voice activity and end of turn stay where the audio is."""
