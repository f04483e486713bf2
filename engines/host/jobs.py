"""The gateway's list of what it has asked of one host, and who waits for it."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import structlog

from engines.overload import Lateness
from streaming.jobs import (
    GenerationDone,
    GenerationFailed,
    PartialTranscript,
    SynthesisChunk,
    SynthesisFailed,
)

_log = structlog.get_logger(__name__)


Failed = Callable[[str, str], Sequence[Any]]
"""The results that say so, of a code and a message."""
Undo = Callable[[int], Any]
"""The message that has the host drop the job of that number."""


class Job:
    """One request, or one open stream. Nothing is delivered once it is not ``alive``."""

    __slots__ = ("_deliver", "_failed", "_undo", "alive", "number")

    def __init__(self, number: int, deliver: Callable[[Any], None], failed: Failed, undo: Undo) -> None:
        self.number = number
        self.alive = True
        self._deliver = deliver
        self._failed = failed
        self._undo = undo

    @property
    def undo(self) -> Any:
        """The message for a host that is not to go on with it."""
        return self._undo(self.number)

    def answer(self, result: Any) -> None:
        """Deliver. What the receiver raises is logged: the results of other calls come after this one."""
        if not self.alive:
            return
        try:
            self._deliver(result)
        except Exception:  # noqa: BLE001 (one call's exception never reaches another's)
            _log.exception("a delivery failed")

    def fail(self, code: str, message: str) -> None:
        """Deliver what ``failed`` makes of this, if it lives."""
        for result in self._failed(code, message):
            self.answer(result)


class Jobs:
    """The jobs under way at one host, by number. A number is never used twice."""

    def __init__(self, lateness: Lateness) -> None:
        self._lateness = lateness
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def begin(self, deliver: Callable[[Any], None], failed: Failed, undo: Undo) -> Job:
        job = Job(next(self._numbers), deliver, failed, undo)
        self._jobs[job.number] = job
        return job

    def await_answer(self, job: Job) -> None:
        """A caller hears silence until it comes: note how long that takes."""
        self._lateness.asked(job, time.monotonic())

    def end(self, job: Job) -> None:
        """Nothing more is delivered for it."""
        job.alive = False
        self._jobs.pop(job.number, None)
        self._lateness.dropped(job)

    def answer(self, number: int, result: Any) -> bool:
        """Hand over what the host says; False: nobody waits for it any more."""
        job = self._jobs.get(number)
        if job is None:
            return False
        if ends(result):
            del self._jobs[number]
        if not isinstance(result, PartialTranscript):
            self._lateness.answered(job, time.monotonic())
        job.answer(result)
        return True

    def fail_all(self, code: str, message: str) -> None:
        """The host is gone, or as good as gone."""
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            self._lateness.dropped(job)
            job.fail(code, message)

    def fail_soon(self, job: Job, code: str, message: str) -> None:
        """Never from inside the call that asked for it: the caller is not done with its own bookkeeping there."""
        self._jobs.pop(job.number, None)
        asyncio.get_running_loop().call_soon(job.fail, code, message)


def ends(result: Any) -> bool:
    """Whether a result is the last of its job. A stream goes on after any."""
    if isinstance(result, SynthesisChunk):
        return result.last
    return isinstance(result, GenerationDone | GenerationFailed | SynthesisFailed)


def wire_time(deadline: float) -> float:
    """A time of this loop's clock as the wire counts it: ``time.monotonic()``. They are the same on most loops."""
    if math.isinf(deadline):
        return deadline
    return deadline - asyncio.get_running_loop().time() + time.monotonic()
