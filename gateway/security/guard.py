"""One question before anything else is done for a connection: may it come in?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

from gateway.security.keys import key_matches, presented_key
from gateway.security.origins import Origin, OriginPolicy, parse_host
from gateway.settings import Settings


def error_body(code: str, message: str, *, type_: str = "invalid_request_error") -> dict[str, dict[str, str]]:
    """The one shape of an error over HTTP."""
    return {"error": {"type": type_, "code": code, "message": message}}


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a connection was turned away; for a WebSocket it is the answer instead of the upgrade."""

    status: int
    code: str
    message: str
    type_: str = "invalid_request_error"
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> JSONResponse:
        body = error_body(self.code, self.message, type_=self.type_)
        return JSONResponse(body, self.status, headers=dict(self.headers))


class Guard:
    """The rules of one gateway. ``connection`` is a request or a WebSocket that was not accepted yet."""

    def __init__(self, settings: Settings) -> None:
        self._key = settings.key
        self._origins = OriginPolicy(frozenset(settings.allowed_origins), settings.host)

    def authorize(self, connection: HTTPConnection) -> Denial | None:
        own = parse_host(connection.headers.get("host", ""), scheme=connection.scope["scheme"])
        return self._refuse_host(own) or self._refuse_origin(connection, own) or self._refuse_key(connection)

    def _refuse_origin(self, connection: HTTPConnection, own: Origin | None) -> Denial | None:
        origin = connection.headers.get("origin")
        if origin is None or self._origins.origin_is_allowed(origin, own):
            return None
        return Denial(
            403, "origin_not_allowed", "This web origin may not call; add it to allowed_origins.", "permission_error"
        )

    def _refuse_host(self, own: Origin | None) -> Denial | None:
        """Without a key a rebound page could read along: it is of one origin with its own Host, and its GETs carry
        no Origin at all. With one it lacks the key."""
        if self._key is not None or (own is not None and self._origins.host_is_ours(own)):
            return None
        return Denial(
            421,
            "host_not_allowed",
            "This host name is not known here; use the address, or add its origin to allowed_origins.",
            "permission_error",
        )

    def _refuse_key(self, connection: HTTPConnection) -> Denial | None:
        if self._key is None:
            return None
        presented = presented_key(connection)
        if presented is not None and key_matches(presented, self._key.get_secret_value()):
            return None
        code = "missing_api_key" if presented is None else "invalid_api_key"
        message = "A bearer key is needed." if presented is None else "The bearer key is wrong."
        return Denial(401, code, message, "authentication_error", {"WWW-Authenticate": "Bearer"})


def authorize(connection: HTTPConnection) -> Denial | None:
    """By the rules of the gateway this connection came to."""
    guard: Guard = connection.app.state.guard
    return guard.authorize(connection)
