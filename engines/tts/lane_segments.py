"""Segments that are spoken on the CPU lane: a job of it for each inference, the answers on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from engines.lane import CpuLane, LaneFull, Slot
from engines.tts.spoken_audio import BadAudioError
from streaming.jobs import Priority, Synthesis, SynthesisChunk, SynthesisFailed, Synthesize

Inferences = Iterator[list[SynthesisChunk]]
"""Each step is one inference, on a worker thread, and gives its chunks; the segment's very last says so."""

_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _Job:
    request: Synthesize
    deliver: Callable[[Synthesis], None]
    loop: asyncio.AbstractEventLoop
    inferences: Inferences
    cancelled: bool = False

    def is_dead(self) -> bool:
        return self.cancelled


class LaneSegments:
    """Every method is for the loop's thread. ``lane`` is closed by its owner."""

    def __init__(self, lane: CpuLane) -> None:
        self._lane = lane
        self._jobs: dict[tuple[str, int], set[_Job]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def speak(self, request: Synthesize, deliver: Callable[[Synthesis], None], inferences: Inferences) -> None:
        """Run the ``inferences``, the next one when the one before has come back. Codes of a failure:
        ``overloaded``, ``bad_audio`` (:class:`BadAudioError` was raised), ``synthesis_failed`` (anything else)."""
        self._submit(self._take_on(request, deliver, inferences), request.priority)

    def refuse(self, request: Synthesize, deliver: Callable[[Synthesis], None], code: str, message: str) -> None:
        """A failure, soon: the caller is not done with its own bookkeeping yet."""
        job = self._take_on(request, deliver, iter(()))
        job.loop.call_soon(self._fail, job, code, message)

    def cancel(self, call: str, epoch: int) -> None:
        """Nothing is delivered for the epoch from now on, and what waits is never spoken."""
        for job in self._jobs.pop((call, epoch), ()):
            job.cancelled = True

    def clear(self) -> None:
        """As cancelling all."""
        for key in list(self._jobs):
            self.cancel(*key)

    def _take_on(self, request: Synthesize, deliver: Callable[[Synthesis], None], inferences: Inferences) -> _Job:
        job = _Job(request, deliver, asyncio.get_running_loop(), inferences)
        self._jobs.setdefault((request.call, request.epoch), set()).add(job)
        return job

    def _submit(self, job: _Job, priority: Priority) -> None:
        def run(_slot: Slot) -> None:
            self._run(job)

        try:
            self._lane.submit(priority, job.request.deadline, run, abandoned=lambda: job.cancelled)
        except LaneFull as error:
            job.loop.call_soon(self._fail, job, "overloaded", str(error))

    def _run(self, job: _Job) -> None:
        """One inference, on a worker thread."""
        try:
            chunks = next(job.inferences)
        except BadAudioError as error:
            self._answer(job, self._fail, job, "bad_audio", str(error))
        except Exception as error:  # noqa: BLE001  # whatever a model throws is this job's failure, no more
            _log.exception("speech synthesis failed", voice=job.request.voice)
            self._answer(job, self._fail, job, "synthesis_failed", f"{type(error).__name__}: {error}")
        else:
            self._answer(job, self._land, job, chunks)

    @staticmethod
    def _answer(job: _Job, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is there to be told
            job.loop.call_soon_threadsafe(callback, *args)

    def _land(self, job: _Job, chunks: list[SynthesisChunk]) -> None:
        if job.cancelled:
            return
        if not chunks[-1].last:
            self._submit(job, max(job.request.priority, Priority.PLAYOUT))
        for chunk in chunks:
            if chunk.last:
                self._forget(job)
            job.deliver(chunk)
            if job.is_dead():  # by the receiver, on what it just got
                return

    def _fail(self, job: _Job, code: str, message: str) -> None:
        if job.cancelled:
            return
        self._forget(job)
        job.deliver(SynthesisFailed(job.request.epoch, job.request.segment, code, message))

    def _forget(self, job: _Job) -> None:
        key = (job.request.call, job.request.epoch)
        jobs = self._jobs.get(key)
        if jobs is not None:
            jobs.discard(job)
            if not jobs:
                del self._jobs[key]
