"""Clips decoded on the CPU lane: a :class:`engines.stt.utterance.Workplace` whose jobs hold one slot each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import structlog

from engines.api import Pcm16
from engines.in_flight import InFlight
from engines.lane import CpuLane, LaneFull, Slot
from engines.stt.utterance import Job, Outcome, RefusedError
from streaming.jobs import Priority

_log = structlog.get_logger(__name__)


class ClipLane:
    """``transcribe(pcm, language, partial)`` runs on a lane thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lane: CpuLane,
        in_flight: InFlight,
        transcribe: Callable[[Pcm16, str, bool], str],
    ) -> None:
        self.loop = loop
        self._lane = lane
        self._in_flight = in_flight
        self._transcribe = transcribe
        self._slots: dict[Job, Slot] = {}
        """Of jobs that may still be told something. A job leads to its whole call, so none may stay."""

    def submit(self, job: Job, priority: Priority, deadline: float) -> None:
        try:
            slot = self._lane.submit(priority, deadline, lambda _: self._run(job), abandoned=job.unwanted)
        except LaneFull as error:
            raise RefusedError("overloaded", str(error)) from error
        self._slots[job] = slot

    def reprioritize(self, job: Job, priority: Priority, deadline: float) -> None:
        if (slot := self._slots.get(job)) is not None:
            slot.reprioritize(priority, deadline)

    def abandon(self, job: Job) -> None:
        """The lane asks the job itself before it begins."""
        self._slots.pop(job, None)

    def _run(self, job: Job) -> None:
        """On a lane thread."""
        job.begun = True
        if job.unwanted() or not self._in_flight.begin():
            return
        language = job.opened.language
        try:
            pieces = []
            for piece in job.pieces:
                pieces.append(self._transcribe(piece, language, False))
                if job.unwanted():
                    return
            text = self._transcribe(np.concatenate(job.tail), language, job.partial) if job.tail else ""
            outcome = Outcome(pieces, text)
        except Exception as error:  # noqa: BLE001 (whatever it was, the caller must hear of it)
            _log.exception("a clip could not be decoded", call=job.opened.call)
            outcome = Outcome(failure=f"{type(error).__name__}: {error}")
        finally:
            self._in_flight.end()
        self.loop.call_soon_threadsafe(self._tell, job, outcome)

    def _tell(self, job: Job, outcome: Outcome) -> None:
        self._slots.pop(job, None)
        job.done(job, outcome)
