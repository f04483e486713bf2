"""A network that holds everything, and then bursts: in virtual time, and between real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, cast

import pytest

from loadtest import tcp_hold
from loadtest.tcp_hold import HoldCounts, Stalls, TcpHold, stall_times
from tests.virtual_time import START_S, virtual


def test_stalls_come_by_seed_and_by_nothing_else() -> None:
    stalls = Stalls(5, (0.3, 2.0))
    first = list(itertools.islice(stall_times(stalls, 1), 400))
    assert first == list(itertools.islice(stall_times(stalls, 1), 400))
    assert first != list(itertools.islice(stall_times(stalls, 2), 400))
    lengths = [until_s - at_s for at_s, until_s in first]
    assert min(lengths) >= 0.3
    assert max(lengths) <= 2.0
    pauses = [at_s - until_s for (_, until_s), (at_s, _) in itertools.pairwise(first)]
    assert min(pauses) > 0
    assert sum(pauses) / len(pauses) == pytest.approx(5, rel=0.2)


class Wire:
    """A transport that notes what is done with it, and when."""

    def __init__(self, end: Any, name: str, log: list[tuple[float, str, object]]) -> None:
        self.end = end
        self._name = name
        self._log = log
        self._closing = False

    def note(self, what: str, value: object = None) -> None:
        self._log.append((round(asyncio.get_running_loop().time() - START_S, 3), f"{self._name} {what}", value))

    def write(self, data: bytes) -> None:
        self.note("gets", data)

    def write_eof(self) -> None:
        self.note("gets eof")

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self.note("waits")

    def resume_reading(self) -> None:
        self.note("goes on")

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.note("closes")
            asyncio.get_running_loop().call_soon(self.end.connection_lost, None)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self.note("is cut")
            asyncio.get_running_loop().call_soon(self.end.connection_lost, None)


class Rig:
    """One connection over a network that stalls from 1 s to 3 s, and from 10 s to 11 s."""

    def __init__(self) -> None:
        self.log: list[tuple[float, str, object]] = []
        self.broken = False
        self.counts = HoldCounts()

        def stalls() -> Iterator[tuple[float, float]]:
            yield from ((1.0, 3.0), (10.0, 11.0), (1e6, 2e6))

        self.line = tcp_hold._Line(("", 0), stalls(), self.counts, self._on_broken)
        self.near, self.far = Wire(self.line.near, "client", self.log), Wire(self.line.far, "server", self.log)
        self.line.near.transport = cast(asyncio.Transport, self.near)
        self.line.far.connection_made(cast(asyncio.Transport, self.far))

    def _on_broken(self, _line: object) -> None:
        self.broken = True


@virtual
async def test_what_comes_while_the_network_stalls_comes_in_one_burst() -> None:
    rig = Rig()
    for number in range(5):
        rig.line.near.data_received(b"up%d" % number)
        rig.line.far.data_received(b"down%d" % number)
        await asyncio.sleep(0.9)
    assert rig.log == [
        (0.0, "server gets", b"up0"),
        (0.0, "client gets", b"down0"),
        (0.9, "server gets", b"up1"),
        (0.9, "client gets", b"down1"),
        (3.0, "server gets", b"up2up3"),
        (3.0, "client gets", b"down2down3"),
        (3.6, "server gets", b"up4"),
        (3.6, "client gets", b"down4"),
    ]
    await asyncio.sleep(20)
    assert rig.counts == HoldCounts(stalls=2, stalled_ms=3_000, held_bytes=16, passed_bytes=40)
    rig.line.break_off()
    await asyncio.sleep(0)
    assert rig.broken


@virtual
async def test_what_is_held_is_bounded() -> None:
    rig = Rig()
    await asyncio.sleep(1)
    rig.line.near.data_received(bytes(tcp_hold.MAX_HELD_BYTES - 1))
    rig.line.near.data_received(b"x")
    rig.line.near.data_received(b"y")
    await asyncio.sleep(3)
    assert [(at_s, what) for at_s, what, _ in rig.log] == [
        (1.0, "client waits"),
        (3.0, "server gets"),
        (3.0, "client goes on"),
    ]
    assert rig.counts.overflows == 1
    rig.line.break_off()


@virtual
async def test_an_end_that_says_goodbye_in_a_stall_is_heard_after_it() -> None:
    rig = Rig()
    await asyncio.sleep(2)
    rig.line.near.data_received(b"bye")
    assert rig.line.near.eof_received()
    await asyncio.sleep(2)
    rig.line.far.data_received(b"bye too")
    assert rig.line.far.eof_received()
    assert [(at_s, what) for at_s, what, _ in rig.log] == [
        (3.0, "server gets"),
        (3.0, "server gets eof"),
        (4.0, "client gets"),
        (4.0, "server closes"),
        (4.0, "client closes"),
    ]
    await asyncio.sleep(0)
    assert rig.broken


@virtual
async def test_an_end_that_breaks_off_takes_the_other_with_it() -> None:
    rig = Rig()
    rig.line.near.connection_lost(ConnectionResetError())
    assert rig.log == [(0.0, "client is cut", None), (0.0, "server is cut", None)]
    await asyncio.sleep(0)
    assert rig.broken


@virtual
async def test_a_full_socket_stops_the_other_end() -> None:
    rig = Rig()
    rig.line.far.pause_writing()
    rig.line.far.resume_writing()
    assert [what for _, what, _ in rig.log] == ["client waits", "client goes on"]
    rig.line.break_off()


class Echo:
    """A server that says back what it gets."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1_000):
                writer.write(data)
        except ConnectionError:
            pass
        await closed(writer)
        self.ended.set()


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_between_real_sockets_nothing_is_lost() -> None:
    echo = Echo()
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        relay = await TcpHold.open(server.sockets[0].getsockname(), Stalls(0.02, (0.01, 0.02)), seed=3)
        reader, writer = await asyncio.open_connection(*relay.address)
        sent = bytes(range(256)) * 400
        for at in range(0, len(sent), 4_096):
            writer.write(sent[at : at + 4_096])
            await asyncio.sleep(0.002)
        writer.write_eof()
        assert await reader.read() == sent
        assert relay.counts.stalls > 0
        assert relay.counts.passed_bytes == 2 * len(sent)
        await closed(writer)
        await relay.close()
        await echo.ended.wait()


async def test_closing_breaks_what_is_connected() -> None:
    echo = Echo()
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        relay = await TcpHold.open(server.sockets[0].getsockname(), Stalls(60))
        reader, writer = await asyncio.open_connection(*relay.address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await relay.close()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        await closed(writer)
        await echo.ended.wait()


async def test_a_server_that_is_not_there_is_a_connection_that_breaks() -> None:
    async with await asyncio.start_server(Echo(), "127.0.0.1", 0) as gone:
        address = gone.sockets[0].getsockname()
    relay = await TcpHold.open(address, Stalls(60))
    reader, writer = await asyncio.open_connection(*relay.address)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    await closed(writer)
    await relay.close()
