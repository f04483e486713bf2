"""The caller's side of a call's media: audio without gaps, each key once, silence as it goes by."""

from __future__ import annotations

from collections.abc import Callable

from engines.api import Pcm16
from gateway.transports.phone.line import Quality
from gateway.transports.rtp.packet import RtpPacket
from gateway.transports.rtp.receiver import RtpReceiver
from gateway.transports.sip.codecs import Codec, open_codec
from gateway.transports.sip.media_policy import MediaEvents
from gateway.transports.sip.offer_answer import Agreed
from gateway.transports.sip.telephone_event import KeyReader

QUIET_AFTER_S = 0.2
"""A caller from whom nothing comes for this long is silent: silence is told as it goes by, this far behind."""
FILL_S = 0.1
MAX_SOURCES = 256
"""SSRCs under the keys of one peer: libsrtp keeps a state for each. In clear nothing is kept, and whoever sends
many need not be the caller."""


class CallerStream:
    """Of one agreement after another. Times are the loop's."""

    def __init__(self, events: MediaEvents) -> None:
        self._events = events
        self._agreed: tuple[object, ...] | None = None
        self._receiver: RtpReceiver | None = None
        self._keys = KeyReader(8000)
        self._keys_of: int | None = None
        self._before = Quality(lost=0, concealed=0, late=0)
        self._sources: set[int] = set()
        self._heard_ms = 0.0
        self._filled_s = 0.0
        self.listens = False
        """Audio goes to the call; else it is passed over."""

    @property
    def receiver(self) -> RtpReceiver:
        """From the first agreement on; another one after one that changes what may come."""
        assert self._receiver is not None
        return self._receiver

    @property
    def ready(self) -> bool:
        return self._receiver is not None

    @property
    def too_many_sources(self) -> bool:
        return len(self._sources) > MAX_SOURCES

    def agree(self, agreed: Agreed, codec: Codec, now_s: float) -> None:
        """``codec`` is that of the first format."""
        self._filled_s = now_s
        means = (agreed.formats, agreed.keys, agreed.comfort_noise)
        if means == self._agreed:
            return
        self._agreed = means
        first = agreed.formats[0]
        decodings = {one.payload_type: codec if one is first else open_codec(one.name) for one in agreed.formats}
        events: dict[int, Callable[[RtpPacket], None]] = {}
        if agreed.keys is not None:
            self._keys = KeyReader(agreed.keys.clock_hz)
            events[agreed.keys.payload_type] = self._on_key
        if agreed.comfort_noise is not None:
            events[agreed.comfort_noise] = self._on_comfort_noise
        self._before = self.quality()
        self._receiver = RtpReceiver(decodings, self._hear, events)

    def take(self, packet: bytes, now_s: float, *, secured: bool) -> bool:
        """False: it is none of this stream. ``secured``: it came as SRTP."""
        receiver = self.receiver
        if not receiver.receive(packet, now_s):
            return False
        if secured and receiver.ssrc is not None:
            self._sources.add(receiver.ssrc)
        return True

    def on_time(self, now_s: float) -> float:
        """What is due now. Returns when something is again, if no packet comes before."""
        receiver = self.receiver
        receiver.expire(now_s)
        if not self.listens:
            self._filled_s = now_s
        elif receiver.heard_s is not None and now_s - receiver.heard_s >= QUIET_AFTER_S:
            self._fill(receiver, max(self._filled_s, receiver.heard_s + 0.02), now_s)
        due_s = max(now_s + FILL_S, (receiver.heard_s or 0.0) + QUIET_AFTER_S)
        gap_s = receiver.due_s()
        return due_s if gap_s is None else min(due_s, gap_s)

    def quality(self) -> Quality:
        """Of what came in."""
        before, receiver = self._before, self._receiver
        if receiver is None:
            return before
        counts = receiver.counts
        return Quality(
            frames_in=before.frames_in + counts.received,
            lost=(before.lost or 0) + counts.lost,
            concealed=(before.concealed or 0) - -receiver.concealed_ticks // (receiver.decoding.clock_hz // 50),
            late=(before.late or 0) + counts.late,
            jitter_ms=round(receiver.jitter_ms, 1),
        )

    def _fill(self, receiver: RtpReceiver, begins_s: float, now_s: float) -> None:
        """Nothing comes: to whoever listens for the end of a turn that is silence, and not nothing."""
        until_s = now_s - FILL_S
        if until_s > begins_s:
            receiver.fill(int((until_s - begins_s) * receiver.decoding.clock_hz), now_s)
            self._filled_s = until_s

    def _hear(self, pcm: Pcm16) -> None:
        if not self.listens:
            return
        rate_hz = self.receiver.decoding.rate_hz
        at_ms = self._heard_ms
        self._heard_ms = at_ms + len(pcm) * 1000 / rate_hz
        self._events.audio(pcm, rate_hz, at_ms)

    def _on_key(self, packet: RtpPacket) -> None:
        if packet.ssrc != self._keys_of:
            self._keys_of = packet.ssrc
            self._keys.forget()
        key = self._keys.read(packet.payload, packet.timestamp, marker=packet.marker)
        if key is not None:
            self._events.dtmf(key)

    def _on_comfort_noise(self, packet: RtpPacket) -> None:
        self.receiver.quiet = True
