"""Keys as RTP packets of their own (RFC 4733): read so that each key counts once, and written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import pack, unpack_from

KEYS = "0123456789*#ABCD"
"""By event code (RFC 4733, section 3.2)."""
MAX_DIGITS = 32

PRESS_MS = 100
PAUSE_MS = 80
"""Q.24 asks of receivers that they take 40 ms on and 40 ms off; gateways that make tones of it want some more."""
_END_COPIES = 3
_VOLUME = 10
"""-10 dBm0."""
_LONGEST_TICKS = 0xFFFF
_OLD_S = 5.0


class KeyReader:
    """Tells of a key at the first packet of it that comes, whichever that is: its end may be lost, and the caller does
    not wait for it. What belongs to one key has one timestamp; a longer one goes on in segments (section 2.5.1.3)."""

    def __init__(self, clock_hz: int) -> None:
        self._clock_hz = clock_hz
        self._timestamp: int | None = None
        self._event = 0
        self._ended = False
        self._ticks = 0

    def read(self, payload: bytes, timestamp: int, *, marker: bool) -> str | None:
        """The key, if one begins here; else None (malformed, not a key, or told already)."""
        if len(payload) < 4:
            return None
        event, flags, ticks = unpack_from("!BBH", payload)
        if event >= len(KEYS):
            return None
        if self._timestamp is not None:
            ahead = (timestamp - self._timestamp + (1 << 31)) % (1 << 32) - (1 << 31)
            if ahead == 0:
                self._ended = self._ended or bool(flags & 0x80)
                self._ticks = max(self._ticks, ticks)
                return None
            if -_OLD_S * self._clock_hz < ahead < 0:
                return None  # an earlier key's, overtaken
            goes_on = event == self._event and not marker and not self._ended
            # Segments begin where the one before ended. Some senders move the timestamp on with every packet.
            if goes_on and ahead <= max(self._ticks, ticks):
                self._begin(event, timestamp, flags, ticks)
                return None
        self._begin(event, timestamp, flags, ticks)
        return KEYS[event]

    def forget(self) -> None:
        """Another source: its timestamps are its own."""
        self._timestamp = None

    def _begin(self, event: int, timestamp: int, flags: int, ticks: int) -> None:
        self._event, self._timestamp = event, timestamp
        self._ended, self._ticks = bool(flags & 0x80), ticks


@dataclass(frozen=True, slots=True)
class KeyPacket:
    payload: bytes
    first: bool
    """The key begins: its timestamp is this packet's for all that follow."""


def key_packets(digits: str, clock_hz: int) -> Iterator[KeyPacket | None]:
    """What to send every 20 ms; None: a pause. Raises :class:`ValueError` for what is no key."""
    events = [KEYS.index(digit) for digit in digits.upper()]
    return _packets(events, clock_hz // 50)


def _packets(events: list[int], frame_ticks: int) -> Iterator[KeyPacket | None]:
    frames = PRESS_MS // 20
    for event in events:
        for number in range(frames):
            yield KeyPacket(_payload(event, (number + 1) * frame_ticks, ended=False), first=number == 0)
        for _ in range(_END_COPIES):
            yield KeyPacket(_payload(event, frames * frame_ticks, ended=True), first=False)
        for _ in range(PAUSE_MS // 20 - _END_COPIES + 1):
            yield None


def _payload(event: int, ticks: int, *, ended: bool) -> bytes:
    return pack("!BBH", event, ended << 7 | _VOLUME, min(ticks, _LONGEST_TICKS))
