"""One caller utterance: its audio, what is asked of it, and which job goes to the CPU lane next.

All state is the event loop's; a job takes a snapshot to its thread and comes back as one call on the loop. The rules:

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
from typing import Literal

import numpy as np
import structlog

from engines.api import Pcm16
from engines.in_flight import InFlight
from engines.lane import CpuLane, LaneFull, Slot
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
class Workplace:
    """What all utterances of an engine share. ``transcribe(pcm, language, partial)`` runs on a lane thread."""

    loop: asyncio.AbstractEventLoop
    lane: CpuLane
    in_flight: InFlight
    transcribe: Callable[[Pcm16, str, bool], str]


@dataclass(eq=False, slots=True)
class _Job:
    """A snapshot of the utterance on its way through the lane. The thread reads ``abandoned``, sets ``begun``."""

    kind: Kind
    first_piece: int
    pieces: tuple[Pcm16, ...]
    tail: tuple[Pcm16, ...]
    fed_samples: int
    committed: tuple[str, ...]
    """Texts of everything before ``pieces``, as of the snapshot: another job may commit more meanwhile."""
    request: FinalizeTranscription | None = None
    slot: Slot | None = None
    abandoned: bool = False
    begun: bool = False

    def unwanted(self) -> bool:
        return self.abandoned


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a job found: the texts of its pieces and of its tail, or why it failed."""

    pieces: Sequence[str] = ()
    tail: str = ""
    failure: str | None = None


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
        self._job: _Job | None = None
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
            if self._job.slot is not None:
                self._job.slot.reprioritize(request.priority, request.deadline)
        else:
            self._wanted = request
            self._pump()

    def close(self) -> None:
        self._closed = True
        self._wanted = None
        if self._job is not None:
            self._job.abandoned = True
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
            if not job.begun or job.kind == "partial":
                job.abandoned = True
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
        tail = () if kind == "piece" else tuple(self._tail)
        job = _Job(
            kind, self._first_piece, tuple(self._pieces), tail, self._fed_samples, tuple(self._committed), request
        )
        try:
            job.slot = self._work.lane.submit(priority, deadline, lambda slot: self._run(job), abandoned=job.unwanted)
        except LaneFull as error:
            if request is not None:
                self._answer_soon(self._failure(request.revision, "overloaded", str(error)))
            return
        self._job = job

    def _run(self, job: _Job) -> None:
        """On a lane thread."""
        job.begun = True
        if job.unwanted() or not self._work.in_flight.begin():
            return
        language = self._request.language
        try:
            pieces = []
            for piece in job.pieces:
                pieces.append(self._work.transcribe(piece, language, False))
                if job.unwanted():
                    return
            text = self._work.transcribe(np.concatenate(job.tail), language, job.kind == "partial") if job.tail else ""
            outcome = _Outcome(pieces, text)
        except Exception as error:  # noqa: BLE001 (whatever it was, the caller must hear of it)
            _log.exception("a clip could not be decoded", call=self._request.call)
            outcome = _Outcome(failure=f"{type(error).__name__}: {error}")
        finally:
            self._work.in_flight.end()
        self._work.loop.call_soon_threadsafe(self._done, job, outcome)

    def _done(self, job: _Job, outcome: _Outcome) -> None:
        """Back on the event loop."""
        if self._closed or job.abandoned:
            return
        if self._job is job:
            self._job = None
        if outcome.failure is None:
            self._commit(job, outcome.pieces)
            self._publish(job, " ".join(filter(None, [*job.committed, *outcome.pieces, outcome.tail])))
        elif job.request is not None:
            self._deliver(self._failure(job.request.revision, "decode_failed", outcome.failure))
        elif job.kind == "piece":
            self._commit(job, [""] * len(job.pieces))  # a piece that can't be decoded must not be tried for ever
        if not self._closed:
            self._pump()

    def _commit(self, job: _Job, texts: Sequence[str]) -> None:
        """Keep the texts of pieces. Another job may have been there first, or given one up meanwhile."""
        for index, text in enumerate(texts, start=job.first_piece):
            if index == self._first_piece and self._pieces:
                self._pieces.popleft()
                self._first_piece += 1
                self._committed.append(text)

    def _publish(self, job: _Job, text: str) -> None:
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
