"""``POST /v1/calls``: place a call. ``DELETE /v1/calls/{id}``: end one, also while it rings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.agents.agent import DEFAULT_AGENT_NAME, UnknownAgent
from gateway.http_body import BodyTooLarge, BodyTooSlow, read_body
from gateway.outbound import Asked, Dialler, place_call
from gateway.outbound_address import MAX_CHARS, BadDestination
from gateway.outbound_book import MAX_KEY_CHARS, KeyConflict
from gateway.outbound_policy import NotAllowed
from gateway.security.guard import error_body
from gateway.state import Gateway
from gateway.switchboard import Refused

CALLS_PATH = "/v1/calls"
HANG_UP_CAUSE = "operator_hung_up"
MAX_BODY_BYTES = 8_192
RETRY_AFTER_S = {"draining": 30}

GetDialler = Callable[[Gateway], Dialler | None]


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: Annotated[str, Meta(min_length=1, max_length=MAX_CHARS)]
    agent: Annotated[str, Meta(max_length=64)] = DEFAULT_AGENT_NAME
    caller: Annotated[str, Meta(max_length=64)] = ""
    ring_s: Annotated[float, Meta(ge=1, le=180)] | None = None


class _BadRequestError(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def routes(dialler: GetDialler) -> list[Route]:
    """``dialler`` gives what a gateway dials with; None: it cannot."""

    async def place(request: Request) -> Response:
        return await _answered(request, dialler)

    return [
        Route(CALLS_PATH, place, methods=["POST"]),
        Route(CALLS_PATH + "/{id}", _hang_up, methods=["DELETE"]),
    ]


async def _answered(request: Request, dialler: GetDialler) -> Response:
    try:
        return await _place(request, dialler)
    except BodyTooLarge:
        return _error(413, "request_too_large", f"the request is larger than {MAX_BODY_BYTES} bytes")
    except BodyTooSlow:
        return _error(408, "request_timeout", "the request did not arrive in time")
    except ClientDisconnect:
        return _error(400, "incomplete_request", "the request ended before its body did")
    except _BadRequestError as error:
        return _error(400, error.code, str(error), param=error.param)
    except KeyConflict as error:
        status = 409 if error.code == "idempotency_key_in_use" else 422
        return _error(status, error.code, str(error), retry_after_s=1 if status == 409 else None)
    except BadDestination as error:
        return _error(400, error.code, str(error), param="to")
    except UnknownAgent as error:
        return _error(404, error.code, str(error), param="agent")
    except NotAllowed as error:
        if error.retry_after_s is not None:
            return _error(429, error.code, str(error), "rate_limit_error", retry_after_s=error.retry_after_s)
        return _error(403, error.code, str(error), "permission_error")
    except Refused as error:
        return _error(503, error.code, str(error), "server_error", retry_after_s=RETRY_AFTER_S.get(error.code, 5))


async def _place(request: Request, dialler: GetDialler) -> Response:
    gateway: Gateway = request.app.state.gateway
    key = request.headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS):
        raise _BadRequestError("invalid_idempotency_key", f"an Idempotency-Key has 1 to {MAX_KEY_CHARS} characters")
    body = _read(await read_body(request, MAX_BODY_BYTES))
    keys = gateway.outbound.keys
    known = keys.begin(key, msgspec.json.encode(body)) if key is not None else None
    if known is not None:
        return _placed(known, _view(gateway, known), replayed=True)
    source = request.client.host if request.client is not None else ""
    asked = Asked(body.to, body.agent, body.caller, body.ring_s, source)
    try:
        record = await place_call(gateway, dialler(gateway), asked)
    except BaseException:
        if key is not None:
            keys.drop(key)
        raise
    if key is not None:
        keys.settle(key, record.id)
    return _placed(record.id, record.summary(), replayed=False)


def _read(body: bytes) -> _Body:
    try:
        return msgspec.json.decode(body, type=_Body)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise _BadRequestError("invalid_value", what[:1].lower() + what[1:], where.strip("`.") or None) from None
    except (ValueError, RecursionError):
        raise _BadRequestError("invalid_json", "the request is not valid JSON") from None


def _view(gateway: Gateway, call_id: str) -> dict[str, Any]:
    live = gateway.switchboard.find(call_id)
    record = live.record if live is not None else gateway.recent.find(call_id)
    return record.summary() if record is not None else {"id": call_id, "object": "call", "state": "ended"}


def _placed(call_id: str, view: dict[str, Any], *, replayed: bool) -> Response:
    headers = {"Location": f"{CALLS_PATH}/{call_id}", "Cache-Control": "no-store"}
    return JSONResponse(view, 201, headers | ({"Idempotency-Replayed": "true"} if replayed else {}))


async def _hang_up(request: Request) -> Response:
    """Any call, for whoever has the key. One that has ended is one that is ended."""
    gateway: Gateway = request.app.state.gateway
    call_id = request.path_params["id"]
    live = gateway.switchboard.find(call_id)
    if live is not None:
        live.hang_up(HANG_UP_CAUSE)
    elif gateway.recent.find(call_id) is None:
        return _error(404, "call_not_found", "there is no such call, or it ended too long ago")
    return JSONResponse(_view(gateway, call_id), headers={"Cache-Control": "no-store"})


def _error(
    status: int,
    code: str,
    message: str,
    type_: str = "invalid_request_error",
    *,
    param: str | None = None,
    retry_after_s: float | None = None,
) -> Response:
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    body = error_body(code, message[:1].upper() + message[1:] + ".", type_=type_, param=param)
    return JSONResponse(body, status, headers)
