"""Calls from pages of another origin (Fetch standard, "CORS protocol"). Only origins in ``allowed_origins`` are
answered: whoever else asks is refused before. No cookies are used here, so none are allowed either."""

from __future__ import annotations

import re

from starlette.requests import HTTPConnection
from starlette.responses import Response

from gateway.security.guard import CALLS_PATH, SECRETS_PATH, Guard, own_origin

METHODS = "POST, DELETE"
KEPT_S = 600
"""How long a browser may keep the answer to a preflight."""
MAX_HEADER_NAMES = 512

_NAMES = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+(\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*$")


def allowed_origin(connection: HTTPConnection, guard: Guard) -> str | None:
    """The Origin of a page elsewhere that may call this path; None: there is nothing to say."""
    origin = connection.headers.get("origin")
    path = connection.scope["path"]
    if origin is None or not (path in (CALLS_PATH, SECRETS_PATH) or path.startswith(CALLS_PATH + "/")):
        return None
    return origin if guard.origins.origin_is_allowed(origin, own_origin(connection)) else None


def headers_for(origin: str) -> dict[str, str]:
    """What lets the page read the answer, and find in it where its call is."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "Location, Retry-After",
        "Vary": "Origin",
    }


def is_preflight(connection: HTTPConnection) -> bool:
    return connection.scope["method"] == "OPTIONS" and "access-control-request-method" in connection.headers


def preflight(connection: HTTPConnection, origin: str) -> Response:
    """It carries no key, so it is answered before one is asked for. SDKs add headers of their own: any may come."""
    headers = {**headers_for(origin), "Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": str(KEPT_S)}
    wanted = connection.headers.get("access-control-request-headers", "").strip()
    if len(wanted) <= MAX_HEADER_NAMES and _NAMES.fullmatch(wanted):
        headers["Access-Control-Allow-Headers"] = wanted
    return Response(status_code=204, headers=headers)
