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
        self.record = CallRecord(id=call_id, transport="sip", agent=agent, started_at=datetime.now(UTC))
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
    """``ends`` is set by a test: with an error, or None for the one who answers. Cancelling takes ``cancel_s``."""

    def __init__(self, gateway: Gateway, *, cancel_s: float = 0.0) -> None:
        self._gateway = gateway
        self._cancel_s = cancel_s
        self.dialled: list[tuple[str, str, str, float]] = []
        self.admissions: list[Admission] = []
        self.outcomes: list[asyncio.Future[Exception | None]] = []
        self.calls: list[AnsweredCall] = []
        self.cancelled = 0

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
            await asyncio.sleep(self._cancel_s)
            self.cancelled += 1
            raise
        if error is not None:
            raise error
        call = AnsweredCall(admission.call_id, agent)
        self.calls.append(call)
        self._gateway.switchboard.register(admission, call)
        await call.finished.wait()
