"""A model of how a browser or a phone plays RTP: what is heard, slot by slot, of packets that came over a network.

Sans-IO: every method takes ``now_s``, seconds on one monotonic clock. Slots of 20 ms lie on a grid from ``origin_s``.
The first packet after the buffer was empty waits :data:`PREBUFFER_MS`, then packets play in the order of their sequence
numbers and at the distances of their RTP timestamps. A packet that is not there when its turn comes while a later one
is, is lost: it is concealed, from the next packet's in-band FEC where there is some (Opus), and thrown away if it comes
after all. A buffer that runs dry is silent until it has filled again; nothing is skipped for that, so delay grows by
what came late, and shrinks again in silence once more than :data:`SHRINK_MS` is queued.

aiortc's own buffer is no model of this: it delays audio by 80 ms, after one loss by 281 ms for the rest of the call,
and throws good packets away with the lost one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadtest.ear import EARLY_S, Ear, Pcm16, power_of
from loadtest.report import MediaReport

PREBUFFER_MS = 40
"""What is gathered before play begins: a desktop browser's buffer on a good network (Chromium measured: 36 ms)."""

SHRINK_MS = PREBUFFER_MS + 100
"""Silent frames are skipped while more than this is queued."""

MAX_PACKETS = 500
"""Queued and not yet played; more are dropped and counted."""

OPUS_CLOCK_HZ = 48_000
"""Of Opus timestamps, whatever the audio's own rate (RFC 7587 section 4.1)."""

_MAX_CONCEALED = 25  # packets in a row; beyond that the stream begins anew
_MAX_OLD = 1_000
_MAX_PACKET_MS = 120


class Decoding(Protocol):
    """A stateful decoder to mono at the call's rate."""

    def decode(self, payload: bytes) -> Pcm16: ...

    def recover(self, samples: int, following: bytes | None) -> Pcm16:
        """A lost packet, from what the following one tells of it, or by concealment."""


@dataclass(slots=True)
class PlayoutCounts:
    """Packets, but for ``concealed_ms``."""

    received: int = 0
    lost: int = 0
    late: int = 0
    duplicate: int = 0
    reordered: int = 0
    dropped: int = 0
    malformed: int = 0
    skipped_silent: int = 0
    concealed_ms: int = 0


class RtpPlayout(Ear):
    """One call's ear. Heard audio is mono int16 at ``rate_hz``."""

    def __init__(
        self,
        origin_s: float | None,
        decoder: Decoding,
        *,
        rate_hz: int = 24_000,
        clock_hz: int = OPUS_CLOCK_HZ,
        slot_ms: int = 20,
        prebuffer_ms: int = PREBUFFER_MS,
    ) -> None:
        super().__init__(origin_s, rate_hz, slot_ms)
        self.counts = PlayoutCounts()
        self._decoder = decoder
        self._clock_hz = clock_hz
        self._prebuffer_s = prebuffer_ms / 1000
        self._packets: dict[int, tuple[int, bytes]] = {}
        self._decoded = np.zeros(0, dtype=np.int16)
        self._packet_samples = self.slot_samples
        self._highest: int | None = None
        self._next_sequence: int | None = None
        self._next_timestamp = 0
        self._play_from_s: float | None = None
        self._missed: list[int] = []
        self._dry = True
        self._hole = False
        self._spoke = False
        self._newest_timestamp = 0
        self._is_second = False

    @property
    def busy(self) -> bool:
        return self._queued_ms() > SHRINK_MS

    @property
    def lost(self) -> int:
        return self.counts.lost

    def push(self, sequence: int, timestamp: int, payload: bytes, now_s: float) -> None:
        """A packet arrived: 16-bit sequence number and 32-bit timestamp as on the wire."""
        self.advance(now_s)
        self.counts.received += 1
        sequence = self._unwrapped(sequence)
        if sequence in self._packets:
            self.counts.duplicate += 1
            return
        if self._next_sequence is not None and sequence < self._next_sequence:
            if self._next_sequence - sequence <= _MAX_OLD:
                self.counts.late += 1
                return
            self.begin_anew()
        if len(self._packets) >= MAX_PACKETS:
            self.counts.dropped += 1
            return
        if self._highest is not None and sequence < self._highest:
            self.counts.reordered += 1
        else:
            self._arrived(sequence, timestamp, now_s)
        if self._dry and not self._packets:
            self._play_from_s = now_s + self._prebuffer_s
            lost = 0 if self._next_sequence is None else sequence - self._next_sequence
            due = self._after(self._next_timestamp, lost * self._packet_samples)
            self._hole = self._spoke and timestamp == due  # the sender had not paused
        self._packets[sequence] = (timestamp, payload)

    def _arrived(self, sequence: int, timestamp: int, now_s: float) -> None:
        """A packet came that is newer than all before it."""
        steps = 0 if self._highest is None else sequence - self._highest
        passed = ((timestamp - self._newest_timestamp) & 0xFFFFFFFF) * self._rate_hz // self._clock_hz
        if self._is_second and steps == 1 and 0 < passed <= self._rate_hz * _MAX_PACKET_MS // 1000:
            self._packet_samples = passed
        on_time = steps > 0 and timestamp == self._after(self._newest_timestamp, steps * self._packet_samples)
        length_s = self._packet_samples / self._rate_hz
        # How long the first one is was not known when it came: the second can't be told to be late.
        continues = on_time and self._spoke and not self._is_second
        self._came(now_s, length_s, continues=continues, lost_s=(steps - 1) * length_s if on_time else 0.0)
        self._is_second = self._highest is None
        self._highest, self._newest_timestamp = sequence, timestamp

    def begin_anew(self) -> None:
        """Another stream follows: the sender started over."""
        self._packets.clear()
        self._highest = self._next_sequence = None

    def pause(self) -> None:
        """The sender was told to be silent, or to go on: what is missing from here on is not late."""
        self._spoke = self._hole = False
        self._missed.clear()

    def report(self) -> MediaReport:
        counts = self.counts
        return MediaReport(
            packets_received=counts.received,
            packets_lost=counts.lost,
            packets_late=counts.late,
            packets_reordered=counts.reordered,
            packets_duplicate=counts.duplicate,
            concealed_ms=counts.concealed_ms,
            skipped_ms=int(counts.skipped_silent * self._slot_s * 1000),
        )

    def _play_slot(self, start_s: float) -> None:
        if self._play_from_s is not None and start_s < self._play_from_s - EARLY_S:
            self._miss()
            return
        self._play_from_s = None
        while len(self._decoded) < self.slot_samples and self._packets:
            self._decode_next()
        if len(self._decoded) == 0:
            self._miss()
            return
        samples, self._decoded = self._decoded[: self.slot_samples], self._decoded[self.slot_samples :]
        self._hear(samples)
        self._spoke = self.voiced

    def _miss(self) -> None:
        self._dry = True
        self._missed.append(self.recording.slots)
        self._hear_nothing()

    def _decode_next(self) -> None:
        """The packet whose turn it is, or what stands for it, goes to the samples that play next."""
        sequence = min(self._packets)
        timestamp, payload = self._packets[sequence]
        resumed = self._dry
        if resumed:
            self._resume(sequence)
        missing = 0 if self._next_sequence is None else sequence - self._next_sequence
        if missing > _MAX_CONCEALED:
            self.counts.lost += missing
            missing = 0
        if missing:
            self.counts.lost += 1
            self.counts.concealed_ms += self._packet_samples * 1000 // self._rate_hz
            self._take(self._decoder.recover(self._packet_samples, payload if missing == 1 else None))
            self._next_sequence = sequence - missing + 1
            self._next_timestamp = self._after(self._next_timestamp, self._packet_samples)
            return
        del self._packets[sequence]
        paused = (timestamp - self._next_timestamp) & 0xFFFFFFFF if self._next_sequence is not None else 0
        paused_samples = paused * self._rate_hz // self._clock_hz if paused < 1 << 31 else 0
        if 0 < paused_samples <= self._rate_hz and not resumed and self._queued_ms() <= SHRINK_MS:
            self._take(np.zeros(paused_samples, dtype=np.int16))  # the sender sent nothing for a while
        self._next_sequence = sequence + 1
        try:
            pcm = self._decoder.decode(payload)
        except ValueError:
            self.counts.malformed += 1
            pcm = np.zeros(self._packet_samples, dtype=np.int16)
        self._packet_samples = len(pcm)
        self._next_timestamp = self._after(timestamp, len(pcm))
        if self._queued_ms() > SHRINK_MS and not self.noise.is_voice(power_of(pcm)):
            self.counts.skipped_silent += 1
        else:
            self._take(pcm)

    def _resume(self, sequence: int) -> None:
        """Sound is back after silent slots. They stand for packets that were lost meanwhile."""
        if self._next_sequence is not None and sequence - self._next_sequence <= _MAX_CONCEALED:
            covered = min(sequence - self._next_sequence, len(self._missed))
            self.counts.lost += covered
            self._next_sequence += covered
            self._next_timestamp = self._after(self._next_timestamp, covered * self._packet_samples)
        if self._hole:
            self._were_late(self._missed)
        self._missed.clear()
        self._dry = self._hole = False

    def _take(self, pcm: Pcm16) -> None:
        self._decoded = np.concatenate((self._decoded, pcm)) if len(self._decoded) else pcm

    def _after(self, timestamp: int, samples: int) -> int:
        return (timestamp + samples * self._clock_hz // self._rate_hz) & 0xFFFFFFFF

    def _queued_ms(self) -> float:
        return (len(self._packets) * self._packet_samples + len(self._decoded)) * 1000 / self._rate_hz

    def _unwrapped(self, sequence: int) -> int:
        """The 16-bit number continued beyond 65535, as near as can be to the highest so far (RFC 3550 A.1)."""
        if self._highest is None:
            return sequence
        return self._highest + (sequence - self._highest + 0x8000) % 0x10000 - 0x8000
