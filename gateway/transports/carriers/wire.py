"""Reading what strangers send: JSON of any shape, base64, numbers in strings. Nothing here raises but what it says."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from typing import Any

import msgspec

from engines.api import Pcm16
from gateway.call import pcm16
from gateway.transports.carriers.dialect import MAX_NAME_CHARS, Encoding, Message
from streaming.audio.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from streaming.audio.keypad_tones import KEYS

MAX_TIME_MS = 1e14
"""Beyond any Unix time in milliseconds that will be seen."""


def json_object(message: Message) -> dict[str, Any] | None:
    """None: not a JSON object."""
    try:
        value = msgspec.json.decode(message)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return value if isinstance(value, dict) else None


def part(value: dict[str, Any], name: str) -> dict[str, Any]:
    """An object inside of an object; empty if there is none."""
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def text(value: dict[str, Any], *names: str) -> str:
    """The first of these that is a word: printable, of at most :data:`MAX_NAME_CHARS`; empty if there is none."""
    for name in names:
        found = value.get(name)
        if isinstance(found, str) and found and len(found) <= MAX_NAME_CHARS and found.isprintable():
            return found
    return ""


def number(value: dict[str, Any], *names: str) -> float | None:
    """The first of these that is a number, or a string of one."""
    for name in names:
        found = value.get(name)
        if isinstance(found, bool) or not isinstance(found, int | float | str):
            continue
        if isinstance(found, str) and len(found) > 24:
            continue
        try:
            as_float = float(found)
        except (ValueError, OverflowError):
            continue
        if math.isfinite(as_float):
            return as_float
    return None


def time_ms(value: dict[str, Any], *names: str) -> float | None:
    found = number(value, *names)
    return found if found is not None and 0 <= found <= MAX_TIME_MS else None


def key(value: object) -> str | None:
    """A telephone key, in upper case; None: it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) != 1:
        return None
    return value.upper() if value.upper() in KEYS else None


def base64_bytes(value: object) -> bytes | None:
    """None: not base64."""
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        return None


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def decoder(encoding: Encoding) -> Callable[[bytes], Pcm16]:
    """Half a sample at the end is dropped."""
    return _DECODERS[encoding]


def encoder(encoding: Encoding) -> Callable[[Pcm16], bytes]:
    return _ENCODERS[encoding]


def sample_bytes(encoding: Encoding) -> int:
    return 1 if encoding in {Encoding.MULAW, Encoding.ALAW} else 2


def _even(data: bytes) -> bytes:
    return data if len(data) % 2 == 0 else data[:-1]


_DECODERS: dict[Encoding, Callable[[bytes], Pcm16]] = {
    Encoding.MULAW: decode_mulaw,
    Encoding.ALAW: decode_alaw,
    Encoding.PCM16_LE: lambda data: pcm16(_even(data)),
    Encoding.PCM16_BE: lambda data: pcm16(_even(data)).byteswap(),
}
_ENCODERS: dict[Encoding, Callable[[Pcm16], bytes]] = {
    Encoding.MULAW: encode_mulaw,
    Encoding.ALAW: encode_alaw,
    Encoding.PCM16_LE: lambda pcm: pcm.astype("<i2").tobytes(),
    Encoding.PCM16_BE: lambda pcm: pcm.astype(">i2").tobytes(),
}
