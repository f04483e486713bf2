"""Keys that come by INFO: ``application/dtmf-relay`` (``Signal=5``, ``Duration=160``) and ``application/dtmf``
(``5``). No RFC describes either; both are as the common PBXs send them (unverified against their sources)."""

from __future__ import annotations

import re

from gateway.transports.sip.message import Request
from streaming.audio.keypad_tones import KEYS

DTMF_TYPES = ("application/dtmf-relay", "application/dtmf")
_NAMED = {"10": "*", "11": "#", "12": "A", "13": "B", "14": "C", "15": "D"}
"""Event numbers of RFC 4733, which some senders write in place of the key."""
MAX_BODY = 256


def body_of(key: str) -> str:
    """Of type ``application/dtmf-relay``."""
    return f"Signal={key}\r\nDuration=160\r\n"


def key_of(content_type: str, body: bytes) -> str | None:
    """The key that an INFO tells of; None: it tells of none."""
    text = body[:MAX_BODY].decode("latin-1")
    if content_type == "application/dtmf-relay":
        found = re.search(r"(?im)^[ \t]*signal[ \t]*=[ \t]*(\S{1,2})[ \t]*\r?$", text)
        text = found[1] if found else ""
    text = text.strip().upper()
    text = _NAMED.get(text, text)
    return text if text in KEYS else None


def take(request: Request) -> tuple[int, list[tuple[str, str]], str | None]:
    """What an INFO is answered, status and headers, and the key that it tells of."""
    if request.headers.get("info-package"):
        return 469, [("recv-info", "")], None
    if not request.body:
        return 200, [], None
    if request.content_type not in DTMF_TYPES:
        return 415, [("accept", ", ".join(DTMF_TYPES))], None
    key = key_of(request.content_type, request.body)
    return (400 if key is None else 200), [], key
