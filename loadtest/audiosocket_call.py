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

from loadtest.call import CallOver, CallPlan, EndCause, Key, Pcm16
from loadtest.frame_tables import Encoding, Voice, each_frame, frame_tables
from loadtest.phone_address import AudioSocketAddress
from loadtest.phone_wire import StreamWire
from loadtest.report import BufferReport
from loadtest.stream_playout import StreamPlayout
from loadtest.tcp import reset
from loadtest.ticker import running_clock
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


def encoding(rate_hz: int) -> Encoding:
    """Every frame as the message that carries it."""
    return Encoding(f"audiosocket-{rate_hz}", rate_hz, each_frame(lambda frame: _audio(frame, rate_hz)))


def _audio(pcm: Pcm16, rate_hz: int) -> bytes:
    return message(_KINDS[rate_hz], pcm.astype("<i2", copy=False).tobytes())


async def dial_audiosocket(plan: CallPlan, address: AudioSocketAddress) -> AudioSocketWire:
    """Connect and say the UUID. Raises :class:`CallOver` if nobody listens."""
    loop = asyncio.get_running_loop()
    voice = await frame_tables.voice(encoding(plan.rate_hz), plan.steps)
    began_s = running_clock()()
    try:
        async with asyncio.timeout(_CONNECT_S):
            transport, wire = await loop.create_connection(
                lambda: AudioSocketWire(address, voice, began_s), *(plan.via or (address.host, address.port))
            )
    except (OSError, TimeoutError) as error:
        raise CallOver(EndCause.REFUSED, f"no answer at {address.host}:{address.port}: {error or 'timeout'}") from error
    transport.write(message(_UUID, address.call.bytes))
    wire.begun()
    return wire


class AudioSocketWire(StreamWire, asyncio.Protocol):
    """See :class:`loadtest.call.Wire`."""

    def __init__(self, address: AudioSocketAddress, voice: Voice, began_s: float) -> None:
        super().__init__(str(address.call), began_s)
        self.voice = voice
        self.rate_hz = address.rate_hz
        self._buffer = bytearray()
        self._resampler: tuple[int, Resampler] | None = None
        self._blocked_s: float | None = None
        self._gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of asyncio's
        self.connected()
        self.ear = StreamPlayout(rate_hz=self.rate_hz, room_ms=_ROOM_MS)

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
        self._blocked_s = self._clock()

    def resume_writing(self) -> None:
        self._blocked_s = None

    def eof_received(self) -> bool:
        self.ended(self._hung_up())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        lost = CallOver(EndCause.CONNECTION_LOST, f"the connection was lost: {exc}") if exc else None
        self.ended(lost or self._hung_up())
        self._gone.set()

    def encode(self, pcm: Pcm16) -> bytes:
        return _audio(pcm, self.rate_hz)

    def send_voice(self, frame: bytes, key: Key | None) -> None:
        self.check()
        if key is not None and key.slot == 0:
            self._transport.write(message(_DTMF, key.digit.encode("ascii")))
        self._transport.write(frame)
        if self._blocked_s is not None and self._clock() - self._blocked_s > SEND_S:
            self.end(CallOver(EndCause.STALLED, "the server stopped reading"))

    async def vanish(self, linger_s: float) -> None:
        if not self._gone.is_set():
            self._transport.pause_reading()
            await asyncio.sleep(linger_s)
            reset(self._transport)
            await self._gone.wait()

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

    def buffer(self) -> BufferReport:
        return self.ear.report()

    def _hung_up(self) -> CallOver:
        unheard = "it hung up without a sound: the UUID is unknown or used, or there is no room; its log says which"
        return CallOver(EndCause.AGENT_HANGUP, unheard if self._first_s is None else None)

    def _on_message(self, kind: int, payload: bytes) -> None:
        if kind == _HANG_UP:
            self.ended(self._hung_up())
        elif kind == _ERROR:
            self.ended(
                CallOver(EndCause.CONNECTION_LOST, f"the server reported error {payload.hex() or 'without code'}")
            )
        elif kind == _DTMF:
            self.log.keys_heard += payload.decode("ascii", "replace")
        elif kind in RATES_HZ and len(payload) % 2 == 0:
            self.sounded()
            pcm = np.frombuffer(payload, dtype="<i2").astype(np.int16, copy=False)
            self.ear.push(self._at_our_rate(pcm, RATES_HZ[kind]), self._clock())
        else:
            self.log.note_malformed(f"malformed message: type 0x{kind:02x}, {len(payload)} bytes")

    def _at_our_rate(self, pcm: Pcm16, rate_hz: int) -> Pcm16:
        if rate_hz == self.rate_hz:
            return pcm
        if self._resampler is None or self._resampler[0] != rate_hz:
            self._resampler = rate_hz, Resampler(rate_hz, self.rate_hz)
        return self._resampler[1].process(pcm)
