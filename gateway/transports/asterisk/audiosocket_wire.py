"""AudioSocket on the wire, without any I/O: a type byte, a length of two bytes (big-endian), a payload.

Types and payloads: docs.asterisk.org, "AudioSocket"; what the two ends do with them: ``res_audiosocket.c`` and
``app_audiosocket.c`` of Asterisk 18 to 23. Audio is 16-bit little-endian mono.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from streaming.audio.keypad_tones import KEYS

HEADER_BYTES = 3
UUID_BYTES = 16

HANGUP, UUID, DTMF, ERROR = 0x00, 0x01, 0x03, 0xFF
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
"""What the type of an audio message says of it. The dialplan application of Asterisk before 23 knows 0x10 only."""

_KINDS = {rate_hz: kind for kind, rate_hz in RATES_HZ.items()}

HANG_UP = bytes((HANGUP, 0, 0))
CALLER_GONE = 0x01
"""The code of an error that says: the calling party hung up."""


@dataclass(frozen=True, slots=True)
class CallId:
    """The first message: whose audio this is."""

    uuid: uuid.UUID


@dataclass(frozen=True, slots=True)
class Audio:
    """``pcm``: whole samples, never empty."""

    pcm: bytes
    rate_hz: int


@dataclass(frozen=True, slots=True)
class Digit:
    digit: str


@dataclass(frozen=True, slots=True)
class HangUp:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    """Asterisk says that something broke; None: it does not say what."""

    code: int | None


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message that means nothing here; ``reason`` is the name it is counted by."""

    reason: str


Message = CallId | Audio | Digit | HangUp | Failed | Ignored


class Decoder:
    """Cuts a stream of bytes into messages. It keeps at most one that is not complete: 64 kB."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that these bytes complete, in order."""
        pending = self._pending
        pending += data
        messages: list[Message] = []
        at = 0
        while len(pending) - at >= HEADER_BYTES:
            end = at + HEADER_BYTES + int.from_bytes(pending[at + 1 : at + HEADER_BYTES], "big")
            if len(pending) < end:
                break
            messages.append(_message(pending[at], bytes(pending[at + HEADER_BYTES : end])))
            at = end
        del pending[:at]
        return messages


def _message(kind: int, payload: bytes) -> Message:
    rate_hz = RATES_HZ.get(kind)
    if rate_hz is not None:
        whole = len(payload) & ~1
        return Audio(payload[:whole], rate_hz) if whole else Ignored("audiosocket_empty_audio")
    if kind == HANGUP:
        return HangUp()
    if kind == UUID:
        return CallId(uuid.UUID(bytes=payload)) if len(payload) == UUID_BYTES else Ignored("audiosocket_bad_uuid")
    if kind == DTMF:
        digit = payload.decode("ascii", "replace").upper()
        return Digit(digit) if digit in KEYS else Ignored("audiosocket_bad_digit")
    if kind == ERROR:
        return Failed(payload[0] if payload else None)
    return Ignored("audiosocket_unknown_type")


def encode_audio(pcm: bytes, rate_hz: int) -> bytes:
    """One message, to be written in one go: Asterisk waits 5 ms for a payload after its header, then hangs up.

    Raises :class:`ValueError` for a rate that has no type, or for audio that is empty or longer than a message."""
    if rate_hz not in _KINDS:
        raise ValueError(f"AudioSocket has no audio of {rate_hz} Hz")
    if not 0 < len(pcm) <= 0xFFFF:
        raise ValueError("a message holds 1 to 65535 bytes")
    return bytes((_KINDS[rate_hz],)) + len(pcm).to_bytes(2, "big") + pcm
