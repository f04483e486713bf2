"""The phone's audio: G.711 in RTP (RFC 3550, 3551) and keys as telephone-events (RFC 4733), one socket a call.

Frames are sent as they are handed over, so whoever speaks keeps the time; what comes goes straight to the ear. Of the
codecs that were offered the other end may send any, and change from packet to packet, whichever one it is spoken to in
(RFC 3264 section 6.1).
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from collections.abc import Callable

from loadtest.call import PHONE_RATE_HZ, SLOT_MS, Key, Pcm16
from loadtest.rtp_playout import RtpPlayout
from loadtest.sip.sdp import CODECS, EVENT_TYPE, RemoteMedia
from loadtest.ticker import running_clock
from streaming.audio.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw

ENCODERS: dict[str, Callable[[Pcm16], bytes]] = {"pcmu": encode_mulaw, "pcma": encode_alaw}
DECODERS: dict[str, Callable[[bytes], Pcm16]] = {"pcmu": decode_mulaw, "pcma": decode_alaw}
KEYS = "0123456789*#ABCD"
"""By event code (RFC 4733 section 3.2)."""

_SLOT_TICKS = PHONE_RATE_HZ * SLOT_MS // 1000
_HEADER = struct.Struct(">BBHII")
_EVENT = struct.Struct(">BBH")
_VOLUME = 10  # dBm0 below, as phones say
_END_COPIES = 3
_EARLY_S = 0.1
"""Sound may overtake the word that the call is up, by so much. What came before that is early media (a ringing tone, an
announcement), and was over by then: it is no part of the call, and must not be played late in it."""
_MAX_EARLY = 100
_PORT_TRIES = 50
_FADE = 0.5
_EVERY = bytes(range(256))
_OTHER_LAW = {
    ("pcmu", "pcma"): encode_alaw(decode_mulaw(_EVERY)),
    ("pcma", "pcmu"): encode_mulaw(decode_alaw(_EVERY)),
}
_BY_TYPE = {number: DECODERS[codec] for codec, number in CODECS.items()}
_SILENCE = b"\xff" * _SLOT_TICKS  # mu-law
_SILENT_PACKET = bytes([CODECS["pcmu"]]) + _SILENCE
_COMFORT_NOISE = 13


class G711Decoder:
    """A :class:`loadtest.rtp_playout.Decoding` of payloads behind their type, one byte. A lost packet is the last one
    again, each time half as loud."""

    def __init__(self) -> None:
        self._last = decode_mulaw(_SILENCE)
        self._gain = 1.0

    def decode(self, payload: bytes) -> Pcm16:
        if len(payload) < 2:
            raise ValueError("an empty packet")
        self._last, self._gain = _BY_TYPE[payload[0]](payload[1:]), 1.0
        return self._last

    def recover(self, samples: int, following: bytes | None) -> Pcm16:
        self._gain *= _FADE
        again = (self._last * self._gain).astype(self._last.dtype)
        return again if len(again) == samples else again.repeat(-(-samples // len(again)))[:samples]


class RtpPort(asyncio.DatagramProtocol):
    """Bound before the call, heard through :attr:`ear` from :meth:`listen` on. ``on_unknown`` is told once of every
    payload type that this phone can't play."""

    def __init__(
        self, on_first: Callable[[], None], on_key: Callable[[str], None], on_unknown: Callable[[int], None]
    ) -> None:
        self.ear: RtpPlayout | None = None
        self.port = 0
        self._on_first = on_first
        self._on_key = on_key
        self._on_unknown = on_unknown
        self._unknown: set[int] = set()
        self._clock = running_clock()
        self._transport: asyncio.DatagramTransport | None = None
        self._closed = asyncio.Event()
        self._remote: RemoteMedia | None = None
        self._address: tuple[str, int] = ("", 0)
        self._spoken = ""
        self._ssrc = random.getrandbits(32)
        self._sequence = random.getrandbits(15)
        self._timestamp = random.getrandbits(32)
        self._event_timestamp = 0
        self._spoke = False
        self._deaf = False
        self._early: deque[tuple[bytes, float]] = deque(maxlen=_MAX_EARLY)
        self._their_ssrc: int | None = None
        self._their_event: int | None = None
        self._audio: tuple[int, int] | None = None

    async def open(self, host: str) -> None:
        """Bind an even port of ``host``. Raises :class:`OSError`."""
        loop = asyncio.get_running_loop()
        for _ in range(_PORT_TRIES):
            bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
            try:
                bound.bind((host, 0))
                self.port = bound.getsockname()[1]
                if self.port % 2 == 0:
                    await loop.create_datagram_endpoint(lambda: self, sock=bound)
                    return
            except OSError:
                bound.close()
                raise
            bound.close()
        raise OSError("no even port is free")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()

    def talk_to(self, remote: RemoteMedia) -> None:
        """From here on. An address must be numeric: names are resolved before."""
        self._remote, self._address = remote, (remote.host, remote.port)

    def listen(self, spoken: str) -> RtpPlayout:
        """The call is up, and frames come in this codec: hear, what came just before included."""
        self._spoken = spoken
        self.ear = RtpPlayout(None, G711Decoder(), rate_hz=PHONE_RATE_HZ, clock_hz=PHONE_RATE_HZ, slot_ms=SLOT_MS)
        since_s = self._clock() - _EARLY_S
        for data, at_s in self._early:
            if at_s >= since_s:
                self._on_packet(data, at_s)
        self._early.clear()
        return self.ear

    def send(self, payload: bytes, key: Key | None) -> None:
        """The frame of the slot that just ended, or the key that was down in it. On hold nothing is sent, and time goes
        on. Frames were made in the codec that the call began in; the other end may have asked for the other since."""
        remote = self._remote
        if remote is not None and remote.receives:
            if key is not None and remote.event_type is not None:
                self._send_key(key, remote.event_type)
            else:
                if remote.codec != self._spoken:
                    payload = payload.translate(_OTHER_LAW[self._spoken, remote.codec])
                self._put(remote.payload_type, self._timestamp, payload, marker=not self._spoke)
                self._spoke = True
        self._timestamp = (self._timestamp + _SLOT_TICKS) & 0xFFFFFFFF

    def deafen(self) -> None:
        """What comes from now on is not heard."""
        self._deaf = True

    def skip(self, slots: int) -> None:
        self._timestamp = (self._timestamp + slots * _SLOT_TICKS) & 0xFFFFFFFF

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self._deaf:
            return
        now_s = self._clock()
        if self.ear is None:
            self._early.append((data, now_s))
            return
        self._on_packet(data, now_s)

    def _send_key(self, key: Key, event_type: int) -> None:
        if key.slot == 0:
            self._event_timestamp = self._timestamp
        flags = _VOLUME | (0x80 if key.last else 0)
        event = _EVENT.pack(KEYS.index(key.digit), flags, (key.slot + 1) * _SLOT_TICKS)
        for copy in range(_END_COPIES if key.last else 1):
            self._put(event_type, self._event_timestamp, event, marker=key.slot == 0 and copy == 0)

    def _put(self, payload_type: int, timestamp: int, payload: bytes, *, marker: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        kind = payload_type | (0x80 if marker else 0)
        header = _HEADER.pack(0x80, kind, self._sequence, timestamp, self._ssrc)
        self._sequence = (self._sequence + 1) & 0xFFFF
        self._transport.sendto(header + payload, self._address)

    def _on_packet(self, data: bytes, now_s: float) -> None:
        ear, remote = self.ear, self._remote
        if len(data) < 12 or data[0] >> 6 != 2 or ear is None or remote is None:
            return  # no RTP, as what keeps a NAT's way open
        first, kind, sequence, timestamp, ssrc = _HEADER.unpack_from(data)
        start = 12 + (first & 0x0F) * 4
        if first & 0x10 and len(data) >= start + 4:
            start += 4 + int.from_bytes(data[start + 2 : start + 4]) * 4
        payload = data[start : len(data) - (data[-1] if first & 0x20 else 0)]
        if ssrc != self._their_ssrc:
            if self._their_ssrc is None:
                self._on_first()
            else:
                ear.begin_anew()
            self._their_ssrc, self._audio = ssrc, None
        kind &= 0x7F
        if kind in _BY_TYPE:  # our own numbers
            self._audio = sequence, timestamp
            ear.push(sequence, timestamp, bytes([kind]) + payload, now_s)
            return
        if kind in (EVENT_TYPE, remote.event_type):
            if len(payload) >= _EVENT.size and timestamp != self._their_event:
                self._their_event = timestamp
                self._on_key(KEYS[payload[0]] if payload[0] < len(KEYS) else "?")
        elif kind != _COMFORT_NOISE and kind not in self._unknown:
            self._unknown.add(kind)
            self._on_unknown(kind)
        if self._audio is not None:  # the ear plays silence for it: its place in the stream is no loss
            ahead = (sequence - self._audio[0]) & 0xFFFF
            ear.push(sequence, (self._audio[1] + ahead * _SLOT_TICKS) & 0xFFFFFFFF, _SILENT_PACKET, now_s)
