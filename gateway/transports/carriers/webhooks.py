"""What a carrier asks over HTTP: where to connect a call to, and the documents it was promised."""

from __future__ import annotations

from dataclasses import replace

import structlog
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from gateway.agents.agent import UnknownAgent
from gateway.http_body import BodyTooLarge, BodyTooSlow, read_body
from gateway.readiness import unready
from gateway.security.guard import error_body
from gateway.state import Gateway
from gateway.transports.carriers.desk import PREFIX, CarrierDesk
from gateway.transports.carriers.dialect import Asked, BadWebhook, Carrier, Reply, StreamTo, Unauthentic
from gateway.transports.carriers.stream import carrier_stream
from gateway.transports.phone.routing import choose_agent

_log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 64 * 1024


def routes() -> list[BaseRoute]:
    """Everything under ``/v1/carriers/``."""
    return [
        WebSocketRoute(PREFIX + "{name}/stream", carrier_stream),
        WebSocketRoute(PREFIX + "{name}/stream/{ticket}", carrier_stream),
        Route(PREFIX + "{name}/call", _call, methods=["GET", "POST"]),
        Route(PREFIX + "{name}/document/{ticket}", _document, methods=["GET", "POST"]),
    ]


async def _call(request: Request) -> Response:
    """``?agent=NAME`` chooses who answers; without it the number that was dialled does."""
    gateway: Gateway = request.app.state.gateway
    desk: CarrierDesk = request.app.state.carriers
    read = await _read(request, gateway, desk)
    if isinstance(read, Response):
        return read
    carrier, asked = read
    try:
        incoming = carrier.read_webhook(asked)
    except BadWebhook as error:
        return _error(400, "bad_webhook", f"This is no call that can be understood: {error}.")
    if incoming is None:
        return Response(status_code=200)
    try:
        agent = choose_agent(gateway, replace(incoming, agent=asked.query.get("agent", "") or incoming.agent))
    except UnknownAgent:
        gateway.metrics.count("carrier_unknown_agent")
        _log.warning("a carrier's call asks for an agent that there is not", carrier=carrier.name)
        return _answer(desk, carrier, carrier.refuse(asked, busy=False))
    if unready(gateway.switchboard, gateway.engines.health()) is not None:
        gateway.metrics.count("carrier_call_refused")
        return _answer(desk, carrier, carrier.refuse(asked, busy=True))
    incoming = replace(incoming, agent=agent)
    to = StreamTo(desk.stream_url(request, carrier, incoming), incoming)
    return _answer(desk, carrier, carrier.connect(asked, to))


async def _document(request: Request) -> Response:
    """Once, for the carrier it was made for."""
    gateway: Gateway = request.app.state.gateway
    desk: CarrierDesk = request.app.state.carriers
    read = await _read(request, gateway, desk)
    if isinstance(read, Response):
        return read
    carrier, _ = read
    reply = desk.documents.redeem(carrier.name, request.path_params["ticket"])
    if reply is None:
        return _error(404, "document_not_found", "There is no such document, or it was fetched, or is too old.")
    return _answer(desk, carrier, reply)


async def _read(request: Request, gateway: Gateway, desk: CarrierDesk) -> tuple[Carrier, Asked] | Response:
    """The carrier, and what it asks, once it has proved that it does."""
    carrier = desk.find(request.path_params["name"])
    if carrier is None:
        return _error(404, "carrier_unknown", "There is no such carrier here, or it is not enabled.")
    try:
        body = await read_body(request, MAX_BODY_BYTES)
    except BodyTooLarge:
        return _error(413, "body_too_large", f"A webhook has at most {MAX_BODY_BYTES} bytes.")
    except (BodyTooSlow, ClientDisconnect):
        return _error(408, "body_too_slow", "The body did not come.")
    try:
        asked = desk.ask(request, body)
        carrier.check_webhook(asked)
    except Unauthentic as error:
        gateway.metrics.count(f"carrier_{error.code}")
        desk.complain(request, carrier, error.code)
        return _error(403, error.code, str(error), "permission_error")
    return carrier, asked


def _answer(desk: CarrierDesk, carrier: Carrier, reply: Reply) -> Response:
    then = None if reply.request is None else BackgroundTask(desk.send_later, carrier, reply.request)
    return Response(reply.body, reply.status, media_type=reply.media_type, background=then)


def _error(status: int, code: str, message: str, type_: str = "invalid_request_error") -> Response:
    return JSONResponse(error_body(code, message, type_=type_), status)
