"""Runs the application: one listening socket, and our own way to stop.

uvicorn's signal handlers close every WebSocket at once. Here the first SIGTERM or SIGINT drains (calls end, or are
told goodbye), and only then uvicorn is told to exit; a second one hangs up every call; a third ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from typing import Any

import h11
import structlog
import uvicorn
import uvloop
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from engines import fetch
from engines.api import EngineError
from engines.host.hosts import Hosts
from engines.host.process import HostSpec, SetUp
from gateway.app import Startup, create_app
from gateway.console import CUT
from gateway.memory import keep_large_blocks_apart, tidy_when_idle
from gateway.security.listening import check_listening
from gateway.settings import ConfigurationError, Settings
from gateway.state import Gateway
from gateway.switchboard import Switchboard
from gateway.transports.websocket import ON_LOST

_log = structlog.get_logger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SWITCH_S = 0.001
"""How long a thread that computes may keep the loop waiting for the interpreter; Python's own 5 ms are too long for the
audio of calls."""
CLOSE_CONNECTIONS_S = 3
"""After the drain: how long open connections may take to be gone."""
CUT_S = 3.0
"""How long a WebSocket whose call is over may take to be gone."""
HEAD_S = 15.0
"""For the head of a request, from the connection or from its first byte on: half a line must not keep a connection for
ever, for there are only so many."""
WEBSOCKET_QUEUE = 16
"""Small messages read ahead of a call before its peer is made to wait."""
SMALL_MESSAGE = 4 * 1024
"""Bytes; a larger one is read ahead alone."""


class StartError(Exception):
    """The gateway cannot run here now. ``code`` is stable, the message is for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def serve(settings: Settings, *, announce: Callable[[str], None]) -> None:
    """Serve until told to stop. ``announce`` gets a line once calls are taken, and a second one in the same breath if
    engines are fakes. Raises :class:`ConfigurationError`, :class:`StartError` or the engines' own error."""
    check_listening(settings)
    keep_large_blocks_apart()
    with (
        _threads_giving_way(),
        listening_socket(settings.host, settings.port) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(settings, listener, announce))


@contextlib.contextmanager
def _threads_giving_way() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def listening_socket(host: str, port: int) -> socket.socket:
    """Bound and listening, so that a taken port is known before any model is loaded. Raises :class:`StartError`."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StartError("host_unknown", f"cannot listen on {where}: {error.strerror}") from None
    # A name such as localhost may have both; IPv4 is what every client tries.
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        code = {errno.EADDRINUSE: "port_taken", errno.EACCES: "port_forbidden"}.get(error.errno or 0, "cannot_listen")
        hint = "; choose another with --port" if code != "cannot_listen" else ""
        raise StartError(code, f"cannot listen on {where}: {error.strerror}{hint}") from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket, settings: Settings) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{listener.getsockname()[1]}"


class _WebSocketProtocol(WebSocketsSansIOProtocol):
    """Closing a connection writes first what is still to be written: a peer that reads nothing could keep its socket
    open here for as long as it likes. After :data:`CUT_S` it is cut."""

    _cut: asyncio.TimerHandle | None = None

    def send_receive_event_to_app(self) -> None:
        """uvicorn stops reading at each message until it was taken, which costs two system calls: a phone call's frame
        of 20 ms is hardly worth them."""
        ahead = self.queue.qsize() < WEBSOCKET_QUEUE and len(self.frames) == 1 and len(self.frames[0]) <= SMALL_MESSAGE
        stopped = self.read_paused
        self.read_paused = stopped or ahead  # where it is stopped already, it is left as it is
        super().send_receive_event_to_app()
        if ahead:
            self.read_paused = stopped

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        if not self.disconnected:
            self._cut = self.loop.call_later(CUT_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._cut is not None:
            self._cut.cancel()
        tell = (getattr(self, "scope", None) or {}).get(ON_LOST)
        if tell is not None:
            tell()


class _HttpProtocol(H11Protocol):
    """Hands endpoints what cuts their connection: closing it would first write what its peer does not read. One that
    does not come to its request is cut."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        app = self.app

        async def with_cut(scope: Any, receive: Any, send: Any) -> None:
            scope[CUT] = transport.abort
            await app(scope, receive, send)

        self.app = with_cut
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._set_late(None)

    def _expect_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._set_late(None)
        elif self._late is None:
            self._set_late(self.loop.call_later(HEAD_S, self.transport.abort))

    def _set_late(self, timer: asyncio.TimerHandle | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = timer


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours."""
        yield


class _Stopping:
    """What each further signal does."""

    def __init__(self, app: Starlette, server: _Server, settings: Settings) -> None:
        self._app = app
        self._server = server
        self._settings = settings
        self._signals = 0
        self._drain: asyncio.Task[None] | None = None

    def on_signal(self) -> None:
        self._signals += 1
        gateway: Gateway | None = self._app.state.gateway
        if self._signals >= 3:
            os._exit(130)
        if gateway is None:
            self._server.should_exit = True
        elif self._signals == 1:
            self.drain_and_stop()
        else:
            gateway.switchboard.hang_up_all("server_stop")

    def drain_and_stop(self) -> None:
        """What the first signal does, and an operator may ask for. A second time changes nothing."""
        gateway: Gateway | None = self._app.state.gateway
        if gateway is not None and self._drain is None:
            self._drain = asyncio.create_task(self._drained(gateway), name="drain")

    async def _drained(self, gateway: Gateway) -> None:
        await gateway.switchboard.drain(self._settings.drain_s)
        self._server.should_exit = True


async def _serve(settings: Settings, listener: socket.socket, announce: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as bars:
        progress = bars.enter_context(fetch.console_progress())
        place = (lambda: _hosts(settings)) if settings.engines.hosts else None
        app = create_app(settings, place=place, progress=progress)
        startup: Startup = app.state.startup
        server = _Server(_uvicorn_config(app, settings))
        stopping = _Stopping(app, server, settings)
        app.state.drain_and_stop = stopping.drain_and_stop

        tidying: list[asyncio.Task[None]] = []

        async def say_when_ready() -> None:
            await startup.settled.wait()
            bars.close()
            if startup.error is not None:
                server.should_exit = True
            elif app.state.gateway is not None:
                _settle_memory()
                board: Switchboard = app.state.gateway.switchboard
                tidying.append(asyncio.create_task(tidy_when_idle(lambda: board.live, lambda: board.ended)))
                announce(
                    "\n".join(filter(None, (f"Listening on {url_of(listener, settings)}", app.state.gateway.notice)))
                )

        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, stopping.on_signal)
        _log.info("loading engines", preset=settings.preset)
        ready = asyncio.create_task(say_when_ready(), name="announce")
        try:
            await server.serve(sockets=[listener])
            await ready
        finally:
            for task in tidying:
                task.cancel()
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)
    if isinstance(startup.error, EngineError | ConfigurationError):
        raise startup.error
    if startup.error is not None:
        raise StartError("engines_failed", f"the engines failed: {startup.error!r}") from startup.error


def _settle_memory() -> None:
    """What was loaded stays. Left among what the collector looks through, it would make a full collection slow, which
    every call would hear, and so rare that ended calls' codecs and TLS states would pile up meanwhile."""
    gc.collect()
    gc.freeze()
    gc.collect()  # how much is left now is what the next full collection goes by


def _hosts(settings: Settings) -> Hosts:
    """Child processes for the engines that may run in one, which log as we do."""
    logs = {"level": settings.log_level, "as_json": settings.log_json, "caller_text": settings.log_caller_text}
    specs = {
        "mlx": HostSpec("mlx", settings.engines.python("mlx")),
        "cpu": HostSpec("cpu", settings.engines.python("cpu")),
    }
    return Hosts(specs, set_up=SetUp("gateway.telemetry.logs:configure_logs", logs))


def _uvicorn_config(app: Starlette, settings: Settings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=_HttpProtocol,
        ws=_WebSocketProtocol,
        ws_max_size=settings.max_message_bytes,
        ws_per_message_deflate=False,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=CLOSE_CONNECTIONS_S,
    )
    try:
        config.load()
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError("tls_unreadable", f"tls_cert, tls_key: cannot be used: {error}") from None
    return config
