"""The bearer key: from the Authorization header, or from a browser's WebSocket subprotocols.

Browsers cannot set headers on a WebSocket, so the Realtime protocol lets them offer the subprotocols ``realtime`` and
``openai-insecure-api-key.KEY``; the server selects ``realtime``.
"""

from __future__ import annotations

import hashlib
import hmac

from starlette.requests import HTTPConnection

REALTIME_SUBPROTOCOL = "realtime"
_KEY_SUBPROTOCOL = "openai-insecure-api-key."


def offered_subprotocols(connection: HTTPConnection) -> list[str]:
    return list(connection.scope.get("subprotocols", ()))


def select_subprotocol(connection: HTTPConnection) -> str | None:
    """What to accept a WebSocket with: never the one that carries the key."""
    return REALTIME_SUBPROTOCOL if REALTIME_SUBPROTOCOL in offered_subprotocols(connection) else None


def presented_key(connection: HTTPConnection) -> str | None:
    scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return _as_text(credentials.strip())
    for protocol in offered_subprotocols(connection):
        if protocol.startswith(_KEY_SUBPROTOCOL):
            return protocol.removeprefix(_KEY_SUBPROTOCOL)
    return None


def _as_text(credentials: str) -> str:
    """A header is bytes, which ASGI frameworks take for Latin-1; a key beyond ASCII comes as UTF-8, or as Latin-1."""
    try:
        return credentials.encode("latin-1").decode()
    except UnicodeError:
        return credentials


def key_matches(presented: str, expected: str) -> bool:
    """In a time that tells nothing of where they differ, nor of the length."""
    return hmac.compare_digest(_digest(presented), _digest(expected))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
