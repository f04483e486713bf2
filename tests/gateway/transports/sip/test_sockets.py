"""Connections that come, go, stall and fail."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from gateway.transports.sip import connection as connection_module
from gateway.transports.sip import sockets as module
from gateway.transports.sip.sockets import Sockets, resolve
from gateway.transports.sip.transaction import Peer
from tests.listening import listening
from tests.serving import eventually

HOST = "127.0.0.1"
MESSAGE = b"OPTIONS sip:x SIP/2.0\r\nContent-Length: 0\r\n\r\n"


class Above:
    def __init__(self) -> None:
        self.received: list[tuple[bytes, Peer]] = []
        self.counted: list[str] = []
        self.gone: list[Callable[[Peer], bool]] = []
        self.open = True
        self.trusted = False

    def takes(self, host: str, size: int = 0) -> bool:
        return self.open

    def trusts(self, host: str) -> bool:
        return self.trusted

    def keeps(self, host: str) -> bool:
        return self.trusted

    def receive(self, data: bytes, source: Peer) -> None:
        self.received.append((data, source))

    def unreachable(self, is_gone: Callable[[Peer], bool]) -> None:
        self.gone.append(is_gone)

    def count(self, name: str) -> None:
        self.counted.append(name)


@contextlib.asynccontextmanager
async def opened(max_connections: int = 100) -> AsyncIterator[tuple[Sockets, Above]]:
    above = Above()
    sockets = Sockets(above, max_connections=max_connections, tls_client=None)
    await sockets.listen(HOST, 0, ("udp", "tcp"))
    try:
        yield sockets, above
    finally:
        await sockets.close()


async def test_datagrams_both_ways_by_address_and_by_name() -> None:
    async with opened() as (one, above), opened() as (two, theirs):
        one.send(MESSAGE, Peer("udp", HOST, two.ports["udp"]))
        await eventually(lambda: theirs.received)
        assert theirs.received == [(MESSAGE, Peer("udp", HOST, one.ports["udp"]))]
        two.send(MESSAGE, Peer("udp", "localhost", one.ports["udp"]))
        await eventually(lambda: above.received)
        two.send(b"\r\n\r\n", Peer("udp", HOST, one.ports["udp"]))
        two.send(MESSAGE, Peer("udp", HOST, one.ports["udp"]))
        await eventually(lambda: len(above.received) == 2)  # a ping is no message
        above.open = False
        two.send(MESSAGE, Peer("udp", HOST, one.ports["udp"]))
        await eventually(lambda: above.counted)
        assert above.counted == ["sip_over_rate"]
        assert len(above.received) == 2


async def test_names_that_nobody_knows_and_too_many_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as (sockets, above):
        sockets.send(MESSAGE, Peer("udp", "no-such-host.invalid", 5060))
        await eventually(lambda: above.counted == ["sip_lookup_failed"])
        monkeypatch.setattr(module, "MAX_LOOKUPS", 0)
        sockets.send(MESSAGE, Peer("udp", "localhost", 5060))
        assert above.counted[-1] == "sip_lookups_full"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".example"])
def test_what_cannot_be_a_name_is_counted_and_leaves_nothing(host: str, loop: str) -> None:
    """A peer may name any host in its Contact."""

    async def send() -> list[str]:
        broken: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        async with opened() as (sockets, above):
            sockets.send(MESSAGE, Peer("udp", host, 5060))
            await eventually(lambda: not sockets._tasks)
            sockets.send(MESSAGE, Peer("tcp", host, 5060))
            await eventually(lambda: not sockets._tasks)
            assert not sockets._opened
            assert above.gone[0](Peer("tcp", host, 5060))
        gc.collect()
        assert not broken
        return above.counted

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        assert runner.run(send()) == ["sip_lookup_failed", "sip_connect_failed"]


async def test_tls_that_is_off_is_not_replaced_by_tcp() -> None:
    async with opened() as (one, above), opened() as (two, theirs):
        to = Peer("tls", HOST, two.ports["tcp"])
        one.send(MESSAGE, to)
        await eventually(lambda: above.gone)
        assert above.gone[0](to)
        assert above.counted == ["sip_connect_failed"]
        assert not theirs.received


async def test_without_a_udp_socket_none_is_sent() -> None:
    above = Above()
    sockets = Sockets(above, max_connections=1, tls_client=None)
    sockets.send(MESSAGE, Peer("udp", HOST, 5060))
    assert above.counted == ["sip_no_udp"]
    await sockets.close()
    sockets.send(MESSAGE, Peer("udp", HOST, 5060))
    assert above.counted == ["sip_no_udp"]


async def test_one_connection_serves_all_messages_to_a_place_and_their_answers() -> None:
    async with opened() as (one, above), opened() as (two, theirs):
        to = Peer("tcp", HOST, two.ports["tcp"])
        one.send(MESSAGE, to)
        one.send(MESSAGE, to)
        await eventually(lambda: len(theirs.received) == 2)
        one.send(MESSAGE, to)
        await eventually(lambda: len(theirs.received) == 3)
        assert len({source.flow for _, source in theirs.received}) == 1
        two.send(MESSAGE, theirs.received[0][1])
        await eventually(lambda: above.received)


async def test_a_peer_that_is_called_by_its_name_has_the_address_of_its_connection() -> None:
    async with opened() as (one, _), opened() as (two, theirs):
        to = Peer("tcp", "localhost", two.ports["tcp"])
        assert one.address_of(to) == "localhost"
        one.send(MESSAGE, to)
        assert one.address_of(to) == "localhost"
        await eventually(lambda: theirs.received)
        assert one.address_of(to) == HOST
        assert one.address_of(Peer("udp", HOST, 5060)) == HOST


async def test_a_connection_that_is_gone_is_opened_anew_to_where_the_peer_listens() -> None:
    async with opened() as (one, _), opened() as (two, theirs):
        gone = Peer("tcp", HOST, 1, flow=999, otherwise=(HOST, two.ports["tcp"]))
        one.send(MESSAGE, gone)
        await eventually(lambda: theirs.received)


async def test_nobody_listens() -> None:
    async with opened() as (sockets, above):
        to = Peer("tcp", HOST, 1)
        sockets.send(MESSAGE, to)
        await eventually(lambda: above.gone)
        assert above.counted == ["sip_connect_failed"]
        assert above.gone[0](to)
        assert not above.gone[0](Peer("tcp", HOST, 2))


async def test_who_waited_for_a_connection_that_broke_is_told() -> None:
    async with opened() as (one, above), opened() as (two, theirs):
        to = Peer("tcp", HOST, two.ports["tcp"])
        one.send(MESSAGE, to)
        await eventually(lambda: theirs.received)
        for connection in list(two._connections.values()):
            connection.abort()
        await eventually(lambda: above.gone)
        assert above.gone[0](to)
        one.send(MESSAGE, to)
        await eventually(lambda: len(theirs.received) == 2)


async def test_connections_are_bounded_in_all() -> None:
    async with opened(max_connections=2) as (sockets, above), opened(max_connections=0) as (none, their_count):
        streams = [await asyncio.open_connection(HOST, sockets.ports["tcp"]) for _ in range(3)]
        assert await streams[2][0].read() == b""
        assert above.counted == ["sip_connections_refused"]
        none.send(MESSAGE, Peer("tcp", HOST, sockets.ports["tcp"]))
        assert their_count.counted == ["sip_connections_full"]
        for _, writer in streams:
            writer.close()


async def test_connections_are_bounded_for_each_source_unless_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PER_SOURCE", 1)
    async with opened() as (sockets, above):
        streams = [await asyncio.open_connection(HOST, sockets.ports["tcp"])]
        await eventually(lambda: sockets._connections)
        reader, writer = await asyncio.open_connection(HOST, sockets.ports["tcp"])
        assert await reader.read() == b""
        above.trusted = True
        streams.append(await asyncio.open_connection(HOST, sockets.ports["tcp"]))
        await eventually(lambda: len(sockets._connections) == 2)
        for _, open_writer in [*streams, (reader, writer)]:
            open_writer.close()
        await eventually(lambda: not sockets._connections)
        assert not sockets._by_source


async def test_strangers_leave_room_for_those_who_are_known() -> None:
    async with opened(max_connections=4) as (sockets, above):
        streams = [await asyncio.open_connection(HOST, sockets.ports["tcp"]) for _ in range(4)]
        assert await streams[3][0].read() == b""
        above.trusted = True
        streams.append(await asyncio.open_connection(HOST, sockets.ports["tcp"]))
        await eventually(lambda: len(sockets._connections) == 4)
        for _, writer in streams:
            writer.close()


@pytest.mark.parametrize("data", [MESSAGE, b"\r\n\r\n"])
async def test_who_sends_more_than_it_may_is_cut(data: bytes) -> None:
    async with opened() as (sockets, above):
        reader, writer = await asyncio.open_connection(HOST, sockets.ports["tcp"])
        await eventually(lambda: sockets._connections)
        above.open = False
        writer.write(data * 3)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert above.counted == ["sip_over_rate"]
        assert not above.received
        refused, other = await asyncio.open_connection(HOST, sockets.ports["tcp"])
        with contextlib.suppress(ConnectionError):
            assert await refused.read() == b""
        assert above.counted == ["sip_over_rate", "sip_connections_refused"]
        for one in (writer, other):
            one.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_calls_have_their_turn_between_messages_however_many_come_at_once(loop: str) -> None:
    async def send() -> int:
        turn, most, came = 0, 0, Counter[int]()
        ticker: asyncio.Handle | None = None

        def tick() -> None:
            nonlocal turn, ticker
            turn += 1
            ticker = asyncio.get_running_loop().call_soon(tick)

        async with opened() as (sockets, above):
            _, writer = await asyncio.open_connection(HOST, sockets.ports["tcp"])
            await eventually(lambda: sockets._connections)
            above.receive = lambda data, source: came.update([turn])  # type: ignore[method-assign]
            tick()
            writer.write(MESSAGE * 20_000)
            await eventually(lambda: came.total() == 20_000)
            most = max(came.values())
            writer.close()
            assert ticker is not None
            ticker.cancel()
        return most

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        assert runner.run(send()) <= connection_module.READ_BYTES // len(MESSAGE) + 1


async def test_half_a_message_is_waited_for_and_then_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "PARTIAL_S", 0.05)
    async with opened() as (sockets, above):
        reader, writer = await asyncio.open_connection(HOST, sockets.ports["tcp"])
        writer.write(MESSAGE + MESSAGE[:10])
        await eventually(lambda: above.received)
        writer.write(MESSAGE[10:12])  # more of it does not buy more time
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_an_idle_connection_is_cut_unless_a_call_may_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "IDLE_S", 0.05)
    async with opened() as (sockets, above):
        above.trusted = True
        reader, writer = await asyncio.open_connection(HOST, sockets.ports["tcp"])
        writer.write(MESSAGE)
        await eventually(lambda: above.received)
        await asyncio.sleep(0.2)
        assert sockets._connections
        above.trusted = False
        assert await reader.read() == b""
        writer.close()


async def test_a_peer_that_reads_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = asyncio.Event()

    async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stalled.wait()

    async with opened() as (sockets, above), listening(read_nothing) as port:
        to = Peer("tcp", HOST, port)
        sockets.send(MESSAGE, to)
        await eventually(lambda: sockets._connections)
        for _ in range(400):
            sockets.send(b"x" * 30_000, to)
        assert "sip_peer_not_reading" in above.counted
        await eventually(lambda: not sockets._connections)
        stalled.set()


async def test_what_waits_for_a_connection_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as (one, _), opened() as (two, theirs):
        to = Peer("tcp", HOST, two.ports["tcp"])
        for _ in range(connection_module.MAX_UNSENT_BYTES // len(MESSAGE) + 100):
            one.send(MESSAGE, to)
        await eventually(lambda: theirs.received)
        await asyncio.sleep(0.2)
        assert len(theirs.received) == connection_module.MAX_UNSENT_BYTES // len(MESSAGE)


async def test_a_name_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: object, **kwargs: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "CONNECT_S", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    with pytest.raises(OSError, match="in time"):
        await resolve("slow.example", 5060)


@pytest.mark.parametrize("host", ["::1", "255.255.255.255"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_address_that_the_socket_cannot_reach_is_counted(host: str, loop: str) -> None:
    async def send() -> list[str]:
        async with opened() as (sockets, above):
            sockets.send(MESSAGE, Peer("udp", host, 5060))
            await eventually(lambda: above.counted)
            sockets.send(MESSAGE, Peer("udp", HOST, sockets.ports["udp"]))
            await eventually(lambda: above.received)
            return above.counted

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        assert runner.run(send()) == ["sip_socket_errors"]


async def test_an_ipv6_socket_reaches_both_kinds() -> None:
    above = Above()
    sockets = Sockets(above, max_connections=1, tls_client=None)
    try:
        port = await sockets.listen_udp("::", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    for host in (HOST, "::1"):
        sockets.send(MESSAGE, Peer("udp", host, port))
    await eventually(lambda: len(above.received) == 2)
    await sockets.close()


async def test_a_port_that_is_free_for_one_of_both_only_is_not_taken() -> None:
    above = Above()
    sockets = Sockets(above, max_connections=1, tls_client=None)
    tries: list[int] = []
    listen = sockets.listen_stream

    async def taken_twice(host: str, port: int, tls: object = None) -> int:
        tries.append(port)
        if len(tries) < 3:
            raise OSError("taken")
        return await listen(host, port)

    sockets.listen_stream = taken_twice  # type: ignore[method-assign]
    await sockets.listen(HOST, 0, ("udp", "tcp"))
    assert len(tries) == 3
    assert sockets.ports["udp"] == sockets.ports["tcp"] == tries[-1]
    await sockets.close()
