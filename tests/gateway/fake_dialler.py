"""Dials nothing: a test says how the other side takes it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from engines.api import Overload
from gateway.outbound import DialFailed
from gateway.records.call_record import CallRecord
from gateway.state import Gateway
from gateway.switchboard import Admission


class AnsweredCall:
    """What the other side talks to."""

    def __init__(self, call_id: str, agent: str) -> None:
        self.record = CallRecord(
            id=call_id, transport="sip", agent=agent, started_at=datetime.now(UTC), direction="outbound"
        )
        self.record.answered(0)
        self.finished = asyncio.Event()

    @property
    def id(self) -> str:
        return self.record.id

    def drain(self) -> None:
        self.hang_up("server_drain")

    def hang_up(self, cause: str) -> None:
        self.record.ended(cause, 1)
        self.finished.set()

    def load_changed(self, overload: Overload) -> None:
        pass


class FakeDialler:
    """``outcomes`` are set by a test: with an error, or None for somebody who answers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.dialled: list[tuple[str, str, str, float]] = []
        self.admissions: list[Admission] = []
        self.outcomes: list[asyncio.Future[Exception | None]] = []
        self.calls: list[AnsweredCall] = []
        self.cancelled = 0
        self.registers = True
        """Whether who answers becomes a call."""
        self.breaks: Exception | None = None
        """What is raised at the end of an answered call."""
        self.answers_anyway = False
        """The answer and the word that it is cancelled meet."""

    async def dial(self, admission: Admission, to: str, *, caller: str, agent: str, ring_s: float) -> None:
        self.dialled.append((to, caller, agent, ring_s))
        self.admissions.append(admission)
        outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.outcomes.append(outcome)
        try:
            async with asyncio.timeout(ring_s):
                error = await outcome
        except TimeoutError:
            raise DialFailed("no_answer") from None
        except asyncio.CancelledError:
            self.cancelled += 1
            if not self.answers_anyway:
                raise
            error = None
        if error is not None:
            raise error
        if not self.registers:
            return
        call = AnsweredCall(admission.call_id, agent)
        self.calls.append(call)
        self._gateway.switchboard.register(admission, call)
        await call.finished.wait()
        if self.breaks is not None:
            raise self.breaks
