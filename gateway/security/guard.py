"""One question before anything else is done for a connection: may it come in, and by what right?"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

from gateway.security.client_secrets import PREFIX as SECRET_PREFIX
from gateway.security.client_secrets import AlreadyUsed, ClientSecret, ClientSecrets
from gateway.security.credentials import same
from gateway.security.keys import presented_key
from gateway.security.origins import Origin, OriginPolicy, parse_host
from gateway.security.rate_limit import FailureLimit
from gateway.settings import Settings

ACCESS = "offhook.access"
"""Where in the ASGI scope an endpoint finds the :class:`Access` of its connection."""

CALLS_PATH = "/v1/realtime/calls"
SECRETS_PATH = "/v1/realtime/client_secrets"


def error_body(
    code: str, message: str, *, type_: str = "invalid_request_error", param: str | None = None
) -> dict[str, dict[str, str]]:
    """The one shape of an error over HTTP."""
    named = {} if param is None else {"param": param}
    return {"error": {"type": type_, "code": code, "message": message, **named}}


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


class Right(enum.Flag):
    """What opens a door."""

    KEY = enum.auto()
    """Opens everything; where none is set, everybody has it."""
    PAGE_KEY = enum.auto()
    CONSOLE_KEY = enum.auto()
    CLIENT_SECRET = enum.auto()
    LATER = enum.auto()
    """The endpoint asks by itself: it takes a client secret from elsewhere, and one that is used up or expired."""


@dataclass(frozen=True, slots=True)
class Access:
    """By what right a connection came in."""

    right: Right
    secret: ClientSecret | None = None


def rights_for(path: str) -> Right:
    """What opens a path. The key opens all of them."""
    if path in ("/v1/realtime", CALLS_PATH):
        return Right.KEY | Right.CLIENT_SECRET
    if path.startswith(CALLS_PATH + "/"):  # whoever opened a call may end it; a page that goes away has no headers
        return Right.KEY | Right.LATER
    if path in (SECRETS_PATH, "/v1/agents"):
        return Right.KEY | Right.PAGE_KEY
    if path.startswith("/console/"):
        return Right.KEY | Right.CONSOLE_KEY
    return Right.KEY


class Guard:
    """The rules of one gateway. ``connection`` is a request or a WebSocket that was not accepted yet."""

    def __init__(
        self, settings: Settings, secrets: ClientSecrets | None = None, *, limit: FailureLimit | None = None
    ) -> None:
        self.origins = OriginPolicy(frozenset(settings.allowed_origins), settings.host)
        if secrets is None:
            secrets = ClientSecrets(time.time, reusable=settings.client_secrets_reusable)
        self.secrets = secrets
        self._key = settings.key
        self._typed = {Right.PAGE_KEY: settings.page_key, Right.CONSOLE_KEY: settings.console_key}
        self._limit = limit or FailureLimit(time.monotonic)

    def authorize(self, connection: HTTPConnection) -> Denial | None:
        """None: it may come in, and its :class:`Access` is in its scope."""
        own = own_origin(connection)
        refused = self._refuse_host(own) or self._refuse_origin(connection, own)
        if refused is not None:
            return refused
        access = self._access(connection)
        if isinstance(access, Denial):
            return access
        connection.scope[ACCESS] = access
        return None

    def _refuse_origin(self, connection: HTTPConnection, own: Origin | None) -> Denial | None:
        origin = connection.headers.get("origin")
        if origin is None or self.origins.origin_is_allowed(origin, own):
            return None
        return Denial(
            403, "origin_not_allowed", "This web origin may not call; add it to allowed_origins.", "permission_error"
        )

    def _refuse_host(self, own: Origin | None) -> Denial | None:
        """Without a key a rebound page could read along: it is of one origin with its own Host, and its GETs carry
        no Origin at all. With one it lacks the key."""
        if self._key is not None or (own is not None and self.origins.host_is_ours(own)):
            return None
        return Denial(
            421,
            "host_not_allowed",
            "This host name is not known here; use the address, or add its origin to allowed_origins.",
            "permission_error",
        )

    def _access(self, connection: HTTPConnection) -> Access | Denial:
        """The key is compared whatever happened before: it is long, and one guesser must not lock out everybody who
        comes from the same address. Keys that people type are not, once the address was wrong too often."""
        presented = presented_key(connection)
        if presented is not None and _matches(presented, self._key):
            return Access(Right.KEY)
        rights = rights_for(connection.scope["path"])
        if presented is not None and presented.startswith(SECRET_PREFIX):
            return self._secret_access(presented, rights)
        if self._key is None:
            return Access(Right.KEY)
        if presented is None and Right.LATER in rights:
            return Access(Right.LATER)
        if presented is None:
            return _unauthorized("missing_api_key", "A bearer key is needed.")
        return self._typed_access(connection, presented, rights)

    def _secret_access(self, presented: str, rights: Right) -> Access | Denial:
        if Right.LATER in rights:
            return Access(Right.LATER)
        secret = self.secrets.find(presented)
        if secret is None:
            return _unauthorized("invalid_client_secret", "This client secret is not known here, or it has expired.")
        if Right.CLIENT_SECRET not in rights:
            message = "A client secret opens calls, and nothing else."
            return Denial(403, "client_secret_out_of_scope", message, "permission_error")
        if self.secrets.is_used(secret):
            return already_used()
        return Access(Right.CLIENT_SECRET, secret)

    def _typed_access(self, connection: HTTPConnection, presented: str, rights: Right) -> Access | Denial:
        source = connection.client.host if connection.client is not None else ""
        wait_s = self._limit.wait_s(source)
        if wait_s > 0:
            headers = {"Retry-After": str(math.ceil(wait_s))}
            message = "Too many wrong keys came from this address."
            return Denial(429, "too_many_attempts", message, "rate_limit_error", headers)
        for right, key in self._typed.items():
            if _matches(presented, key):
                if right in rights:
                    return Access(right)
                return Denial(403, "key_out_of_scope", "This key does not open that.", "permission_error")
        self._limit.failed(source)
        return _unauthorized("invalid_api_key", "The bearer key is wrong.")


def already_used() -> Denial:
    return _unauthorized(AlreadyUsed.code, "This client secret has opened its call; ask for another one.")


def _unauthorized(code: str, message: str) -> Denial:
    return Denial(401, code, message, "authentication_error", {"WWW-Authenticate": "Bearer"})


def _matches(presented: str, key: SecretStr | None) -> bool:
    return key is not None and same(presented, key.get_secret_value())


def own_origin(connection: HTTPConnection) -> Origin | None:
    """The gateway's own origin, as this connection's Host has it."""
    return parse_host(connection.headers.get("host", ""), scheme=connection.scope["scheme"])


def access_of(connection: HTTPConnection) -> Access:
    access: Access = connection.scope[ACCESS]
    return access


def authorize(connection: HTTPConnection) -> Denial | None:
    """By the rules of the gateway this connection came to."""
    guard: Guard = connection.app.state.guard
    return guard.authorize(connection)
