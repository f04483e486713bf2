"""A call as Asterisk's AudioSocket makes it: one TCP connection, 20 ms of PCM a message, keys beside it.

Wire (docs.asterisk.org, "AudioSocket"): type (1 byte), length (2 bytes, big-endian), payload. The first message is the
call's UUID. Asterisk plays what comes as it comes: it has no buffer to clear and no marks.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import cast

import numpy as np

from loadtest.call import SLOT_MS, CallOver, CallPlan, EndCause, Key, Pcm16, Voice, frames_of
from loadtest.phone_address import AudioSocketAddress
from loadtest.phone_wire import PhoneWire
from loadtest.report import BufferReport, SetupReport
from loadtest.stream_playout import StreamPlayout
from loadtest.wire import SEND_S
from streaming.audio.resample import Resampler

RATES_HZ = {
    0x10: 8_000,
    0x11: 12_000,
    0x12: 16_000,
    0x13: 24_000,
    0x14: 32_000,
    0x15: 44_100,
    0x16: 48_000,
    0x17: 96_000,
    0x18: 192_000,
}
"""Of an audio message, by its type."""

_HANG_UP, _UUID, _DTMF, _ERROR = 0x00, 0x01, 0x03, 0xFF
_KINDS = {rate_hz: kind for kind, rate_hz in RATES_HZ.items()}
_CONNECT_S = 10.0
_CLOSE_S = 2.0
_ROOM_MS = 1_000
"""What waits behind Asterisk to be heard, at most: it writes on, and the phone's jitter buffer holds no more."""


def message(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack(">BH", kind, len(payload)) + payload


def encode_voice(plan: CallPlan) -> Voice:
    """Every frame as the message that carries it."""
    kind = _KINDS[plan.rate_hz]

    def encoded(frame: Pcm16) -> bytes:
        return message(kind, frame.astype("<i2", copy=False).tobytes())

    lines = tuple([encoded(frame) for frame in frames_of(turn.pcm, plan.rate_hz)] for turn in plan.turns)
    return Voice(lines, encoded(np.zeros(plan.rate_hz * SLOT_MS // 1000, dtype=np.int16)))


async def dial_audiosocket(plan: CallPlan, address: AudioSocketAddress) -> AudioSocketWire:
    """Connect and say the UUID. Raises :class:`CallOver` if nobody listens."""
    loop = asyncio.get_running_loop()
    voice = encode_voice(plan)
    began_s = loop.time()
    try:
        async with asyncio.timeout(_CONNECT_S):
            transport, wire = await loop.create_connection(
                lambda: AudioSocketWire(address, voice, began_s), address.host, address.port
            )
    except (OSError, TimeoutError) as error:
        raise CallOver(EndCause.REFUSED, f"no answer at {address.host}:{address.port}: {error or 'timeout'}") from error
    transport.write(message(_UUID, address.call.bytes))
    return wire


class AudioSocketWire(PhoneWire, asyncio.Protocol):
    """See :class:`loadtest.call.Wire`."""

    def __init__(self, address: AudioSocketAddress, voice: Voice, began_s: float) -> None:
        super().__init__(str(address.call))
        self.voice = voice
        self.rate_hz = address.rate_hz
        self._loop = asyncio.get_running_loop()
        self._began_s = began_s
        self._buffer = bytearray()
        self._resampler: tuple[int, Resampler] | None = None
        self._first_s: float | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of asyncio's
        self.origin_s = self._loop.time()
        self.setup_ms = (self.origin_s - self._began_s) * 1000
        self.ear = StreamPlayout(self.origin_s, rate_hz=self.rate_hz, room_ms=_ROOM_MS)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 3:
            kind, length = struct.unpack_from(">BH", self._buffer)
            if len(self._buffer) < 3 + length:
                return
            payload = bytes(self._buffer[3 : 3 + length])
            del self._buffer[: 3 + length]
            self._on_message(kind, payload)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> bool:
        self.end(self._hung_up())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        lost = CallOver(EndCause.CONNECTION_LOST, f"the connection was lost: {exc}") if exc else None
        self.end(lost or self._hung_up())
        self._writable.set()
        self._gone.set()

    async def send_voice(self, frame: bytes, key: Key | None) -> None:
        self.check()
        if key is not None and key.slot == 0:
            self._transport.write(message(_DTMF, key.digit.encode("ascii")))
        self._transport.write(frame)
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(SEND_S):
                    await self._writable.wait()
            except TimeoutError as error:
                raise CallOver(EndCause.STALLED, "the server stopped reading") from error

    async def hang_up(self) -> str | None:
        if not self._gone.is_set():
            if self.over is None:
                self._transport.write(message(_HANG_UP))
            self.end(CallOver(EndCause.HANGUP))
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._gone.wait()
            self._transport.abort()
        return None

    def setup(self) -> SetupReport:
        first_ms = None if self._first_s is None else round((self._first_s - self._began_s) * 1000, 1)
        return SetupReport(round(self.setup_ms, 1), None, None, first_ms)

    def buffer(self) -> BufferReport:
        return self.ear.report()

    def _hung_up(self) -> CallOver:
        unheard = "it hung up without a sound: the UUID is unknown or used, or there is no room; its log says which"
        return CallOver(EndCause.AGENT_HANGUP, unheard if self._first_s is None else None)

    def _on_message(self, kind: int, payload: bytes) -> None:
        if kind == _HANG_UP:
            self.end(self._hung_up())
        elif kind == _ERROR:
            self.end(CallOver(EndCause.CONNECTION_LOST, f"the server reported error {payload.hex() or 'without code'}"))
        elif kind == _DTMF:
            self.log.keys_heard += payload.decode("ascii", "replace")
        elif kind in RATES_HZ and len(payload) % 2 == 0:
            self._first_s = self._loop.time() if self._first_s is None else self._first_s
            pcm = np.frombuffer(payload, dtype="<i2").astype(np.int16, copy=False)
            self.ear.push(self._at_our_rate(pcm, RATES_HZ[kind]), self._loop.time())
        else:
            self.log.note_error(f"malformed message: type 0x{kind:02x}, {len(payload)} bytes")

    def _at_our_rate(self, pcm: Pcm16, rate_hz: int) -> Pcm16:
        if rate_hz == self.rate_hz:
            return pcm
        if self._resampler is None or self._resampler[0] != rate_hz:
            self._resampler = rate_hz, Resampler(rate_hz, self.rate_hz)
        return self._resampler[1].process(pcm)
