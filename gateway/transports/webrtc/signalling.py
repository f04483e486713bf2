"""How browsers come in over HTTP: client secrets, offers, and hanging up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.agents.agent import DEFAULT_AGENT_NAME, UnknownAgent
from gateway.call_setup import CallNotSetUp, first_config, new_id, open_protocol
from gateway.first_session import MAX_SESSION_BYTES, Beginning, GivenSession, beginning, read_session
from gateway.http_body import BadForm, BodyTooLarge, BodyTooSlow, form_parts, media_type, read_body
from gateway.realtime.errors import Rejected
from gateway.realtime.session_lock import CODE as SESSION_LOCKED
from gateway.security.client_secrets import (
    DEFAULT_SECONDS,
    MAX_SECONDS,
    MIN_SECONDS,
    PREFIX,
    AlreadyUsed,
    ClientSecret,
    ClientSecrets,
    TooManySecrets,
    secret_id,
)
from gateway.security.guard import CALLS_PATH, SECRETS_PATH, Guard, Right, access_of, already_used, error_body
from gateway.security.keys import presented_key
from gateway.state import Gateway
from gateway.switchboard import Refused, TooManyUnconnected
from gateway.transports.webrtc.call_task import AnswerTimeout, MakePeer, Offered, answer_call
from gateway.transports.webrtc.ice_servers import ice_servers
from gateway.transports.webrtc.offer import MAX_SDP_BYTES, BadOffer
from gateway.transports.webrtc.peer import NoMediaPort
from gateway.transports.webrtc.peers import peer_maker

MAX_FORM_BYTES = MAX_SDP_BYTES + MAX_SESSION_BYTES + 4_096
MAX_BEACON_BYTES = 4_096
RETRY_AFTER_S = {"busy": 5, "overloaded": 5, "engines_down": 5, "draining": 30}

PAGE_FIELDS = frozenset({"type", "model", "include"})
"""Of a session that the key of the call page may ask for: it changes nothing of the agent."""

NO_STORE = {"Cache-Control": "no-store"}


def routes(make_peer: Callable[[Gateway], MakePeer] = peer_maker) -> list[Route]:
    """``make_peer`` gives what makes the media peer of a call (tests: a scripted one)."""

    async def calls(request: Request) -> Response:
        return await _answered(_place_call(request, make_peer(_gateway(request))))

    return [
        Route(SECRETS_PATH, _client_secrets, methods=["POST"]),
        Route(CALLS_PATH, calls, methods=["POST"]),
        Route(CALLS_PATH + "/{id}/hangup", _hang_up, methods=["POST"]),
        Route(CALLS_PATH + "/{id}", _hang_up, methods=["DELETE"]),
    ]


def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


def _secrets(request: Request) -> ClientSecrets:
    guard: Guard = request.app.state.guard
    return guard.secrets


# --- what can be wrong ----------------------------------------------------------------------------------------


def _error(status: int, code: str, message: str, **kwargs: Any) -> JSONResponse:
    return JSONResponse(error_body(code, message, **kwargs), status)


async def _answered(work: Any) -> Response:
    """The answer, also to what cannot be done."""
    try:
        response: Response = await work
    except BodyTooLarge:
        return _error(413, "request_too_large", "The request is larger than an offer and a session can be.")
    except BodyTooSlow:
        return _error(408, "request_timeout", "The request did not arrive in time.")
    except ClientDisconnect:
        return _error(400, "incomplete_request", "The request ended before its body did.")
    except BadForm as error:
        return _error(400, "invalid_form", f"This is no form with the fields sdp and session: {error}.")
    except Rejected as error:
        status = 403 if error.code in ("agent_mismatch", SESSION_LOCKED) else 400
        return _error(status, error.code, error.message, param=error.param)
    except BadOffer as error:
        return _error(413 if error.code == "too_large" else 400, error.code, str(error), param="sdp")
    except UnknownAgent as error:
        return _error(404, error.code, str(error), param="agent")
    except AlreadyUsed:
        return already_used().response()
    except TooManyUnconnected as refused:
        return _refusal(refused.code, str(refused), status=429, type_="rate_limit_error")
    except Refused as refused:
        return _refusal(refused.code, str(refused))
    except TooManySecrets as refused:
        return _refusal(refused.code, str(refused))
    except CallNotSetUp as refused:
        return JSONResponse(refused.body, refused.status, {"Retry-After": "1"})
    except NoMediaPort:
        return _refusal("no_media_port", "every port of media.port_range is taken")
    except AnswerTimeout:
        return _refusal("answer_timeout", "the network did not say in time where this gateway is")
    return response


def _refusal(code: str, message: str, *, status: int = 503, type_: str = "server_error") -> JSONResponse:
    body = error_body(code, message[:1].upper() + message[1:] + ".", type_=type_)
    return JSONResponse(body, status, {"Retry-After": str(RETRY_AFTER_S.get(code, 5))})


# --- client secrets -------------------------------------------------------------------------------------------


class _ExpiresAfter(msgspec.Struct, frozen=True):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=MIN_SECONDS, le=MAX_SECONDS)] = DEFAULT_SECONDS


class _SecretRequest(msgspec.Struct, frozen=True):
    expires_after: _ExpiresAfter | None = None
    session: msgspec.Raw = msgspec.Raw(b"null")
    agent: str | None = None
    locked: bool | None = None


async def _client_secrets(request: Request) -> Response:
    return await _answered(_mint(request))


async def _mint(request: Request) -> Response:
    """A key for a browser: it opens one call, with this session, and nothing else."""
    gateway = _gateway(request)
    asked = _secret_request(await read_body(request, MAX_SESSION_BYTES))
    session = read_session(asked.session)
    agent, locked = asked.agent or session.agent, bool(asked.locked)
    by_page = access_of(request).right is Right.PAGE_KEY
    if by_page:
        agent, locked = agent or DEFAULT_AGENT_NAME, True
        if set(session.session or ()) - PAGE_FIELDS or asked.locked is False:
            return _error(
                403,
                "session_not_allowed",
                "The key of the call page opens calls to agents, whose session is the gateway's own.",
                type_="permission_error",
                param="locked" if asked.locked is False else "session",
            )
    begins = Beginning(agent, session.model, session.session, locked=locked)
    shown = msgspec.to_builtins(_effective_session(gateway, begins))
    seconds = (asked.expires_after or _ExpiresAfter()).seconds
    kept = msgspec.json.encode(session.session) if session.session is not None else None
    value, secret = _secrets(request).mint(seconds, session=kept, agent=agent, locked=locked, by_page=by_page)
    expires_at = int(secret.expires_at)
    servers = ice_servers(
        gateway.settings.media, name=secret.id[:16], expires_at=expires_at + int(gateway.settings.max_call_s)
    )
    return JSONResponse(
        {
            "object": "realtime.client_secret",
            "value": value,
            "expires_at": expires_at,
            "session": shown if agent is None else {**shown, "agent": agent},
            "locked": locked,
            "ice_servers": servers,
        },
        headers=NO_STORE,
    )


def _secret_request(body: bytes) -> _SecretRequest:
    try:
        return msgspec.json.decode(body or b"{}", type=_SecretRequest)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise Rejected("invalid_value", what, where.strip("`.") or None) from None
    except (ValueError, RecursionError):
        raise Rejected("invalid_json", "the request is not valid JSON") from None


def _effective_session(gateway: Gateway, begins: Beginning) -> dict[str, Any]:
    """As a call that begins so has it. Raises what would forbid it then."""
    protocol = open_protocol(
        gateway,
        new_id("sess"),
        config=first_config(gateway, begins.agent),
        agent_name=begins.agent,
        model=begins.model,
        media=False,
    )
    begins.apply_to(protocol)
    return protocol.show_session()


# --- calls ----------------------------------------------------------------------------------------------------


async def _place_call(request: Request, make_peer: MakePeer) -> Response:
    gateway = _gateway(request)
    secret = access_of(request).secret
    read = await _read_offer(request)
    if read is None:
        return _error(415, "unsupported_media_type", "Send application/sdp, or a form with the fields sdp and session.")
    sdp, form = read
    begins = beginning(request.query_params, secret, form)
    config = first_config(gateway, begins.agent)
    if secret is not None:
        _secrets(request).use(secret)
    try:
        return await _open_call(request, Offered(sdp, begins, config), secret, make_peer)
    except BaseException:
        if secret is not None:
            _secrets(request).restore(secret)
        raise


async def _open_call(request: Request, offered: Offered, secret: ClientSecret | None, make_peer: MakePeer) -> Response:
    gateway = _gateway(request)
    admission = await gateway.switchboard.admit("rtc", unconnected_from=_limited_address(request))
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    work = answer_call(gateway, admission, offered, make_peer, answer)
    gateway.desk.start(admission.call_id, work, opener=secret.id if secret is not None else None)
    sdp = await answer
    headers = {"Location": f"{CALLS_PATH}/{admission.call_id}", **NO_STORE}
    return Response(sdp, 201, headers, media_type="application/sdp")


def _limited_address(request: Request) -> str | None:
    """Where an offer comes from. None where that is not held against it: the key places as many calls as there are
    places (a load test does), for whoever has it can end every call anyway."""
    if access_of(request).right is Right.KEY:
        return None
    return request.client.host if request.client is not None else ""


async def _read_offer(request: Request) -> tuple[str, GivenSession] | None:
    """The offer and the session beside it; None: this is neither SDP nor a form."""
    kind, boundary = media_type(request)
    if kind == "application/sdp":
        return _text(await read_body(request, MAX_SDP_BYTES)), GivenSession()
    if kind != "multipart/form-data" or not boundary:
        return None
    parts = form_parts(await read_body(request, MAX_FORM_BYTES), boundary)
    if "sdp" not in parts:
        raise Rejected("missing_required_parameter", "the form has no field sdp", "sdp")
    session = parts.get("session", b"")
    return _text(parts["sdp"]), read_session(session) if session.strip() else GivenSession()


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise BadOffer("bad_sdp", "the offer is not UTF-8") from None


async def _hang_up(request: Request) -> Response:
    return await _answered(_end_call(request))


async def _end_call(request: Request) -> Response:
    """Whoever has the key may end any call; the client secret that opened one may end that, as a bearer key or, from a
    page that goes away (``navigator.sendBeacon`` sets no headers), in the body. A call that has ended already is one
    that is ended: the page's word races with the end of its connection."""
    gateway = _gateway(request)
    call_id = request.path_params["id"]
    live = gateway.switchboard.find(call_id)
    if access_of(request).right is Right.KEY:
        if live is None and gateway.recent.find(call_id) is None:
            return _no_such_call()
    else:
        presented = presented_key(request) or _beacon_secret(await read_body(request, MAX_BEACON_BYTES))
        if presented is None:
            return _error(401, "missing_api_key", "A bearer key is needed.", type_="authentication_error")
        if not gateway.desk.opened_by(call_id, secret_id(presented)):
            return _no_such_call()
    if live is not None:
        live.hang_up("caller_hung_up")
    return Response(status_code=200)


def _no_such_call() -> Response:
    return _error(404, "call_not_found", "There is no such call.")


class _Beacon(msgspec.Struct, frozen=True):
    client_secret: str


def _beacon_secret(body: bytes) -> str | None:
    try:
        secret = msgspec.json.decode(body, type=_Beacon).client_secret
    except (ValueError, RecursionError):
        return None
    return secret if secret.startswith(PREFIX) else None
