"""Puts the packets of one RTP stream back in order, without holding back what is in order already.

Speech-to-text and voice activity detection need order and continuity, not a steady playout: a packet that is the next
one leaves at once. Only behind a gap packets wait, at most :data:`WINDOW_S` or until as much media waits, then the gap
is given up and told as :class:`Lost`. Positions follow RTP time: where timestamps move on without a packet missing (a
sender that is silent, DTX), the difference is told as :class:`Silence`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

OPUS_CLOCK_HZ = 48_000
WINDOW_S = 0.06
"""Three packets of 20 ms."""
MAX_HELD = 32
FILL_S = 1.0
"""A hole is filled up to one second; behind a longer one the stream goes on as if it had not been. Nor is a hole
filled faster than the clock: a sender whose timestamps run must not make hours of silence here."""
MAX_DROPOUT = 1000
MAX_MISORDER = 100
"""In packets. A sequence number further ahead or behind is a stray or a new start (RFC 3550, appendix A.1)."""
_SEEN = (1 << 128) - 1


class Packet(NamedTuple):
    sequence: int
    """16 bits."""
    timestamp: int
    """32 bits."""
    ticks: int
    """How much the payload holds; 0 if it cannot be decoded."""
    payload: bytes
    silent: bool = False
    """With 0 ticks: it carries no audio, and none is missing (a key, comfort noise)."""


class Audio(NamedTuple):
    payload: bytes
    ticks: int


class Lost(NamedTuple):
    """Media that does not come; the ``following`` payload may carry some of the end of it."""

    ticks: int
    following: bytes


class Silence(NamedTuple):
    """Time in which nothing was sent."""

    ticks: int


Piece = Audio | Lost | Silence


@dataclass(slots=True)
class JitterCounts:
    received: int = 0
    """Packets, with those that came twice or too late."""
    expected: int = 0
    """Packets by sequence numbers, of streams that ended before this one too."""
    lost: int = 0
    """Given up: not there when their time was over."""
    late: int = 0
    """Came after they were given up (they count as lost too), or before the first."""
    duplicates: int = 0
    reordered: int = 0
    """Came out of order, and in time."""
    strays: int = 0
    """Sequence numbers out of all range."""
    resyncs: int = 0
    """Timestamps that jumped further than was filled, or back."""
    overlap_ticks: int = 0
    """Media that came although its time had been told as silence: what was let out is so much longer than it was."""


class JitterBuffer:
    """Every method returns what has become certain, in order; times are of any one monotonic clock. ``clock_hz`` is
    that of the stream's timestamps: the ticks of everything here."""

    def __init__(self, clock_hz: int = OPUS_CLOCK_HZ) -> None:
        self.counts = JitterCounts()
        self._clock_hz = clock_hz
        self._window_ticks = int(WINDOW_S * clock_hz)
        self._fill_ticks = int(FILL_S * clock_hz)
        self._held: dict[int, tuple[Packet, float]] = {}
        self._started = False
        self._next = 0
        """Sequence number that would be in order; it and those of ``_held`` go on beyond 16 bits."""
        self._newest = 0
        self._timestamp = 0
        """Where the next packet's audio begins, if nothing is missing; goes on beyond 32 bits."""
        self._seen = 0
        """Bit n: packet ``_next - 1 - n`` was let out, not given up."""
        self._hole = False
        """Something before the next packet was lost."""
        self._restart_at: int | None = None
        self._credit_ticks = self._fill_ticks
        self._credited_s: float | None = None

    @property
    def highest_sequence(self) -> int:
        """With the count of wraparounds in the upper 16 bits, as receiver reports have it."""
        return self._newest & 0xFFFFFFFF

    def push(self, packet: Packet, now_s: float) -> list[Piece]:
        self.counts.received += 1
        if not self._started:
            self._start(packet, now_s)
        sequence = self._newest + _signed(packet.sequence - self._newest, 16)
        ahead = sequence - self._next
        if not -MAX_MISORDER <= ahead <= MAX_DROPOUT:
            if packet.sequence != self._restart_at:
                self._restart_at = (packet.sequence + 1) & 0xFFFF
                self.counts.strays += 1
                return self._release(now_s)
            pieces = self.restart(now_s)
            self._start(packet, now_s)
            return pieces + self._release(now_s, packet)
        self._restart_at = None
        if ahead < 0:
            if self._seen >> (-ahead - 1) & 1:
                self.counts.duplicates += 1
            else:
                self.counts.late += 1
            return self._release(now_s)
        if sequence in self._held:
            self.counts.duplicates += 1
            return self._release(now_s)
        if sequence > self._newest:
            self.counts.expected += sequence - self._newest
            self._newest = sequence
        elif sequence < self._newest:
            self.counts.reordered += 1
        if ahead == 0:
            return self._release(now_s, packet)
        self._held[sequence] = (packet, now_s)
        return self._release(now_s)

    def due_s(self) -> float | None:
        """When :meth:`expire` has something to give up, if no packet comes before; None if nothing waits."""
        return min(arrived for _, arrived in self._held.values()) + WINDOW_S if self._held else None

    def expire(self, now_s: float) -> list[Piece]:
        """Give up what is overdue."""
        return self._release(now_s)

    def fill(self, ticks: int, now_s: float) -> list[Piece]:
        """The sender is known to be silent: tell so now, not when its next packet comes."""
        if self._held or not self._started:
            return []
        ticks = self._allowed(ticks, now_s)
        self._timestamp += ticks
        return [Silence(ticks)] if ticks > 0 else []

    def restart(self, now_s: float) -> list[Piece]:
        """The stream ends here, and another one begins with the next packet."""
        pieces: list[Piece] = []
        while self._held:
            self._give_up()
            pieces += self._release(now_s)
        self._started = False
        return pieces

    def _start(self, packet: Packet, now_s: float) -> None:
        self._started = True
        self._next = self._newest = packet.sequence
        self._timestamp = packet.timestamp
        self._seen = 0
        self._hole = False
        self._restart_at = None
        self.counts.expected += 1

    def _release(self, now_s: float, packet: Packet | None = None) -> list[Piece]:
        """Let out what is in order, ``packet`` first, and give up a gap whose time is over."""
        pieces: list[Piece] = []
        while True:
            if packet is None:
                packet, _ = self._held.pop(self._next, (None, 0.0))
            if packet is not None:
                self._next += 1
                self._seen = (self._seen << 1 | 1) & _SEEN
                self._let_out(packet, now_s, pieces)
                packet = None
            elif self._overdue(now_s):
                self._give_up()
            else:
                return pieces

    def _overdue(self, now_s: float) -> bool:
        if not self._held:
            return False
        first, latest = self._held[min(self._held)][0], self._held[max(self._held)][0]
        media = _signed(latest.timestamp + latest.ticks - first.timestamp, 32)
        due = self.due_s()
        return media >= self._window_ticks or len(self._held) >= MAX_HELD or (due is not None and now_s >= due)

    def _give_up(self) -> None:
        """What is missing before the first packet that waits."""
        first = min(self._held)
        missing = first - self._next
        self.counts.lost += missing
        self._seen = (self._seen << missing) & _SEEN
        self._next = first
        self._hole = True

    def _let_out(self, packet: Packet, now_s: float, pieces: list[Piece]) -> None:
        if packet.ticks == 0:
            self._hole = self._hole or not packet.silent
            return
        gap = _signed(packet.timestamp - self._timestamp, 32)
        fill = self._allowed(max(gap, 0), now_s)
        if fill > 0:
            pieces.append(Lost(fill, packet.payload) if self._hole else Silence(fill))
        if fill != gap:
            self.counts.resyncs += 1
            self.counts.overlap_ticks += -gap if -self._fill_ticks < gap < 0 else 0
        self._hole = False
        self._timestamp = packet.timestamp + packet.ticks
        pieces.append(Audio(packet.payload, packet.ticks))

    def _allowed(self, ticks: int, now_s: float) -> int:
        """How much of a hole of this length is filled; spends it."""
        if self._credited_s is not None:
            earned = int((now_s - self._credited_s) * self._clock_hz)
            self._credit_ticks = min(self._fill_ticks, self._credit_ticks + max(earned, 0))
        self._credited_s = now_s
        filled = min(ticks, self._credit_ticks)
        self._credit_ticks -= filled
        return filled


def _signed(difference: int, bits: int) -> int:
    """The difference of two counters that wrap at ``bits``, as the shorter way round."""
    half = 1 << (bits - 1)
    return (difference + half) % (1 << bits) - half
