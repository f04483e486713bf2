"""One caller utterance: its audio, what is asked of it, and which job goes to its workplace next.

All state is the event loop's; a job takes a snapshot to a :class:`Workplace` (the CPU lane, the MLX thread) and comes
back as one call on the loop. The rules:

- A final goes before a partial, and makes one that has not begun worthless; a newer revision does so to an older one.
- One partial at most waits or runs, after each :data:`PARTIAL_EVERY_S` of new audio.
- At most :data:`MAX_HELD_S` of audio waits uncommitted. Beyond it, a piece up to the quietest dip is cut off and
  decoded once; its text stands before all later results.
- Nothing new since the last completed final: the same text is the answer, at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import structlog

from engines.api import Pcm16
from streaming.audio.level import quietest_dip
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Priority,
    Transcript,
    TranscriptionFailed,
)

MAX_HELD_S = 15.0
PARTIAL_EVERY_S = 0.6
MAX_WAITING_PIECES = 8
"""About 100 s of a monologue on a machine that can't keep up; the oldest piece is given up beyond it."""

_EARLIEST_CUT_S = 8.0
_PARTIAL_WORTH_S = 0.6

_log = structlog.get_logger(__name__)

Kind = Literal["final", "piece", "partial"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job found: the texts of its pieces and of its tail, or why it failed."""

    pieces: Sequence[str] = ()
    tail: str = ""
    failure: str | None = None
    code: str = "decode_failed"


@dataclass(eq=False, slots=True, weakref_slot=True)
class Job:
    """A snapshot of the utterance on its way through a workplace, which reads ``abandoned`` and sets ``begun``."""

    opened: OpenTranscription
    kind: Kind
    first_piece: int
    pieces: tuple[Pcm16, ...]
    tail: tuple[Pcm16, ...]
    fed_samples: int
    committed: tuple[str, ...]
    """Texts of everything before ``pieces``, as of the snapshot: another job may commit more meanwhile."""
    done: Callable[[Job, Outcome], None]
    """For the workplace to call, once, on the event loop. After an abandoned job it does nothing."""
    request: FinalizeTranscription | None = None
    abandoned: bool = False
    begun: bool = False

    def unwanted(self) -> bool:
        return self.abandoned

    @property
    def partial(self) -> bool:
        """Whether the tail is decoded for words that will be replaced. Pieces never are."""
        return self.kind == "partial"


class RefusedError(Exception):
    """A workplace takes no job now. ``code`` is that of the failure delivered for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Workplace(Protocol):
    """Where the clips of an engine's utterances are decoded. Every method is called on the event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def submit(self, job: Job, priority: Priority, deadline: float) -> None:
        """Decode the pieces, then the tail. Raises :class:`RefusedError`."""

    def reprioritize(self, job: Job, priority: Priority, deadline: float) -> None: ...

    def abandon(self, job: Job) -> None:
        """``job.abandoned`` was set: let go of it as soon as may be."""


class Utterance:
    """A :class:`engines.api.TranscriptionStream`."""

    def __init__(
        self,
        request: OpenTranscription,
        deliver: Callable[[Transcript], None],
        workplace: Workplace,
        *,
        supported: bool,
        closed: Callable[[Utterance], None],
    ) -> None:
        self._request = request
        self._deliver = deliver
        self._work = workplace
        self._supported = supported
        self._on_closed = closed
        self._tail: list[Pcm16] = []
        self._tail_samples = 0
        self._fed_samples = 0
        self._pieces: deque[Pcm16] = deque()
        self._first_piece = 0
        self._committed: list[str] = []
        self._wanted: FinalizeTranscription | None = None
        self._job: Job | None = None
        self._last_final: tuple[int, str] | None = None
        self._partial_at_samples = 0
        self._last_partial = ""
        self._closed = False

    def feed(self, pcm: Pcm16) -> None:
        if self._closed or not self._supported or not pcm.size:
            return
        self._tail.append(np.array(pcm, dtype=np.int16))
        self._tail_samples += pcm.size
        self._fed_samples += pcm.size
        while self._tail_samples > MAX_HELD_S * INPUT_RATE_HZ:
            self._cut_piece()
        self._pump()

    def finalize(self, request: FinalizeTranscription) -> None:
        if self._closed:
            return
        if not self._supported:
            message = f"this model does not know the language {self._request.language!r}"
            self._answer_soon(self._failure(request.revision, "unsupported_language", message))
        elif self._last_final is not None and self._last_final[0] == self._fed_samples:
            self._wanted = None
            self._answer_soon(FinalTranscript(request.utterance, request.revision, self._last_final[1]))
        elif self._job is not None and self._job.kind == "final" and self._job.fed_samples == self._fed_samples:
            # The same audio is being decoded: that result answers this request too.
            self._job.request = request
            self._work.reprioritize(self._job, request.priority, request.deadline)
        else:
            self._wanted = request
            self._pump()

    def close(self) -> None:
        self._closed = True
        self._wanted = None
        if self._job is not None:
            self._abandon(self._job)
            self._job = None
        self._tail.clear()
        self._pieces.clear()
        self._on_closed(self)

    def _cut_piece(self) -> None:
        audio = np.concatenate(self._tail)
        earliest, latest = int(_EARLIEST_CUT_S * INPUT_RATE_HZ), int(MAX_HELD_S * INPUT_RATE_HZ)
        cut = earliest + quietest_dip(audio[earliest:latest], INPUT_RATE_HZ)
        self._pieces.append(audio[:cut].copy())
        self._tail = [audio[cut:].copy()]
        self._tail_samples = audio.size - cut
        if len(self._pieces) > MAX_WAITING_PIECES:
            self._pieces.popleft()
            self._first_piece += 1
            _log.warning("speech was given up: decoding can't keep up", call=self._request.call)

    def _pump(self) -> None:
        """Put the most useful job into the lane, unless one that is as useful is there."""
        job = self._job
        if job is not None:
            if self._wanted is None or (job.kind == "piece" and job.begun):
                return  # its result leads back here
            if not job.begun or job.partial:
                self._abandon(job)
            self._job = None
        if self._wanted is not None:
            request, self._wanted = self._wanted, None
            self._submit("final", request.priority, request.deadline, request)
        elif self._pieces:
            self._submit("piece", Priority.PARTIAL, self._work.loop.time(), None)
        elif self._request.partials and self._partial_is_due():
            self._partial_at_samples = self._fed_samples
            self._submit("partial", Priority.PARTIAL, self._work.loop.time() + _PARTIAL_WORTH_S, None)

    def _partial_is_due(self) -> bool:
        return self._fed_samples - self._partial_at_samples >= PARTIAL_EVERY_S * INPUT_RATE_HZ

    def _submit(self, kind: Kind, priority: Priority, deadline: float, request: FinalizeTranscription | None) -> None:
        job = Job(
            opened=self._request,
            kind=kind,
            first_piece=self._first_piece,
            pieces=tuple(self._pieces),
            tail=() if kind == "piece" else tuple(self._tail),
            fed_samples=self._fed_samples,
            committed=tuple(self._committed),
            done=self._done,
            request=request,
        )
        try:
            self._work.submit(job, priority, deadline)
        except RefusedError as error:
            if request is not None:
                self._answer_soon(self._failure(request.revision, error.code, str(error)))
            return
        self._job = job

    def _abandon(self, job: Job) -> None:
        job.abandoned = True
        self._work.abandon(job)

    def _done(self, job: Job, outcome: Outcome) -> None:
        """Back on the event loop."""
        if self._closed or job.abandoned:
            return
        if self._job is job:
            self._job = None
        if outcome.failure is None:
            self._commit(job, outcome.pieces)
            self._publish(job, " ".join(filter(None, [*job.committed, *outcome.pieces, outcome.tail])))
        elif job.request is not None:
            self._deliver(self._failure(job.request.revision, outcome.code, outcome.failure))
        elif job.kind == "piece":
            self._commit(job, [""] * len(job.pieces))  # a piece that can't be decoded must not be tried for ever
        if not self._closed:
            self._pump()

    def _commit(self, job: Job, texts: Sequence[str]) -> None:
        """Keep the texts of pieces. Another job may have been there first, or given one up meanwhile."""
        for index, text in enumerate(texts, start=job.first_piece):
            if index == self._first_piece and self._pieces:
                self._pieces.popleft()
                self._first_piece += 1
                self._committed.append(text)

    def _publish(self, job: Job, text: str) -> None:
        if self._last_final is not None and job.fed_samples < self._last_final[0]:
            return  # overtaken by a final of more audio
        if job.kind == "final":
            assert job.request is not None
            self._last_final = (job.fed_samples, text)
            self._deliver(FinalTranscript(self._request.utterance, job.request.revision, text))
        elif job.kind == "partial" and text and text != self._last_partial:
            self._last_partial = text
            self._deliver(PartialTranscript(self._request.utterance, text))

    def _failure(self, revision: int, code: str, message: str) -> TranscriptionFailed:
        return TranscriptionFailed(self._request.utterance, revision, code, message)

    def _answer_soon(self, transcript: Transcript) -> None:
        # Not inside the caller's own call: an engine answers later, always.
        self._work.loop.call_soon(lambda: None if self._closed else self._deliver(transcript))
