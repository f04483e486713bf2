"""What goes wrong with an OpenAI-compatible server, as codes. No key and no body ever reaches a log or a message: of an
error only its status and its code, if that is a plain identifier.

Codes of :class:`ApiError`: ``timeout``, ``rate_limited``, ``unauthorized``, ``refused`` (nobody answers at that
address), ``connection_lost``, ``server_error``, ``bad_request`` (the server won't do this), ``context_too_long``,
``no_model`` (or nothing at all at that path), ``content_filter``, ``bad_response``, ``overloaded`` (too many requests
of our own).
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import time
from collections.abc import Iterator, Mapping

import httpx

MAX_ERROR_BYTES = 16_384
"""Of an error's body; what is beyond it is not read."""

_PLAIN = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_NO_MODEL = re.compile(
    r"model_not_found|not a valid model|unknown model|\bmodel\b.{0,120}\b(?:not found|does not exist)"
)
_TOO_LONG = re.compile(
    r"context[ _](?:length|window|size)|maximum context|too many tokens|prompt is too long"
    r"|exceeds? the (?:available )?context"
)


class ApiError(Exception):
    """A request that came to nothing. ``detail`` is what the server wrote: to be searched, never shown or logged."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry: bool = False,
        retry_after_s: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry = retry
        self.retry_after_s = retry_after_s
        self.detail = detail


def api_error(status: int, body: object, *, retry_after_s: float | None = None) -> ApiError:
    """The failure that a status and an error object (``{"error": {…}}`` and its variants) tell of."""
    found = body.get("error", body) if isinstance(body, dict) else body
    detail = json.dumps(found)[:MAX_ERROR_BYTES].lower() if found else ""
    name = ""
    if isinstance(found, dict):
        named = [found.get("code"), found.get("type")]
        name = next((value for value in named if isinstance(value, str) and _PLAIN.fullmatch(value)), "")
    message = f"the server answered {status}" + (f" ({name})" if name else "")
    if status in (401, 403):
        return ApiError("unauthorized", message)
    if status == 429:
        spent = name == "insufficient_quota"
        return ApiError("rate_limited", message, retry=not spent, retry_after_s=retry_after_s)
    if status in (408, 504):
        return ApiError("timeout", message, retry=True)
    if status == 413 or (status < 500 and _TOO_LONG.search(detail)) or name == "context_length_exceeded":
        return ApiError("context_too_long", message)
    if status == 404 or (400 <= status < 500 and _NO_MODEL.search(detail)):
        return ApiError("no_model", message)
    if status >= 500:
        return ApiError("server_error", message, retry=True, retry_after_s=retry_after_s)
    if status >= 400:
        return ApiError("bad_request", message, detail=detail)
    return ApiError("bad_response", message)


def error_of(status: int, content: bytes, headers: Mapping[str, str]) -> ApiError:
    """The failure that a response tells of, whatever its body is."""
    body: object = None
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(content)
    if body is None:
        body = content.decode("utf-8", "replace")
    return api_error(status, body, retry_after_s=_retry_after_s(headers))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """httpx's exceptions as ours. Their texts may hold addresses, but never keys or bodies; they stay as causes."""
    try:
        yield
    except httpx.PoolTimeout as error:
        raise ApiError("overloaded", "too many requests to this server are under way") from error
    except httpx.ConnectTimeout as error:
        raise ApiError("timeout", "the server did not take the connection in time", retry=True) from error
    except httpx.ConnectError as error:
        raise ApiError("refused", "the server can't be reached", retry=True) from error
    except httpx.DecodingError as error:
        raise ApiError("bad_response", "the server's answer can't be decoded") from error
    except httpx.LocalProtocolError as error:
        raise ApiError("bad_request", "the request can't be sent") from error
    except httpx.TransportError as error:
        raise ApiError("connection_lost", "the connection was lost", retry=True) from error


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """RFC 9110, 10.2.3: seconds, or a date; and the ``retry-after-ms`` that some send beside it."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(ValueError):
            seconds = float(headers.get(name, "")) * unit_s
            if 0 <= seconds < 86_400:  # false for NaN too
                return seconds
    with contextlib.suppress(ValueError, TypeError, IndexError):
        when = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, when.timestamp() - time.time())
    return None
