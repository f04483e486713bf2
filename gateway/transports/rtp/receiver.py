"""A caller's RTP, from packets that are let through to audio without gaps (RFC 3550)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from aiortc.rtp import RtcpReceiverInfo

from engines.api import Pcm16
from gateway.transports.rtp.decoding import Decoding
from gateway.transports.rtp.packet import RtpPacket, parse_rtp
from streaming.audio.level import rms_dbfs
from streaming.jitter import Audio, JitterBuffer, Lost, Packet, Piece

SILENT_DBFS = -50.0
"""Quieter audio may be left out where silence was told too early: what is heard keeps to the clock then."""

_NO_EVENTS: Mapping[int, Callable[[RtpPacket], None]] = {}


class RtpReceiver:
    """``hear`` gets mono audio at ``decoding.rate_hz``, in order, positions by RTP time. Times are ``time.monotonic()``
    seconds. ``decodings`` by payload type, all of one clock; ``events`` take the packets of payload types that carry
    no audio (keys, comfort noise), as they come."""

    def __init__(
        self,
        decodings: Mapping[int, Decoding],
        hear: Callable[[Pcm16], None],
        events: Mapping[int, Callable[[RtpPacket], None]] = _NO_EVENTS,
    ) -> None:
        self._decodings = decodings
        self._events = events
        self._hear = hear
        self._payload_type, self.decoding = next(iter(decodings.items()))
        self._clock_hz = self.decoding.clock_hz
        self._buffer = JitterBuffer(self._clock_hz)
        self.counts = self._buffer.counts
        self.ssrc: int | None = None
        self.quiet = False
        """The sender says that it is silent."""
        self.heard_s: float | None = None
        """When the last packet came."""
        self.malformed = 0
        self.concealed_ticks = 0
        self._owed_ticks = 0
        self._left_out_ticks = 0
        self._jitter = 0.0
        self._transit: float | None = None
        self._expected_before = 0
        self._received_before = 0

    @property
    def jitter_ms(self) -> float:
        return self._jitter * 1000.0 / self._clock_hz

    def receive(self, data: bytes, now_s: float) -> bool:
        """One RTP packet, decrypted. False: it is none of this stream."""
        packet = parse_rtp(data)
        if packet is None:
            self.malformed += 1
            return False
        kind = packet.payload_type
        event = self._events.get(kind) if kind != self._payload_type else None
        if kind != self._payload_type and event is None and kind not in self._decodings:
            self.malformed += 1
            return False
        if packet.ssrc != self.ssrc:
            if self.ssrc is not None:
                self._begin_anew(now_s)
            self.ssrc = packet.ssrc
        self.heard_s = now_s
        if event is not None:
            event(packet)
            self._take(self._buffer.push(Packet(packet.sequence, packet.timestamp, 0, b"", silent=True), now_s))
            return True
        if kind != self._payload_type:  # the sender changes the codec
            self._begin_anew(now_s)
            self._payload_type, self.decoding = kind, self._decodings[kind]
        payload = packet.payload
        try:
            ticks = self.decoding.ticks(payload)
        except ValueError:
            self.malformed += 1
            ticks, payload = 0, b""
        self.quiet = self.decoding.is_quiet(payload)
        self._measure(packet.timestamp, now_s)
        self._take(self._buffer.push(Packet(packet.sequence, packet.timestamp, ticks, payload), now_s))
        return True

    def _begin_anew(self, now_s: float) -> None:
        """What comes now has timestamps, or a coding, of its own."""
        self._take(self._buffer.restart(now_s))
        self._transit = None

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
        transit = (int(now_s * self._clock_hz) - timestamp) % (1 << 32)
        if self._transit is not None:
            change = (transit - self._transit + (1 << 31)) % (1 << 32) - (1 << 31)
            if abs(change) < self._clock_hz:  # a jump of the timestamps is no jitter
                self._jitter += (abs(change) - self._jitter) / 16
        self._transit = transit

    def _take(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Audio):
                pcm = self._decode(piece)
                if self._left_out_ticks < self.counts.overlap_ticks and rms_dbfs(pcm) < SILENT_DBFS:
                    self._left_out_ticks += piece.ticks
                else:
                    self._hear(pcm)
            elif isinstance(piece, Lost):
                self.concealed_ticks += piece.ticks
                self._conceal(piece)
            else:
                self._silence(piece.ticks)

    def _decode(self, piece: Audio) -> Pcm16:
        try:
            return self.decoding.decode(piece.payload)
        except ValueError:
            self.malformed += 1
            self.concealed_ticks += piece.ticks
            return self.decoding.conceal(piece.ticks, b"")

    def _conceal(self, lost: Lost) -> None:
        """What the codec makes of a short hole; in the middle of a longer one it would only fade: silence."""
        longest = self.decoding.longest_hole_ticks
        if lost.ticks <= longest:
            self._hear(self.decoding.conceal(lost.ticks, lost.following))
            return
        half = longest // 2
        self._hear(self.decoding.conceal(half, b""))
        self._silence(lost.ticks - 2 * half)
        self._hear(self.decoding.conceal(half, lost.following))

    def _silence(self, ticks: int) -> None:
        self._owed_ticks += ticks * self.decoding.rate_hz
        samples, self._owed_ticks = divmod(self._owed_ticks, self._clock_hz)
        if samples:
            self._hear(np.zeros(samples, dtype=np.int16))
