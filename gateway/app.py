"""The ASGI application: what is served, and what must be up before it is."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import structlog
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engines.api import EngineError, EngineSet, Place
from engines.fetch import Progress
from engines.memory import MemoryGuard
from engines.opening import open_engines
from engines.registry import BackendSpec, Lineup, check_installed
from gateway import console, outbound_routes, status_routes, web_pages
from gateway.admission import LoadGate
from gateway.admission_watch import GateReadings, watch_load
from gateway.agents.agent import Agents, check_agents_known, check_voices_known
from gateway.beside import beside
from gateway.engine_watch import watch_engines
from gateway.outbound_book import OutboundBook
from gateway.phrases import Phrase, Phrases
from gateway.readiness import unready
from gateway.records.call_record import CallRecord
from gateway.records.recent import RecentCalls
from gateway.security import cors
from gateway.security.guard import ACCESS, Access, Denial, Guard, Right, authorize, error_body
from gateway.settings import ConfigurationError, Settings
from gateway.state import Gateway, Wires
from gateway.switchboard import Switchboard
from gateway.telemetry.history import History, keep_history
from gateway.telemetry.metrics import Metrics, measure_loop_lag
from gateway.telemetry.traces import call_traces, check_telemetry
from gateway.telemetry.traces_context import HEADER, TraceParent, asked_in, parse_traceparent
from gateway.transports.asterisk import routes as asterisk_routes
from gateway.transports.asterisk.audiosocket import audiosocket_calls
from gateway.transports.asterisk.desk import AsteriskDesk
from gateway.transports.carriers import webhooks
from gateway.transports.carriers.desk import PREFIX as CARRIERS_PREFIX
from gateway.transports.carriers.desk import CarrierDesk
from gateway.transports.sip.server import sip_calls
from gateway.transports.webrtc import signalling
from gateway.transports.webrtc.call_task import MakePeer
from gateway.transports.webrtc.peers import peer_maker, warm_tls
from gateway.transports.websocket import realtime
from streaming.tools import END_CALL

_log = structlog.get_logger(__name__)

_OpenEngines = Callable[[], contextlib.AbstractAsyncContextManager[EngineSet]]

FAKED = frozenset({"stt", "llm", "tts"})
"""Stages of which a scripted engine makes every figure one of the script."""


class Startup:
    """Whether the engines came up. ``settled`` is set once they are warm, or ``error`` says why they are not."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        self.error: Exception | None = None


def create_app(
    settings: Settings,
    engines: EngineSet | None = None,
    *,
    place: Callable[[], Place] | None = None,
    progress: Progress | None = None,
    strict: bool = False,
    make_peer: Callable[[Gateway], MakePeer] = peer_maker,
    dialler: outbound_routes.GetDialler = lambda gateway: gateway.wires.sip,
) -> Starlette:
    """The gateway as an ASGI application. ``engines`` (already started) replace the preset's and are not closed.
    ``place`` makes what the preset's engines run in (:class:`engines.host.hosts.Hosts`; default: this process).
    ``progress`` is told of weights that have to be fetched first; ``strict`` raises a call's defects (tests).
    ``make_peer`` gives what makes the media peers of a gateway's WebRTC calls, ``dialler`` what
    it places calls with.

    Raises:
        ConfigurationError: ``unknown_preset``, ``unknown_backend``, ``unknown_model``, ``bad_options``,
            ``unknown_voice``, ``unknown_agent``, ``telemetry_not_installed``, ``telemetry_headers_missing``,
            ``telemetry_headers_invalid``.
    """
    check_agents_known(settings)
    check_telemetry(settings)
    lineup = settings.lineup()
    if engines is None:
        check_voices_known(settings, lineup)

    def opened() -> contextlib.AbstractAsyncContextManager[EngineSet]:
        if engines is not None:
            return contextlib.nullcontext(engines)
        return open_engines(
            lineup,
            place=place() if place is not None else None,
            memory=MemoryGuard(reserve_mb=settings.engines.memory_reserve_mb),
            installed=lambda spec: _check_installed(spec, settings),
            progress=progress,
        )

    app = Starlette(
        routes=[
            *web_pages.routes(call_page=settings.call_page),
            *console.routes(),
            *status_routes.routes(),
            WebSocketRoute("/v1/realtime", realtime),
            *signalling.routes(make_peer),
            *webhooks.routes(),
            *asterisk_routes.routes(settings),
            *outbound_routes.routes(dialler),
        ],
        middleware=[Middleware(_Door)],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        lifespan=lambda app: _lifespan(app, settings, None if engines is not None else lineup, opened, strict),
    )
    app.state.guard = Guard(settings)
    app.state.carriers = CarrierDesk(settings)
    app.state.gateway = None
    app.state.startup = Startup()
    return app


@contextlib.asynccontextmanager
async def _lifespan(
    app: Starlette, settings: Settings, lineup: Lineup | None, opened: _OpenEngines, strict: bool
) -> AsyncIterator[None]:
    """The server answers from the first moment (``/livez``, and 503 elsewhere) while the engines load beside it."""
    startup: Startup = app.state.startup
    stop = asyncio.Event()
    opening = asyncio.create_task(_open(app, settings, lineup, opened, stop, strict), name="engines")
    try:
        yield
    finally:
        stop.set()
        if not startup.settled.is_set():
            opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await opening


def _check_installed(spec: BackendSpec, settings: Settings) -> None:
    """What a host imports with an interpreter of its own cannot be seen from here: it says so when it loads."""
    if spec.host is None or settings.engines.python(spec.host) is None:
        check_installed(spec)


async def _open(
    app: Starlette,
    settings: Settings,
    lineup: Lineup | None,
    opened: _OpenEngines,
    stop: asyncio.Event,
    strict: bool,
) -> None:
    startup: Startup = app.state.startup
    try:
        async with opened() as engines:
            app.state.gateway = gateway = await _assemble(settings, lineup, engines, strict)
            watched = partial(beside, defect=partial(gateway.metrics.count, "defect"))
            async with (
                call_traces(gateway),
                app.state.carriers.open(),
                audiosocket_calls(gateway),
                sip_calls(gateway),
                watched(measure_loop_lag, gateway.lagged),
                watched(watch_load, gateway.gate, gateway.load) if gateway.gate else contextlib.nullcontext(),
                watched(keep_history, gateway.history, lambda: gateway.switchboard.live, engines.health),
                watched(watch_engines, engines.health, gateway.switchboard.load_changed),
            ):
                startup.settled.set()
                try:
                    await stop.wait()
                finally:
                    await gateway.desk.close()
    except Exception as error:  # noqa: BLE001 (whatever an engine raises while it loads ends the start, with a reason)
        if startup.settled.is_set():
            _log.exception("engines did not close cleanly")
        elif not isinstance(error, EngineError | ConfigurationError):
            _log.exception("engines did not start")
        startup.error = error
    finally:
        app.state.gateway = None
        startup.settled.set()


async def _assemble(settings: Settings, lineup: Lineup | None, engines: EngineSet, strict: bool) -> Gateway:
    """``lineup``: which backends the engines are; None if they were given, and it is not known."""
    agents = Agents.from_settings(settings)
    agents.check_voices(engines.tts.voices)
    history = History()
    metrics = Metrics(on_response=history.responded, started_s=time.time())
    metrics.tell(
        version=importlib.metadata.version("offhook"),
        preset=settings.preset,
        engines={spec.kind: spec.name for spec in lineup.first()} if lineup is not None else {},
        fake=lineup is not None and not FAKED.isdisjoint(lineup.fakes()),
    )
    recent = RecentCalls(settings.recent_calls)
    wires = Wires()

    def ended(record: CallRecord) -> None:
        recent.add(record)
        if wires.traces is not None:
            wires.traces.ended(record)

    limits = settings.admission.limits
    gate = LoadGate(limits, asyncio.get_running_loop().time()) if limits is not None else None
    switchboard = Switchboard(
        settings.calls_at_once(),
        observer=metrics,
        on_ended=ended,
        health=engines.health,
        closed_by=lambda: gate.closed_by if gate is not None else None,
    )
    metrics.watch(
        live=lambda: switchboard.live,
        limit=switchboard.max_calls,
        ready=lambda: unready(switchboard, engines.health()) is None,
    )
    metrics.watch_engines(engines.health)
    if gate is not None:
        metrics.watch_beside(GateReadings(gate))
    phrases = Phrases()
    await phrases.prepare(_known_phrases(settings, agents, engines), engines.tts)
    await asyncio.to_thread(warm_tls)
    outbound = OutboundBook.of(settings.outbound)
    return Gateway(
        settings,
        engines,
        agents,
        switchboard,
        recent,
        metrics,
        phrases,
        strict,
        notice=settings.null.stated(lineup) if lineup is not None else "",
        history=history,
        outbound=outbound,
        wires=wires,
        asterisk=AsteriskDesk.of(settings.audiosocket),
        gate=gate,
    )


def _known_phrases(settings: Settings, agents: Agents, engines: EngineSet) -> Iterator[Phrase]:
    """What is said word for word, in the voice of each agent that says it."""
    for agent in agents:
        config = agent.session_config()
        goodbye = config.goodbye if END_CALL in config.tools else ""
        for text in (config.greeting, config.apology, goodbye, settings.farewell):
            yield Phrase(text, config.voice or engines.tts.voices[0], config.speed, config.language)


class _Door:
    """Nothing behind it runs for a connection that may not come in, HTTP or WebSocket (before the upgrade)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or status_routes.is_open(scope["path"]) or web_pages.is_open(scope["path"]):
            return await self._app(scope, receive, send)
        connection = HTTPConnection(scope, receive)
        origin = cors.allowed_origin(connection, connection.app.state.guard)
        if origin is not None and scope["type"] == "http":
            if cors.is_preflight(connection):
                return await cors.preflight(connection, origin)(scope, receive, send)
            send = _with_headers(send, cors.headers_for(origin))
        # A carrier has no key of ours: what it sends is judged by its own signature.
        denial = None if scope["path"].startswith(CARRIERS_PREFIX) else authorize(connection)
        if denial is None and connection.app.state.gateway is None:
            denial = Denial(503, "warming", "The engines are loading.", "server_error", {"Retry-After": "1"})
        if denial is None:
            asked_in.set(_asked_in(connection))
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
            return await send({"type": "websocket.close", "code": 1008, "reason": denial.code})
        return await denial.response()(scope, receive, send)


def _asked_in(connection: HTTPConnection) -> TraceParent | None:
    """Whoever has the key may have its calls in its own trace. A browser may not: it would decide what is sampled."""
    gateway: Gateway = connection.app.state.gateway
    access: Access | None = connection.scope.get(ACCESS)
    if gateway.wires.traces is None or access is None or access.right is not Right.KEY:
        return None
    return parse_traceparent(connection.headers.getlist(HEADER))


def _with_headers(send: Send, headers: dict[str, str]) -> Send:
    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(headers)
        await send(message)

    return send_with


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    response = JSONResponse(error_body(code, error.detail), error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _internal_error(request: Request, error: Exception) -> Response:
    body = error_body("internal_error", "Something went wrong here.", type_="server_error")
    return JSONResponse(body, 500)
