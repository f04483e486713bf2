"""A carrier's media WebSocket, from its upgrade to its end: one core for every dialect."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import Any

import structlog
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gateway.agents.agent import UnknownAgent
from gateway.call_setup import CallNotSetUp
from gateway.security.guard import error_body, own_origin
from gateway.state import Gateway
from gateway.switchboard import Admission, Refused
from gateway.transports.carriers.desk import CarrierDesk
from gateway.transports.carriers.dialect import (
    Carrier,
    CarrierEvent,
    Dialect,
    Ignored,
    Message,
    RestRequest,
    Started,
    Stopped,
    Unauthentic,
)
from gateway.transports.carriers.line import CarrierLine
from gateway.transports.phone.line import Incoming
from gateway.transports.phone.phone_call import PhoneCall

_log = structlog.get_logger(__name__)

START_S = 10.0
"""From the upgrade to the message that says whose call it is."""
MAX_BEFORE_START = 64
SILENT_S = 30.0
"""Carriers send audio all the time: one that says nothing for this long is gone (``media_timeout``)."""
MAX_MESSAGE = 128 * 1024
"""Characters or bytes of one message: two seconds of any carrier's audio. Larger ones are dropped, and counted."""
LARGE_MESSAGE = 4 * 1024
TURN_MESSAGES = 16
"""Read in a row before others have their turn."""
CLOSE_S = 2.0

NORMAL = 1000
POLICY = 1008
INTERNAL_ERROR = 1011

GONE = (RuntimeError, OSError, WebSocketDisconnect)
"""How servers and Starlette say that nothing can be sent any more."""


async def carrier_stream(websocket: WebSocket) -> None:
    """``/v1/carriers/NAME/stream``, with a ticket from our own answer to the call's webhook, or without."""
    gateway: Gateway = websocket.app.state.gateway
    desk: CarrierDesk = websocket.app.state.carriers
    carrier = desk.find(websocket.path_params["name"])
    if carrier is None:
        await websocket.send_denial_response(
            _error(404, "carrier_unknown", "There is no such carrier here, or it is not enabled.")
        )
        return
    try:
        refuse_web_pages(websocket)
        known = desk.admit_stream(websocket, carrier)
    except Unauthentic as error:
        gateway.metrics.count(f"carrier_{error.code}")
        desk.complain(websocket, carrier, error.code)
        await websocket.send_denial_response(_error(403, error.code, str(error), "permission_error"))
        return
    try:
        admission = await gateway.switchboard.admit(carrier.name)
    except Refused as refused:
        await websocket.send_denial_response(_error(503, refused.code, str(refused), "server_error"))
        return
    with admission:
        structlog.contextvars.bind_contextvars(call=admission.call_id)
        try:
            offered = carrier.subprotocol in websocket.scope["subprotocols"]
            await websocket.accept(carrier.subprotocol if offered else None)
        except GONE:
            return
        await _Stream(websocket, gateway, desk, carrier).run(admission, known)


def refuse_web_pages(websocket: WebSocket) -> None:
    """A page that a person opens can reach a port on their machine: of an origin that is not ours it is no carrier.
    Raises :class:`Unauthentic`."""
    origin = websocket.headers.get("origin")
    if origin is None:
        return
    origins = websocket.app.state.guard.origins
    own = own_origin(websocket)
    if not (own is not None and origins.host_is_ours(own) and origins.origin_is_allowed(origin, own)):
        raise Unauthentic("origin_not_allowed", "Web pages open no carrier's stream.")


def _error(status: int, code: str, message: str, type_: str = "invalid_request_error") -> Response:
    return JSONResponse(error_body(code, message, type_=type_), status)


@dataclass(frozen=True, slots=True)
class _Gone:
    """The WebSocket is closed, or the carrier's time is up."""

    cause: str


class _Stream:
    """One accepted WebSocket."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, desk: CarrierDesk, carrier: Carrier) -> None:
        self._websocket = websocket
        self._gateway = gateway
        self._desk = desk
        self._carrier = carrier
        self._broke = False
        self._unyielded = 0
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._silence: asyncio.TimerHandle | None = None
        self._dialect: Dialect = carrier.dialect(desk.publish(websocket, carrier))

    async def run(self, admission: Admission, known: Incoming | None) -> None:
        started = await self._started()
        if isinstance(started, _Gone):
            self._gateway.metrics.count(f"carrier_{started.cause}")
            await self._close(POLICY, started.cause)
            return
        if known is not None and known.wire_id and started.incoming.wire_id not in ("", known.wire_id):
            self._gateway.metrics.count("carrier_wrong_call")
            _log.warning("a ticket was used for another call than it was made for", carrier=self._carrier.name)
            await self._close(POLICY, "wrong_call")  # and the other call is left alone
            return
        incoming = _merged(started.incoming, known)
        line = CarrierLine(self._dialect, started, self._rest, self._gateway.metrics.count)
        try:
            call = PhoneCall(self._gateway, admission, incoming, line)
        except (UnknownAgent, CallNotSetUp) as error:
            reason = getattr(error, "code", "engine_failed")  # not its text: some name agents by numbers
            _log.warning("a carrier's call was refused", carrier=self._carrier.name, reason=reason)
            await self._refuse(line)
            await self._close(POLICY if isinstance(error, UnknownAgent) else INTERNAL_ERROR, "refused")
            return
        line.attach(call)
        cause = await self._talk(line, call)
        if not line.queue.broken:
            await self._close(INTERNAL_ERROR if cause == "internal_error" else NORMAL, cause)

    async def _refuse(self, line: CarrierLine) -> None:
        """Hang up a call that never was one, also where that is a message of the stream."""
        await line.hang_up("refused")
        line.queue.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await line.queue.send_by(self._send, gone=GONE)

    async def _talk(self, line: CarrierLine, call: PhoneCall) -> str:
        self._silence = self._loop.call_later(SILENT_S, self._on_silence, line)
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(self._receive(line), name="receive")
            sending = tasks.create_task(line.queue.send_by(self._send, gone=GONE), name="send")
            try:
                cause = await call.run()
            finally:
                self._silence.cancel()
            receiving.cancel()
            line.queue.close()
            if not line.queue.broken:
                await asyncio.wait({sending}, timeout=CLOSE_S)
            sending.cancel()
        return cause

    async def _receive(self, line: CarrierLine) -> None:
        while True:
            message = await self._next()
            if isinstance(message, _Gone):
                line.lost(message.cause)
                return
            for event in self._decoded(message):
                line.take(event)

    def _decoded(self, message: Message) -> tuple[CarrierEvent, ...]:
        """A message that its dialect breaks down at is lost, and not its call."""
        try:
            return self._dialect.decode(message)
        except Exception as error:
            self._gateway.metrics.count("carrier_dialect_defect")
            if not self._broke:
                self._broke = True
                _log.error("a carrier's message could not be read", carrier=self._carrier.name, exc_info=error)
            if self._gateway.strict:
                raise
            return ()

    async def _started(self) -> Started | _Gone:
        """What comes before it is nothing of a call."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                for _ in range(MAX_BEFORE_START):
                    message = await self._next()
                    if isinstance(message, _Gone):
                        return message
                    for event in self._decoded(message):
                        if isinstance(event, Started):
                            return event
                        if isinstance(event, Stopped):
                            return _Gone(event.cause)
                        if isinstance(event, Ignored) and event.reason:
                            self._gateway.metrics.count(f"carrier_{event.reason}")
        return _Gone("no_start")

    def _on_silence(self, line: CarrierLine) -> None:
        """Perhaps: one timer looks when the last message came. One for each costs more than the message."""
        left_s = self._heard_at + SILENT_S - self._loop.time()
        if left_s <= 0:
            line.lost("media_timeout")
        else:
            self._silence = self._loop.call_later(left_s, self._on_silence, line)

    async def _next(self) -> Message | _Gone:
        """Others have their turn between a few small messages, and after a large one."""
        while True:
            self._unyielded += 1
            if self._unyielded >= TURN_MESSAGES:
                self._unyielded = 0
                await asyncio.sleep(0)
            received = await self._websocket.receive()
            self._heard_at = self._loop.time()
            if received["type"] == "websocket.disconnect":
                return _Gone("caller_hung_up" if _said_goodbye(received) else "connection_lost")
            text = received.get("text")
            message: Message = text if text is not None else received.get("bytes") or b""
            if len(message) > LARGE_MESSAGE:
                self._unyielded = TURN_MESSAGES
            if len(message) <= MAX_MESSAGE:
                return message
            self._gateway.metrics.count("carrier_message_too_large")

    async def _send(self, message: Message) -> None:
        if isinstance(message, str):
            await self._websocket.send_text(message)
        else:
            await self._websocket.send_bytes(message)

    async def _rest(self, request: RestRequest) -> None:
        await self._desk.send(self._carrier, request)

    async def _close(self, code: int, reason: str) -> None:
        if self._websocket.client_state is not WebSocketState.CONNECTED:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code, reason)
        except (*GONE, TimeoutError):
            pass  # the carrier was faster, or is not there


def _said_goodbye(disconnect: Any) -> bool:
    """A lost connection has the code 1005 too, but no reason, not even an empty one."""
    return disconnect.get("code") in (1000, 1001, 1005) and "reason" in disconnect


def _merged(told: Incoming, known: Incoming | None) -> Incoming:
    """What our own webhook learned, which was signed, goes before what the stream says."""
    if known is None:
        return told
    return replace(
        told,
        agent=known.agent or told.agent,
        dialled=known.dialled or told.dialled,
        caller=known.caller or told.caller,
        wire_id=told.wire_id or known.wire_id,
    )
