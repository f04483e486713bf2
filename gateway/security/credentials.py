"""Secrets that others present: read out of the Authorization header (RFC 6750, RFC 7617), and compared."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

MAX_HEADER_CHARS = 8_192
"""Of an Authorization header: what is beyond is not looked at."""


def bearer(header: str) -> str:
    """The token; empty: there is none."""
    return _of_scheme(header, "bearer")


def basic(header: str) -> str:
    """Name and password with a colon between them; what cannot be decoded is returned as it stands. Empty: none."""
    credentials = _of_scheme(header, "basic")
    try:
        return base64.b64decode(credentials, validate=True).decode()
    except (ValueError, binascii.Error):
        return credentials


def same(given: str, expected: str) -> bool:
    """In a time that tells nothing of where they differ, nor of the length."""
    return hmac.compare_digest(fingerprint(given), fingerprint(expected))


def fingerprint(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _of_scheme(header: str, scheme: str) -> str:
    found, _, credentials = header[:MAX_HEADER_CHARS].partition(" ")
    return _as_text(credentials.strip()) if found.lower() == scheme else ""


def _as_text(credentials: str) -> str:
    """A header is bytes, which ASGI frameworks take for Latin-1; a key beyond ASCII comes as UTF-8, or as Latin-1."""
    try:
        return credentials.encode("latin-1").decode()
    except UnicodeError:
        return credentials
