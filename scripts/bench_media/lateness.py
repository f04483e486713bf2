"""How many of the frames that a caller received came late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.bench_media.talk import FRAME_MS, RTP_FRAME

LATE_MS = 20.0
# A step of the RTP clock from which a new spurt of talk is taken to begin. Less may be one that was late.
_NEW_SPURT = 25 * RTP_FRAME
# Coded silence is 1 to 24 bytes with any of the servers, their speech 37 and more.
_SPEECH_BYTES = 30


@dataclass(frozen=True, slots=True)
class Arrival:
    """One packet: RTP sequence number and timestamp (48 kHz), when it came in seconds of any clock, and its payload."""

    sequence: int
    timestamp: int
    at_s: float
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Lateness:
    """Frames of speech, of one or more calls: how many came, how many more than 20 ms late, how many never."""

    frames: int
    late: int
    lost: int
    worst_ms: float

    def __add__(self, other: Lateness) -> Lateness:
        return Lateness(
            self.frames + other.frames,
            self.late + other.late,
            self.lost + other.lost,
            max(self.worst_ms, other.worst_ms),
        )


NOTHING = Lateness(0, 0, 0, 0.0)


def lateness(arrivals: Sequence[Arrival]) -> Lateness:
    """Of one call's packets in order of arrival.

    Only speech is judged: who says nothing owes no frame. The n-th frame of a spurt is due n times 20 ms after the
    spurt's first; the frame that came earliest against this schedule gives its beginning. The schedule counts frames
    and not RTP timestamps, because a server that stamps a frame with the moment it got round to it would never seem
    late.
    """
    total, spurt = NOTHING, list[Arrival]()
    for arrival in arrivals:
        if arrival.payload_bytes < _SPEECH_BYTES:
            # The frame before a silent one may be silence already, with the speech still ringing in it.
            total, spurt = total + _of_spurt(spurt[:-1]), []
            continue
        if spurt and (arrival.timestamp - spurt[-1].timestamp) % 2**32 >= _NEW_SPURT:
            total, spurt = total + _of_spurt(spurt), []
        spurt.append(arrival)
    return total + _of_spurt(spurt)


def _of_spurt(spurt: Sequence[Arrival]) -> Lateness:
    if not spurt:
        return NOTHING
    first = spurt[0].sequence
    places = [_signed(arrival.sequence - first) for arrival in spurt]
    offsets_ms = [arrival.at_s * 1000 - place * FRAME_MS for arrival, place in zip(spurt, places, strict=True)]
    start_ms = min(offsets_ms)
    late_ms = [offset_ms - start_ms for offset_ms in offsets_ms]
    missing = max(places) - min(places) + 1 - len(set(places))
    return Lateness(len(spurt), sum(ms > LATE_MS for ms in late_ms), missing, max(late_ms))


def _signed(steps: int) -> int:
    """The distance between two 16-bit sequence numbers, -32768 to 32767."""
    return (steps + 2**15) % 2**16 - 2**15
