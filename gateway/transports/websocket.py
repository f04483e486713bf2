"""The OpenAI Realtime protocol over a WebSocket: frames in, frames out, one call each."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import structlog
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from engines.api import Pcm16
from gateway.agents.agent import UnknownAgent
from gateway.call import Call, pcm16
from gateway.realtime.client_events import parse_event
from gateway.realtime.protocol import AppendAudio, ClearAudio, CommitAudio, Inbound, RealtimeProtocol
from gateway.realtime.session_object import SessionDefaults, WireFormat
from gateway.records.call_record import CallRecord
from gateway.security.guard import error_body
from gateway.security.keys import select_subprotocol
from gateway.state import Gateway
from gateway.switchboard import Refused
from streaming.audio.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from streaming.audio.resample import Resampler
from streaming.config import SessionConfig
from streaming.events import ClearInput, CommitInput, Event
from streaming.jobs import INPUT_RATE_HZ
from streaming.notices import Notice

_log = structlog.get_logger(__name__)

OFF_LOOP_BYTES = 64 * 1024
"""Frames longer than this are decoded in a worker thread."""

LEAD_MS = 300
"""Audio sent ahead of the far end's ear: its client buffers, and clears on ``speech_started``."""

CONGESTED_BYTES = 256 * 1024
MAX_OUTBOX_BYTES = 4 * 1024 * 1024
"""Beyond the first, audio waits; a peer that reads nothing at all is hung up at the second."""

TRY_AGAIN_LATER = 1013
NORMAL = 1000
INTERNAL_ERROR = 1011


async def realtime(websocket: WebSocket) -> None:
    """``/v1/realtime``: ``?agent=NAME`` chooses who answers, ``?model=`` is echoed. The guard has let it in."""
    gateway: Gateway = websocket.app.state.gateway
    agent_name = websocket.query_params.get("agent")
    try:
        config = _first_config(gateway, agent_name)
    except UnknownAgent as error:
        await websocket.send_denial_response(JSONResponse(error_body(error.code, str(error)), 404))
        return
    try:
        admission = await gateway.switchboard.admit()
    except Refused as refused:
        await websocket.accept(select_subprotocol(websocket))
        await websocket.close(TRY_AGAIN_LATER, refused.code)
        return
    with admission:
        await websocket.accept(select_subprotocol(websocket))
        protocol = RealtimeProtocol(
            call_id=admission.call_id,
            model=websocket.query_params.get("model", "offhook")[:64],
            defaults=SessionDefaults(config, gateway.engines.tts.voices, agent=agent_name is not None),
            new_id=_new_id,
            now_s=time.time,
        )
        leg = WebSocketLeg(protocol)
        record = CallRecord(id=admission.call_id, transport="websocket", agent=agent_name, started_at=datetime.now(UTC))
        call = Call(
            record=record,
            config=protocol.config,
            engines=gateway.engines,
            leg=leg,
            phrases=gateway.phrases,
            metrics=gateway.metrics,
            farewell=gateway.settings.farewell,
            new_id=_new_id,
            strict=gateway.strict,
        )
        leg.attach(call)
        gateway.switchboard.register(admission, call)
        await _run(websocket, protocol, leg, call)


def _first_config(gateway: Gateway, agent_name: str | None) -> SessionConfig:
    """An agent's own, or for a client that names none the documented defaults and nothing else of ours."""
    settings = gateway.settings
    if agent_name is not None:
        config = gateway.agents.get(agent_name).session_config()
    else:
        config = SessionConfig(instructions=settings.default_instructions, max_call_s=settings.max_call_s)
    return msgspec.structs.replace(config, voice=config.voice or gateway.engines.tts.voices[0])


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(10)}"


async def _run(websocket: WebSocket, protocol: RealtimeProtocol, leg: WebSocketLeg, call: Call) -> None:
    """The call's task group: what comes in, what goes out, and the end of both."""
    structlog.contextvars.bind_contextvars(call=call.id)
    protocol.open()
    leg.flush()
    try:
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(_receive(websocket, protocol, leg, call), name="receive")
            sending = tasks.create_task(leg.send_to(websocket, call), name="send")
            call.answered()
            await call.finished.wait()
            receiving.cancel()
            leg.close()
            await asyncio.wait({sending}, timeout=2.0)
            sending.cancel()
    finally:
        if not call.finished.is_set():
            call.hang_up("internal_error")  # a task of the call raised
        if websocket.application_state is WebSocketState.CONNECTED:
            code = INTERNAL_ERROR if call.record.cause == "internal_error" else NORMAL
            await _close(websocket, code, call.record.cause or "")


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    try:
        async with asyncio.timeout(2.0):
            await websocket.close(code, reason)
    except (RuntimeError, OSError, TimeoutError, WebSocketDisconnect):
        pass  # the peer was faster, or is not there


async def _receive(websocket: WebSocket, protocol: RealtimeProtocol, leg: WebSocketLeg, call: Call) -> None:
    ear = _Ear(protocol)
    while not call.finished.is_set():
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            code = message.get("code", 1005)
            call.hang_up("caller_hung_up" if code in (1000, 1001, 1005) else "connection_lost")
            return
        text = message.get("text")
        if text is None:
            protocol.receive_binary()
            leg.flush()
            continue
        if len(text) > OFF_LOOP_BYTES:
            parsed = await asyncio.to_thread(parse_event, text)
        else:
            parsed = parse_event(text)
        for inbound in protocol.apply(parsed):
            leg.flush()
            await _perform(inbound, ear, call)
        leg.flush()


async def _perform(inbound: Inbound, ear: _Ear, call: Call) -> None:
    if isinstance(inbound, AppendAudio):
        for pcm in ear.decode(inbound.audio):
            await call.hear(pcm)
        return
    event: Event
    if isinstance(inbound, CommitAudio):
        event = CommitInput(call.heard_samples, inbound.event_id)
    elif isinstance(inbound, ClearAudio):
        event = ClearInput(call.heard_samples, inbound.event_id)
    else:
        event = inbound
    call.handle(event)


class _Ear:
    """Caller audio from the wire's format to 16 kHz, in blocks short enough for the event loop."""

    def __init__(self, protocol: RealtimeProtocol) -> None:
        self._protocol = protocol
        self._format: WireFormat | None = None
        self._resampler = Resampler(INPUT_RATE_HZ, INPUT_RATE_HZ)

    def decode(self, audio: bytes) -> Iterator[Pcm16]:
        """The blocks of one append, at most half a second each, made when asked for."""
        wire = self._protocol.input_format
        if wire is not self._format:
            self._format = wire
            self._resampler = Resampler(wire.rate_hz, INPUT_RATE_HZ)
        size = wire.rate_hz // 2 * wire.bytes_per_sample
        for at in range(0, len(audio), size):
            yield self._resampler.process(_DECODERS[wire](audio[at : at + size]))


_DECODERS = {WireFormat.PCM: pcm16, WireFormat.PCMU: decode_mulaw, WireFormat.PCMA: decode_alaw}
_ENCODERS = {
    WireFormat.PCM: lambda pcm: pcm.astype("<i2").tobytes(),
    WireFormat.PCMU: encode_mulaw,
    WireFormat.PCMA: encode_alaw,
}


class WebSocketLeg:
    """Notices and audio to Realtime frames, through a bounded outbox that one task empties."""

    lead_ms = LEAD_MS

    def __init__(self, protocol: RealtimeProtocol) -> None:
        self._protocol = protocol
        self._outbox: deque[str] = deque()
        self._size = 0
        self._ready = asyncio.Event()
        self._closed = False
        self._call: Call | None = None

    def attach(self, call: Call) -> None:
        self._call = call

    @property
    def congested(self) -> bool:
        return self._size > CONGESTED_BYTES

    def notify(self, notice: Notice) -> None:
        self._protocol.encode(notice)
        self.flush()

    def play(self, response_id: str, item_id: str, pcm: Pcm16) -> None:
        encode = _ENCODERS[self._protocol.output_format]
        self._protocol.encode_audio(response_id, item_id, encode(pcm))
        self.flush()

    def clear(self) -> None:
        """Nothing to say: a Realtime client clears its buffer on ``speech_started``, or asked for the cancel."""

    def flush(self) -> None:
        """Move what the protocol has to send into the outbox."""
        for text in self._protocol.take():
            self._outbox.append(text)
            self._size += len(text)
        if self._outbox:
            self._ready.set()
        if self._size > MAX_OUTBOX_BYTES and self._call is not None and not self._closed:
            self._closed = True
            self._outbox.clear()
            self._call.hang_up("peer_not_reading")

    def close(self) -> None:
        """Nothing more comes: :meth:`send_to` ends when the outbox is empty."""
        self._closed = True
        self._ready.set()

    async def send_to(self, websocket: WebSocket, call: Call) -> None:
        """Send until closed. A peer that is gone ends the call."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._outbox:
                was_congested = self.congested
                text = self._outbox.popleft()
                self._size -= len(text)
                try:
                    await websocket.send_text(text)
                except (RuntimeError, OSError, WebSocketDisconnect):
                    call.hang_up("connection_lost")
                    return
                if was_congested and not self.congested:
                    call.writable()
            if self._closed:
                return
