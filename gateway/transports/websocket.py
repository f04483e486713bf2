"""The OpenAI Realtime protocol over a WebSocket: frames in, frames out, one call each."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import structlog
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from engines.api import Pcm16
from gateway.agents.agent import UnknownAgent
from gateway.call import Call, pcm16
from gateway.call_setup import CallNotSetUp, first_config, open_call, open_protocol, perform
from gateway.first_session import Beginning, beginning
from gateway.realtime.client_events import parse_event
from gateway.realtime.errors import Rejected
from gateway.realtime.protocol import AppendAudio, RealtimeProtocol
from gateway.realtime.session_object import WireFormat
from gateway.security.client_secrets import AlreadyUsed
from gateway.security.guard import Guard, access_of, already_used, error_body
from gateway.security.keys import select_subprotocol
from gateway.state import Gateway
from gateway.switchboard import Admission, Refused
from gateway.transports.outbox import GONE_S, Outbox
from streaming.audio.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from streaming.audio.resample import Resampler
from streaming.config import SessionConfig
from streaming.effects import Control
from streaming.jobs import INPUT_RATE_HZ
from streaming.notices import Notice

OFF_LOOP_BYTES = 64 * 1024
"""Frames longer than this are decoded in a worker thread."""

BLOCK_MS = 100
"""Audio of one append is taken in blocks of this length, others having their turn between two of them."""

LEAD_MS = 300
"""Audio sent ahead of the far end's ear: its client buffers, and clears on ``speech_started``."""

CLOSE_S = 2.0
FIRST_WORD_S = 0.3
"""A greeting waits this long for the client's first event: format, voice and speed are fixed once audio goes out."""

ON_LOST = "offhook.on_lost"
"""Where in the ASGI scope the server finds whom to tell that the connection is gone: the protocol's own word for it
waits behind all messages that came before it."""

TRY_AGAIN_LATER = 1013
NORMAL = 1000
INTERNAL_ERROR = 1011

_PEER_GONE = (RuntimeError, OSError, WebSocketDisconnect)
"""How servers and Starlette say that nothing can be sent any more."""


async def realtime(websocket: WebSocket) -> None:
    """``/v1/realtime``: ``?agent=NAME`` chooses who answers, ``?model=`` is echoed. The guard has let it in."""
    gateway: Gateway = websocket.app.state.gateway
    secret = access_of(websocket).secret
    try:
        begins = beginning(websocket.query_params, secret)
        config = first_config(gateway, begins.agent)
    except (UnknownAgent, Rejected) as error:
        status = 404 if isinstance(error, UnknownAgent) else 403
        await websocket.send_denial_response(JSONResponse(error_body(error.code, str(error)), status))
        return
    try:
        admission = await gateway.switchboard.admit()
    except Refused as refused:
        if await _accept(websocket):
            await _close(websocket, TRY_AGAIN_LATER, refused.code)
        return
    guard: Guard = websocket.app.state.guard
    with admission:
        if secret is not None:
            try:
                guard.secrets.use(secret)
            except AlreadyUsed:  # it was used while this call waited for its place
                await websocket.send_denial_response(already_used().response())
                return
        try:
            with contextlib.ExitStack() as unless_set_up:
                if secret is not None:
                    unless_set_up.callback(guard.secrets.restore, secret)
                protocol, leg, call = _set_up(gateway, admission, begins, config)
                unless_set_up.pop_all()
        except CallNotSetUp as error:
            await websocket.send_denial_response(JSONResponse(error.body, error.status))
            return
        await _answer(websocket, gateway, admission, protocol, leg, call)


def _set_up(
    gateway: Gateway, admission: Admission, begins: Beginning, config: SessionConfig
) -> tuple[RealtimeProtocol, WebSocketLeg, Call]:
    agent_name = begins.agent
    protocol = open_protocol(
        gateway,
        admission.call_id,
        config=config,
        agent_name=agent_name,
        model=begins.model,
        media=False,
    )
    begins.apply_to(protocol)  # it was judged when the secret was made
    protocol.open()
    leg = WebSocketLeg(protocol)
    leg.flush()  # first of all: a call that comes in while the server stops is told goodbye as it is registered
    call = open_call(gateway, admission, transport="websocket", agent_name=agent_name, config=protocol.config, leg=leg)
    leg.outbox.attach(call)
    return protocol, leg, call


async def _answer(
    websocket: WebSocket,
    gateway: Gateway,
    admission: Admission,
    protocol: RealtimeProtocol,
    leg: WebSocketLeg,
    call: Call,
) -> None:
    """The call is set up: run it, and leave nothing behind whatever happens."""
    structlog.contextvars.bind_contextvars(call=call.id)
    websocket.scope[ON_LOST] = partial(_lost, asyncio.get_running_loop(), call)
    try:
        gateway.switchboard.register(admission, call)
        if await _accept(websocket):
            await _run(websocket, protocol, leg, call)
        else:
            call.hang_up("connection_lost")
    except asyncio.CancelledError:
        call.hang_up("server_stop")
        raise
    finally:
        websocket.scope.pop(ON_LOST, None)
        if not call.finished.is_set():
            call.hang_up("internal_error")  # a task of the call raised
        if websocket.application_state is WebSocketState.CONNECTED and not leg.outbox.lost:
            code = INTERNAL_ERROR if call.record.cause == "internal_error" else NORMAL
            await _close(websocket, code, call.record.cause or "")


def _lost(loop: asyncio.AbstractEventLoop, call: Call) -> None:
    """The connection is gone, though much of what came over it may not have been read yet."""
    if not call.finished.is_set():
        loop.call_later(GONE_S, _hang_up_lost, weakref.ref(call))


def _hang_up_lost(known: weakref.ref[Call]) -> None:
    call = known()
    if call is not None and not call.finished.is_set():
        call.hang_up("connection_lost")


async def _run(websocket: WebSocket, protocol: RealtimeProtocol, leg: WebSocketLeg, call: Call) -> None:
    """The call's task group: what comes in, what goes out, and the end of both."""
    async with asyncio.TaskGroup() as tasks:
        answered = asyncio.Event()

        def answer() -> None:
            if not answered.is_set():
                answered.set()
                call.answered()

        receiving = tasks.create_task(_receive(websocket, protocol, leg, call, answer), name="receive")
        sending = tasks.create_task(leg.outbox.send_by(websocket.send_text, call, gone=_PEER_GONE), name="send")
        if protocol.config.greeting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WORD_S):
                    await answered.wait()
        answer()
        await call.finished.wait()
        receiving.cancel()
        leg.outbox.close()
        if not leg.outbox.lost:
            await asyncio.wait({sending}, timeout=CLOSE_S)
        sending.cancel()


async def _accept(websocket: WebSocket) -> bool:
    """False if the peer did not wait for it."""
    try:
        await websocket.accept(select_subprotocol(websocket))
    except _PEER_GONE:
        return False
    return True


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await websocket.close(code, reason)
    except (*_PEER_GONE, TimeoutError):
        pass  # the peer was faster, or is not there


async def _receive(
    websocket: WebSocket, protocol: RealtimeProtocol, leg: WebSocketLeg, call: Call, answer: Callable[[], None]
) -> None:
    ear = _Ear(protocol)
    while not call.finished.is_set():
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            call.hang_up("caller_hung_up" if _said_goodbye(message) else "connection_lost")
            return
        text = message.get("text")
        if text is None:
            protocol.receive_binary()
            leg.flush()
            await leg.outbox.room()
            continue
        if len(text) > OFF_LOOP_BYTES:
            parsed = await asyncio.to_thread(parse_event, text)
        else:
            parsed = parse_event(text)
        for inbound in protocol.apply(parsed):
            leg.flush()
            if isinstance(inbound, AppendAudio):
                await _hear(inbound.audio, ear, call)
            else:
                await perform(inbound, call)
                await asyncio.sleep(0)  # 32 keys may be in one event, each a turn of its own
        leg.flush()
        answer()
        await leg.outbox.room()


def _said_goodbye(disconnect: Mapping[str, Any]) -> bool:
    """A lost connection has the code 1005 too, but no reason, not even an empty one."""
    return disconnect.get("code") in (1000, 1001, 1005) and "reason" in disconnect


async def _hear(audio: bytes, ear: _Ear, call: Call) -> None:
    for number, pcm in enumerate(ear.decode(audio)):
        if call.finished.is_set():
            return
        if number:
            await asyncio.sleep(0)
        await call.hear(pcm)


class _Ear:
    """Caller audio from the wire's format to 16 kHz, in blocks short enough for the event loop."""

    def __init__(self, protocol: RealtimeProtocol) -> None:
        self._protocol = protocol
        self._format: WireFormat | None = None
        self._resampler = Resampler(INPUT_RATE_HZ, INPUT_RATE_HZ)

    def decode(self, audio: bytes) -> Iterator[Pcm16]:
        """The blocks of one append, at most :data:`BLOCK_MS` each, made when asked for."""
        wire = self._protocol.input_format
        if wire is not self._format:
            self._format = wire
            self._resampler = Resampler(wire.rate_hz, INPUT_RATE_HZ)
        size = wire.rate_hz * BLOCK_MS // 1000 * wire.bytes_per_sample
        for at in range(0, len(audio), size):
            yield self._resampler.process(_DECODERS[wire](audio[at : at + size]))


_DECODERS = {WireFormat.PCM: pcm16, WireFormat.PCMU: decode_mulaw, WireFormat.PCMA: decode_alaw}
_ENCODERS = {
    WireFormat.PCM: lambda pcm: pcm.astype("<i2").tobytes(),
    WireFormat.PCMU: encode_mulaw,
    WireFormat.PCMA: encode_alaw,
}


class WebSocketLeg:
    """Notices and audio to Realtime frames, through the :class:`Outbox` of the call."""

    lead_ms = LEAD_MS

    def __init__(self, protocol: RealtimeProtocol) -> None:
        self._protocol = protocol
        self.outbox = Outbox()

    @property
    def congested(self) -> bool:
        return self.outbox.congested

    def notify(self, notice: Notice) -> None:
        self._protocol.encode(notice)
        self.flush()

    def play(self, response_id: str, item_id: str, pcm: Pcm16) -> None:
        self.flush()
        encode = _ENCODERS[self._protocol.output_format]
        self._protocol.encode_audio(response_id, item_id, encode(pcm))
        self.outbox.put(self._protocol.take(), audio=True)

    def clear(self) -> bool:
        """Audio that a slow peer has not taken is stale now. What it has taken it clears by itself, on
        ``speech_started`` or because it asked for the cancel."""
        return self.outbox.drop_audio()

    def control(self, effect: Control) -> None:
        """There is no line here: the agent has no tool that asks for one."""
        raise NotImplementedError

    def flush(self) -> None:
        """Move what the protocol has to send into the outbox."""
        self.outbox.put(self._protocol.take())
