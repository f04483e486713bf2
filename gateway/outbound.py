"""Places calls: a destination that may be dialled, a place on the switchboard, then the dialler's work in a task.

While it rings, the call on the switchboard is :class:`PlacedCall`, which can be listed and ended; once it is answered,
the call that the dialler made stands in its place, and this one only watches its time.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from engines.api import Overload
from gateway.call_setup import CallNotSetUp
from gateway.outbound_address import BadDestination, Destination, parse_destination, redacted_number
from gateway.outbound_policy import NotAllowed, Ticket
from gateway.records.call_record import CallRecord, Parties
from gateway.settings import Settings
from gateway.state import Gateway
from gateway.switchboard import Admission, LiveCall, Refused

_log = structlog.get_logger(__name__)

LIMIT_CAUSE = "outbound_limit"
"""A placed call was up for as long as it might."""


class DialFailed(Exception):  # noqa: N818 (an answer of the other side)
    """Nobody answered. ``code``, the cause that the call ends with, is ``busy``, ``no_answer``, ``declined``,
    ``unreachable``, ``not_found``, ``forbidden`` or ``failed``; ``status`` the SIP status, if there was one."""

    def __init__(self, code: str, status: int | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.status = status


class Dialler(Protocol):
    """What places a call on the wire (the SIP server)."""

    async def dial(self, admission: Admission, to: str, *, caller: str, agent: str, ring_s: float) -> None:
        """Run the call from its first request to its end. ``to`` is a SIP URI; ``caller`` may be empty. Says
        ``admission.rings()`` when it rings, and registers the call that answers with the switchboard. When cancelled
        it ends what it began, also a call that is answered at the same moment. Raises :class:`DialFailed`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that somebody wants placed, by way of ``source`` (an address, for the audit log)."""

    to: str
    agent: str
    caller: str = ""
    ring_s: float | None = None
    source: str = ""


class PlacedCall:
    """A call from the request to dial until the dialler is done with it."""

    def __init__(self, record: CallRecord, ticket: Ticket) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun_s = self._loop.time()
        self._answered_s: float | None = None
        self._record = record
        self._ticket = ticket
        self._call: LiveCall | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._limit: asyncio.TimerHandle | None = None
        self.finished = asyncio.Event()

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def record(self) -> CallRecord:
        return self._record

    def drain(self) -> None:
        self.hang_up("server_drain")

    def hang_up(self, cause: str) -> None:
        """It ends at once; what it takes to tell the other side so comes after."""
        if self._call is not None:
            self._call.hang_up(cause)
            return
        self._record.ended(cause, self._elapsed_ms())
        if self._dialling is not None:
            self._dialling.cancel()

    def load_changed(self, overload: Overload) -> None:
        """Nothing is said yet."""

    def rings(self) -> None:
        self._record.rings()

    def give_way_to(self, call: LiveCall) -> None:
        self._call = call
        self._answered_s = self._loop.time()
        self._limit = self._loop.call_later(self._ticket.limit_s, call.hang_up, LIMIT_CAUSE)
        if self._record.state == "ended":  # hung up in the moment it was answered
            call.hang_up(self._record.cause or LIMIT_CAUSE)

    async def run(self, dial: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Until the dialler is done with it."""
        dialling = self._dialling = asyncio.create_task(dial(), name=f"dial {self.id}")
        if self._record.state == "ended":  # the server had begun to stop
            dialling.cancel()
        try:
            await asyncio.wait({dialling})
        except asyncio.CancelledError:
            self.hang_up("server_stop")
            dialling.cancel()
            await asyncio.wait({dialling})
            raise
        finally:
            self._over(dialling)

    def _over(self, dialling: asyncio.Task[None]) -> None:
        if self._limit is not None:
            self._limit.cancel()
        cause = _cause_of(dialling)
        if self._call is None:
            self._record.ended(cause, self._elapsed_ms())
        record = self._record if self._call is None else self._call.record
        now_s = self._loop.time()
        answered_s = now_s if self._answered_s is None else self._answered_s
        self._ticket.end(now_s - answered_s)
        self.finished.set()
        _log.info(
            "a placed call ended",
            cause=record.cause,
            status=_status_of(dialling),
            answered=self._call is not None,
            rang_s=round(answered_s - self._begun_s, 1),
            talked_s=round(now_s - answered_s, 1),
        )

    def _elapsed_ms(self) -> float:
        return (self._loop.time() - self._begun_s) * 1000


def _cause_of(dialling: asyncio.Task[None]) -> str:
    """Why a call ended that nobody answered. A defect is logged, also of one that was."""
    if dialling.cancelled():
        return "cancelled"
    error = dialling.exception()
    if isinstance(error, DialFailed):
        return error.code
    if isinstance(error, CallNotSetUp):
        return "engine_failed"
    if error is not None:
        _log.error("a placed call broke down", exc_info=error)
    return "internal_error"


def _status_of(dialling: asyncio.Task[None]) -> int | None:
    """What the other side refused it with, which says more than the cause."""
    error = None if dialling.cancelled() else dialling.exception()
    return error.status if isinstance(error, DialFailed) else None


async def place_call(gateway: Gateway, dialler: Dialler | None, asked: Asked) -> CallRecord:
    """Begin to dial, and return the record of what has begun.

    Raises:
        NotAllowed, BadDestination: by the rules and bounds of ``[outbound]``.
        gateway.agents.agent.UnknownAgent, gateway.switchboard.Refused: as for any call.
    """
    try:
        destination, ticket = _permit(gateway, dialler, asked)
        admission = await _admit(gateway, ticket)
    except (BadDestination, NotAllowed, Refused) as refused:
        if not isinstance(refused, Refused):  # the switchboard counts its own
            gateway.metrics.refused(refused.code)
        _log.warning("a call is not placed", code=refused.code, agent=asked.agent, source=asked.source)
        raise
    assert dialler is not None
    shown_as = asked.caller or next(iter(gateway.settings.outbound.callers), "")
    record = CallRecord(
        id=admission.call_id,
        transport="sip",
        agent=asked.agent,
        started_at=datetime.now(UTC),
        direction="outbound",
        parties=Parties(shown_as, destination.number or destination.uri, ""),
        trace=gateway.begin_trace(asked=True),
    )
    record.state = "dialling"
    placed = PlacedCall(record, ticket)
    _log.info(
        "a call is placed",
        call=record.id,
        destination=destination.redacted(),
        shown_as=redacted_number(shown_as),
        agent=asked.agent,
        source=asked.source,
        limit_s=ticket.limit_s,
    )
    gateway.metrics.count("outbound_placed")
    gateway.switchboard.place(admission, placed)
    dial = functools.partial(
        dialler.dial,
        admission,
        destination.uri,
        caller=shown_as,
        agent=asked.agent,
        ring_s=min(asked.ring_s or math.inf, gateway.settings.outbound.ring_s),
    )
    gateway.desk.start(record.id, _run(admission, placed, dial))
    return record


async def _admit(gateway: Gateway, ticket: Ticket) -> Admission:
    try:
        return await gateway.switchboard.admit("out")
    except BaseException:  # cancelled, too: the ticket is not used
        ticket.give_back()
        raise


def _trunk_domain(settings: Settings) -> str:
    """Where numbers are dialled; empty: nowhere."""
    trunks = settings.sip.trunks
    name = settings.outbound.trunk or (next(iter(trunks)) if len(trunks) == 1 else "")
    return trunks[name].our_domain if name in trunks else ""


async def _run(admission: Admission, placed: PlacedCall, dial: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with admission:
        structlog.contextvars.bind_contextvars(call=admission.call_id)
        await placed.run(dial)


def _permit(gateway: Gateway, dialler: Dialler | None, asked: Asked) -> tuple[Destination, Ticket]:
    settings = gateway.settings.outbound
    if not settings.enabled:
        raise NotAllowed("outbound_disabled", "calls are not placed here: outbound.enabled is off")
    if gateway.settings.key is None:
        raise NotAllowed("outbound_needs_key", "calls are placed for whoever has the key, and none is set")
    if dialler is None:
        raise NotAllowed("sip_disabled", "calls are placed by SIP, and sip.enabled is off")
    gateway.agents.get(asked.agent)
    if asked.caller and asked.caller not in settings.callers:
        raise NotAllowed("caller_not_allowed", "this caller is not in outbound.callers")
    destination = parse_destination(
        asked.to, trunk=_trunk_domain(gateway.settings), longest_extension=settings.longest_extension
    )
    return destination, gateway.outbound.policy.take(destination)
