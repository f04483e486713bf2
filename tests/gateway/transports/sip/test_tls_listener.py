"""TLS that is begun, and TLS that never is, on both loops."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.transports.sip import tls_listener as module
from gateway.transports.sip.sockets import MAX_PER_SOURCE, Sockets
from gateway.transports.sip.transaction import Peer
from tests.gateway.transports.sip.test_server import certificate
from tests.gateway.transports.sip.test_sockets import HOST, MESSAGE, Above
from tests.serving import eventually


@contextlib.asynccontextmanager
async def opened(cert: Path, key: Path) -> AsyncIterator[tuple[Sockets, Above]]:
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(cert))
    theirs.load_cert_chain(cert, key)
    above = Above()
    sockets = Sockets(above, max_connections=100, tls_client=ours)
    await sockets.listen_udp(HOST, 0)
    await sockets.listen_stream(HOST, 0, theirs)
    try:
        yield sockets, above
    finally:
        await sockets.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def on_loop(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if request.param == "uvloop" else None) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: broken.append(context))
            runner.run(work)
        assert not broken

    broken: list[object] = []
    return on_loop


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_messages_both_ways_also_in_one_with_the_handshake(run: Run, tmp_path: Path) -> None:
    async def both_ways() -> None:
        async with opened(*certificate(tmp_path)) as (sockets, above):
            to = Peer("tls", HOST, sockets.ports["tls"])
            for _ in range(20):
                sockets.send(MESSAGE, to)
            await eventually(lambda: len(above.received) == 20)
            source = above.received[0][1]
            assert source.transport == "tls"
            assert source.flow is not None
            sockets.send(MESSAGE, source)
            await eventually(lambda: len(above.received) == 21)
            assert len(sockets._connections) == 2

    run(both_ways())


def test_a_handshake_that_never_comes_holds_a_place_and_not_for_long(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.5)

    async def never() -> None:
        async with opened(*certificate(tmp_path)) as (sockets, above):
            port = sockets.ports["tls"]
            streams = [await asyncio.open_connection(HOST, port) for _ in range(MAX_PER_SOURCE + 1)]
            with contextlib.suppress(ConnectionError):
                assert await streams[-1][0].read() == b""
            assert above.counted == ["sip_connections_refused"]
            for reader, writer in streams:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
            await eventually(lambda: not sockets._connections)
            assert not sockets._by_source

    run(never())


def test_what_is_no_tls_is_cut(run: Run, tmp_path: Path) -> None:
    async def nonsense() -> None:
        async with opened(*certificate(tmp_path)) as (sockets, _):
            reader, writer = await asyncio.open_connection(HOST, sockets.ports["tls"])
            writer.write(MESSAGE)
            with contextlib.suppress(ConnectionError):
                await reader.read()  # perhaps an alert
            writer.close()
            await eventually(lambda: not sockets._connections)

    run(nonsense())


def test_the_end_amid_a_handshake(run: Run, tmp_path: Path) -> None:
    async def cut() -> None:
        async with opened(*certificate(tmp_path)) as (sockets, _):
            _, writer = await asyncio.open_connection(HOST, sockets.ports["tls"])
            await eventually(lambda: sockets._connections)
        writer.close()
        assert not sockets._tasks

    run(cut())
