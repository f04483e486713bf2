"""What Asterisk's dialplan is told and asks over HTTP: a call it is about to send, and where a caller goes on to.

``CURL()`` of the dialplan sends a form and takes the body as its value: answers are plain text.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.agents.agent import UnknownAgent
from gateway.http_body import BodyTooLarge, BodyTooSlow, media_type, read_body
from gateway.security.guard import error_body
from gateway.settings import Settings
from gateway.state import Gateway
from gateway.transports.asterisk.chan_websocket import Asterisk
from gateway.transports.asterisk.expected import NotExpected, TooManyAnnounced
from gateway.transports.phone.line import Incoming

MAX_BODY_BYTES = 4_096
MAX_FIELDS = 16
MAX_NAME_CHARS = 128
CALLS_PATH = "/v1/asterisk/calls"
NEXT_PATH = "/v1/asterisk/next"
_FIELDS = frozenset({"uuid", "agent", "dialled", "caller"})


def routes(settings: Settings) -> list[Route]:
    """None of them, where Asterisk does not call."""
    if not (settings.audiosocket.enabled or settings.asterisk.enabled):
        return []
    return [Route(CALLS_PATH, announce, methods=["POST"]), Route(NEXT_PATH, next_step, methods=["GET"])]


async def announce(request: Request) -> Response:
    """``uuid`` (made here if it is not given), ``agent``, ``dialled``, ``caller``: a form or a JSON object. The answer
    is the UUID, for ``AudioSocket()``."""
    gateway: Gateway = request.app.state.gateway
    try:
        fields = _fields(await read_body(request, MAX_BODY_BYTES), media_type(request)[0])
    except (BodyTooLarge, BodyTooSlow, ClientDisconnect):
        return _refusal(413, "body_too_large", f"An announcement has at most {MAX_BODY_BYTES} bytes.")
    except ValueError as error:
        return _refusal(400, "invalid_announcement", str(error))
    try:
        call = uuid.UUID(fields["uuid"]) if fields.get("uuid") else uuid.uuid4()
    except ValueError:
        return _refusal(400, "invalid_uuid", "uuid is not a UUID such as 40325ec2-5efd-4bd3-805f-53576e581d13.")
    agent = fields.get("agent", "")
    try:
        if agent:
            gateway.agents.get(agent)
    except UnknownAgent as error:
        return _refusal(404, error.code, str(error))
    incoming = Incoming("audiosocket", agent, fields.get("dialled", ""), fields.get("caller", ""), wire_id=str(call))
    try:
        gateway.asterisk.expected.announce(call, incoming)
    except NotExpected:
        return _refusal(409, "uuid_taken", "A call with this UUID was announced already.")
    except TooManyAnnounced:
        return _refusal(503, "too_many_announced", "Too many announced calls have not come yet.")
    return PlainTextResponse(str(call), 201)


async def next_step(request: Request) -> Response:
    """``?call=``: where the caller goes on to whose call, named by its UUID or by its WebSocket channel, is over. Told
    once; empty: nowhere."""
    gateway: Gateway = request.app.state.gateway
    call = request.query_params.get("call", "")
    target = gateway.asterisk.next_steps.take(call)
    streams = request.app.state.carriers.find("asterisk")
    if not target and isinstance(streams, Asterisk):
        target = streams.next_steps.take(call)
    return PlainTextResponse(target)


def _fields(body: bytes, kind: str) -> Mapping[str, str]:
    """Raises :class:`ValueError` with what is wrong."""
    if kind == "application/json":
        try:
            fields = msgspec.json.decode(body, type=dict[str, str])
        except msgspec.MsgspecError:
            raise ValueError("The body is not a JSON object of strings.") from None
    else:
        try:
            fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
        except ValueError:
            raise ValueError("The body is not a form.") from None
    unknown = fields.keys() - _FIELDS
    if unknown:
        raise ValueError(f"Known fields: {', '.join(sorted(_FIELDS))}.")
    if not all(len(value) <= MAX_NAME_CHARS and (value.isprintable() or not value) for value in fields.values()):
        raise ValueError(f"A field is at most {MAX_NAME_CHARS} printable characters.")
    return fields


def _refusal(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse(error_body(code, message), status)
