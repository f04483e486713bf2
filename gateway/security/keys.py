"""The bearer key: from the Authorization header, or from a browser's WebSocket subprotocols.

Browsers cannot set headers on a WebSocket, so the Realtime protocol lets them offer the subprotocols ``realtime`` and
``openai-insecure-api-key.KEY``; the server selects ``realtime``.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection

from gateway.security.credentials import bearer

REALTIME_SUBPROTOCOL = "realtime"
_KEY_SUBPROTOCOL = "openai-insecure-api-key."


def offered_subprotocols(connection: HTTPConnection) -> list[str]:
    return list(connection.scope.get("subprotocols", ()))


def select_subprotocol(connection: HTTPConnection) -> str | None:
    """What to accept a WebSocket with: never the one that carries the key."""
    return REALTIME_SUBPROTOCOL if REALTIME_SUBPROTOCOL in offered_subprotocols(connection) else None


def presented_key(connection: HTTPConnection) -> str | None:
    if key := bearer(connection.headers.get("authorization", "")):
        return key
    for protocol in offered_subprotocols(connection):
        if protocol.startswith(_KEY_SUBPROTOCOL):
            return protocol.removeprefix(_KEY_SUBPROTOCOL)
    return None
