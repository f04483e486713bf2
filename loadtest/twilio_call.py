"""A call as Twilio Media Streams makes it: a WebSocket with JSON both ways, mu-law at 8 kHz, the buffer at our end.

What is sent and understood is what Twilio documents ("Media Streams: WebSocket Messages", bidirectional streams;
"Security": the signature of the upgrade). Messages that Twilio would not take are noted as errors and ignored.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from loadtest.call import PHONE_RATE_HZ, SLOT_MS, CallOver, CallPlan, EndCause, Key, Pcm16
from loadtest.frame_tables import Encoding, Voice, each_frame, frame_tables
from loadtest.phone_wire import StreamWire, not_taken
from loadtest.report import BufferReport
from loadtest.stream_playout import StreamPlayout
from loadtest.ticker import running_clock
from loadtest.websocket_link import WebSocketLink
from streaming.audio.g711 import decode_mulaw, encode_mulaw

_MAX_MESSAGE_BYTES = 1024 * 1024


class _Media(msgspec.Struct):
    payload: str | None = None


class _Mark(msgspec.Struct):
    name: str | None = None


class _Message(msgspec.Struct):
    """What a server may send."""

    event: str
    streamSid: str | None = None  # noqa: N815 (the wire's name)
    media: _Media | None = None
    mark: _Mark | None = None


_decoder = msgspec.json.Decoder(_Message)


def signature(auth_token: str, url: str) -> str:
    """``X-Twilio-Signature`` of an upgrade: of its URL alone."""
    return base64.b64encode(hmac.digest(auth_token.encode(), url.encode(), hashlib.sha1)).decode("ascii")


def _payload(frame: Pcm16) -> bytes:
    return base64.b64encode(encode_mulaw(frame))


ENCODING = Encoding("mulaw-base64", PHONE_RATE_HZ, each_frame(_payload))
"""Every frame as the payload of its message, whose numbers are the call's."""


def stream_parameters(plan: CallPlan) -> dict[str, str]:
    """The ``customParameters``: what the plan says, with ``agent`` and ``from``."""
    parameters = dict(plan.phone.parameters)
    if plan.agent is not None:
        parameters["agent"] = plan.agent
    if plan.phone.caller is not None:
        parameters["from"] = plan.phone.caller
    return parameters


async def dial_twilio(plan: CallPlan, url: str) -> TwilioWire:
    """Open the stream as Twilio does: signed upgrade, ``connected``, ``start``. Raises :class:`CallOver`."""
    token = plan.phone.auth_token
    headers = {"X-Twilio-Signature": signature(token, plan.phone.signed_url or url)} if token else None
    voice = await frame_tables.voice(ENCODING, plan.steps)
    began_s = running_clock()()
    link = await WebSocketLink.open(url, plan, headers, max_message_bytes=_MAX_MESSAGE_BYTES)
    wire = TwilioWire(link, voice, began_s)
    try:
        wire.start(stream_parameters(plan))
    except CallOver as over:
        await link.close()
        raise not_taken(over) from None
    except BaseException:
        await link.close()
        raise
    return wire


def _sid(kind: str) -> str:
    return kind + secrets.token_hex(16)


class TwilioWire(StreamWire):
    """See :class:`loadtest.call.Wire`."""

    rate_hz = PHONE_RATE_HZ

    def __init__(self, link: WebSocketLink, voice: Voice, began_s: float) -> None:
        self.call_sid = _sid("CA")
        super().__init__(self.call_sid, began_s)
        self.connected()
        self.voice = voice
        self._link = link
        self._account_sid, self._stream_sid = _sid("AC"), _sid("MZ")
        self._sid_bytes = self._stream_sid.encode("ascii")
        self._sequence = 0
        self._chunk = 0
        self._at_ms = 0
        self.ear = StreamPlayout(rate_hz=self.rate_hz)

    def start(self, parameters: dict[str, str]) -> None:
        """Say what every stream begins with."""
        self._link.send(msgspec.json.encode({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
        media_format = {"encoding": "audio/x-mulaw", "sampleRate": PHONE_RATE_HZ, "channels": 1}
        about = {"accountSid": self._account_sid, "streamSid": self._stream_sid, "callSid": self.call_sid}
        start = {**about, "tracks": ["inbound"], "customParameters": parameters, "mediaFormat": media_format}
        self._send("start", start=start)
        self.begun()

    def attend(self, turn: Callable[[], int], on_over: Callable[[CallOver], None]) -> None:
        super().attend(turn, on_over)
        self._link.attend(self._on_message, self.ended)

    def encode(self, pcm: Pcm16) -> bytes:
        return _payload(pcm)

    def send_voice(self, frame: bytes, key: Key | None) -> None:
        for name in self.ear.take_reached():
            self._send("mark", mark={"name": name})
        if key is not None and key.slot == 0:
            self._send("dtmf", dtmf={"track": "inbound_track", "digit": key.digit})
        self._sequence += 1
        self._chunk += 1
        self._link.send(
            b'{"event":"media","sequenceNumber":"%d","media":{"track":"inbound","chunk":"%d","timestamp":"%d",'
            b'"payload":"%b"},"streamSid":"%b"}' % (self._sequence, self._chunk, self._at_ms, frame, self._sid_bytes)
        )
        self._at_ms += SLOT_MS

    def skip(self, slots: int) -> None:
        self._at_ms += slots * SLOT_MS

    async def vanish(self, linger_s: float) -> None:
        await self._link.vanish(linger_s)

    async def hang_up(self) -> str | None:
        if self.over is None:
            with contextlib.suppress(CallOver):  # the other end was quicker
                self._send("stop", stop={"accountSid": self._account_sid, "callSid": self.call_sid})
        self.end(CallOver(EndCause.HANGUP))
        await self._link.close()
        return None

    def buffer(self) -> BufferReport:
        return self.ear.report()

    def _on_message(self, raw: str | bytes) -> None:
        if isinstance(raw, bytes):
            self.log.note_malformed("malformed message: binary")
            return
        try:
            message = _decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            self.log.note_malformed(f"malformed message: {error}")
            return
        if message.streamSid != self._stream_sid:
            self.log.note_malformed(f"{message.event}: not this stream's streamSid")
            return
        now_s = self._clock()
        match message:
            case _Message(event="media", media=_Media(payload=str(payload))):
                try:
                    pcm = decode_mulaw(binascii.a2b_base64(payload, strict_mode=True))
                except (binascii.Error, ValueError):
                    self.log.note_malformed("media: its payload is not base64")
                    return
                self.sounded()
                self.ear.push(pcm, now_s)
            case _Message(event="mark", mark=_Mark(name=str(name))):
                self.ear.mark(name, now_s)
            case _Message(event="clear"):
                self.ear.clear(now_s)
            case _:
                self.log.note_malformed(f"{message.event}: unknown, or without what belongs to it")

    def _send(self, event: str, **content: Any) -> None:
        self._sequence += 1
        numbers = {"event": event, "sequenceNumber": str(self._sequence)}
        self._link.send(msgspec.json.encode({**numbers, **content, "streamSid": self._stream_sid}))
