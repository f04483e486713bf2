"""The caller's RTP, from packets that SRTP let through to 16 kHz audio without gaps (RFC 3550, RFC 7587)."""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack_from

import numpy as np
from aiortc.rtp import RtcpReceiverInfo

from engines.api import Pcm16
from streaming.audio.opus import MAX_PACKET_TICKS, TICKS_PER_SAMPLE, BadPacket, OpusDecoder, packet_ticks
from streaming.jitter import Audio, JitterBuffer, Lost, Packet, Piece

_HEADER_BYTES = 12
_NOT_CODED_BYTES = 2
"""A packet no longer than this says that nothing was coded: the sender is silent until a longer one (DTX)."""


class RtpReceiver:
    """``hear`` gets mono audio at 16 kHz, in order, positions by RTP time. Times are ``time.monotonic()`` seconds."""

    def __init__(self, payload_type: int, hear: Callable[[Pcm16], None]) -> None:
        self._payload_type = payload_type
        self._hear = hear
        self._buffer = JitterBuffer()
        self.counts = self._buffer.counts
        self._decoder = OpusDecoder()
        self.ssrc: int | None = None
        self.quiet = False
        """The sender says that it is silent."""
        self.heard_s: float | None = None
        """When the last packet came."""
        self.malformed = 0
        self.concealed_ticks = 0
        self._owed_ticks = 0
        self._jitter = 0.0
        self._transit: float | None = None
        self._expected_before = 0
        self._received_before = 0

    @property
    def jitter_ms(self) -> float:
        return self._jitter / 48.0

    def receive(self, data: bytes, now_s: float) -> None:
        """One RTP packet, decrypted."""
        parsed = _parse(data)
        if parsed is None or parsed[0] != self._payload_type:
            self.malformed += 1
            return
        _, sequence, timestamp, ssrc, payload = parsed
        if ssrc != self.ssrc:
            pieces = self._buffer.restart(now_s) if self.ssrc is not None else []
            self.ssrc = ssrc
            self._transit = None
            self._take(pieces)
        try:
            ticks = packet_ticks(payload)
        except BadPacket:
            self.malformed += 1
            ticks, payload = 0, b""
        self.heard_s = now_s
        self.quiet = 0 < len(payload) <= _NOT_CODED_BYTES
        self._measure(timestamp, now_s)
        self._take(self._buffer.push(Packet(sequence, timestamp, ticks, payload), now_s))

    def due_s(self) -> float | None:
        """When :meth:`expire` is to be called, at the latest."""
        return self._buffer.due_s()

    def expire(self, now_s: float) -> None:
        self._take(self._buffer.expire(now_s))

    def fill(self, ticks: int, now_s: float) -> None:
        """The sender is silent: this much of it is over."""
        self._take(self._buffer.fill(ticks, now_s))

    def report(self, last_report: int, delay: int) -> RtcpReceiverInfo | None:
        """The report block about the caller's stream (RFC 3550, section 6.4.1), None before its first packet."""
        if self.ssrc is None:
            return None
        expected = self.counts.expected - self._expected_before
        received = self.counts.received - self._received_before
        self._expected_before, self._received_before = self.counts.expected, self.counts.received
        fraction = (expected - received << 8) // expected if expected > received else 0
        return RtcpReceiverInfo(
            ssrc=self.ssrc,
            fraction_lost=min(fraction, 255),
            packets_lost=max(-(1 << 23), min(self.counts.expected - self.counts.received, (1 << 23) - 1)),
            highest_sequence=self._buffer.highest_sequence,
            jitter=int(self._jitter),
            lsr=last_report,
            dlsr=delay,
        )

    def _measure(self, timestamp: int, now_s: float) -> None:
        """Interarrival jitter (RFC 3550, section 6.4.1)."""
        transit = (int(now_s * 48_000) - timestamp) % (1 << 32)
        if self._transit is not None:
            change = (transit - self._transit + (1 << 31)) % (1 << 32) - (1 << 31)
            if abs(change) < 48_000:  # a jump of the timestamps is no jitter
                self._jitter += (abs(change) - self._jitter) / 16
        self._transit = transit

    def _take(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Audio):
                self._hear(self._decode(piece))
            elif isinstance(piece, Lost):
                self.concealed_ticks += piece.ticks
                self._conceal(piece)
            else:
                self._silence(piece.ticks)

    def _decode(self, piece: Audio) -> Pcm16:
        try:
            return self._decoder.decode(piece.payload)
        except BadPacket:
            self.malformed += 1
            self.concealed_ticks += piece.ticks
            return self._decoder.conceal(piece.ticks)

    def _conceal(self, lost: Lost) -> None:
        """What libopus makes of a short hole; in the middle of a longer one it would only fade: silence."""
        if lost.ticks <= MAX_PACKET_TICKS:
            self._hear(self._decoder.conceal(lost.ticks, lost.following))
            return
        half = MAX_PACKET_TICKS // 2
        self._hear(self._decoder.conceal(half))
        self._silence(lost.ticks - 2 * half)
        self._hear(self._decoder.conceal(half, lost.following))

    def _silence(self, ticks: int) -> None:
        self._owed_ticks += ticks
        samples, self._owed_ticks = divmod(self._owed_ticks, TICKS_PER_SAMPLE)
        if samples:
            self._hear(np.zeros(samples, dtype=np.int16))


def _parse(data: bytes) -> tuple[int, int, int, int, bytes] | None:
    """Payload type, sequence number, timestamp, SSRC and payload; None if it is no RTP packet."""
    if len(data) < _HEADER_BYTES or data[0] >> 6 != 2:
        return None
    first, second, sequence, timestamp, ssrc = unpack_from("!BBHLL", data)
    start, end = _HEADER_BYTES + 4 * (first & 0x0F), len(data)
    if first & 0x10:
        if len(data) < start + 4:
            return None
        start += 4 + 4 * int(unpack_from("!H", data, start + 2)[0])
    if first & 0x20:
        end -= data[-1]
    return (second & 0x7F, sequence, timestamp, ssrc, data[start:end]) if start <= end else None
