"""The gateway under its real server, in the test's own loop, on a free port.

It fails the test for what nobody would see: an exception in a callback, an endpoint that raised, a call left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from engines.api import EngineSet
from gateway.app import create_app
from gateway.server import _Server, _uvicorn_config, listening_socket
from gateway.settings import Settings
from gateway.state import Gateway

NULL = Settings(preset="null", max_calls=8)


async def eventually(holds: Callable[[], Any], within_s: float = 15.0) -> None:
    """Wait for what sets no event."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@dataclass
class Served:
    url: str
    """``http://127.0.0.1:PORT``"""
    app: Starlette
    server: _Server
    faults: list[object] = field(default_factory=list)
    """Whatever went wrong unseen. A test that means it clears them."""

    @property
    def ws(self) -> str:
        return self.url.replace("http", "ws", 1) + "/v1/realtime"

    @property
    def gateway(self) -> Gateway:
        gateway: Gateway = self.app.state.gateway
        return gateway

    async def empty(self) -> None:
        """Wait until no call is up and no WebSocket open."""
        await eventually(lambda: not self.gateway.switchboard.live and not self._open())

    def _open(self) -> bool:
        return any(isinstance(c, WebSocketsSansIOProtocol) for c in self.server.server_state.connections)


class _Errors(logging.Handler):
    def __init__(self, faults: list[object]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        self._faults.append(record.exc_info[1] if record.exc_info else record.getMessage())


@contextlib.asynccontextmanager
async def served(
    engines: EngineSet | None = None,
    settings: Settings = NULL,
    *,
    strict: bool = True,
    send_buffer_bytes: int | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """``engines`` (scripted, already started) in place of the preset's. ``strict`` raises a call's defects.
    ``send_buffer_bytes``: what the kernel takes for a peer that does not read; it would be megabytes.
    ``options`` go to :func:`gateway.app.create_app`."""
    loop = asyncio.get_running_loop()
    app = create_app(settings, engines, strict=strict, **options)
    with listening_socket(settings.host, 0) as listener:
        if send_buffer_bytes is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        server = _Server(_uvicorn_config(app, settings))
        here = Served(f"http://127.0.0.1:{listener.getsockname()[1]}", app, server)
        errors = _Errors(here.faults)
        logging.getLogger("uvicorn.error").addHandler(errors)

        def on_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            here.faults.append(context.get("exception") or context["message"])

        loop.set_exception_handler(on_fault)
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="server")
        try:
            await _startup(app, serving)
            yield here
            await here.empty()
        finally:
            server.should_exit = True
            await serving
            logging.getLogger("uvicorn.error").removeHandler(errors)
            loop.set_exception_handler(None)
        assert not here.faults, here.faults


async def _startup(app: Starlette, serving: asyncio.Task[None]) -> None:
    settled = asyncio.create_task(app.state.startup.settled.wait())
    done, _ = await asyncio.wait({settled, serving}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    settled.cancel()
    assert settled in done, "the server did not start"
    assert app.state.startup.error is None, app.state.startup.error


@contextlib.contextmanager
def served_beside(
    open_engines: Callable[[], AbstractAsyncContextManager[EngineSet]],
    settings: Settings = NULL,
    *,
    start_s: float = 30.0,
    stop_s: float = 30.0,
) -> Iterator[Served]:
    """:func:`served` by a loop in a thread of its own, for callers that block. Fails at the end if anything broke."""
    ready: Future[Served] = Future()
    stops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    errors: list[BaseException] = []

    async def serve() -> None:
        stop = asyncio.Event()
        stops.append((asyncio.get_running_loop(), stop))
        async with open_engines() as engines, served(engines, settings) as here:
            ready.set_result(here)
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 (it is raised where the test can see it)
            if ready.done():
                errors.append(error)
            else:
                ready.set_exception(error)

    thread = threading.Thread(target=run, name="gateway beside")
    thread.start()
    try:
        yield ready.result(start_s)
    finally:
        for loop, stop in stops:
            with contextlib.suppress(RuntimeError):  # it failed, and is closed
                loop.call_soon_threadsafe(stop.set)
        thread.join(stop_s)
    assert not thread.is_alive()
    assert errors == []
