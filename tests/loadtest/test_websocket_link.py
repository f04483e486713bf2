"""The link beside a server without a network, in virtual time; over sockets it is tested by the calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from loadtest.call import CallOver, CallPlan, EndCause
from loadtest.websocket_link import MAX_QUEUED_BYTES, WebSocketLink, text_frame
from loadtest.wire import SEND_S
from tests.virtual_time import virtual


class Network:
    """A transport whose other end is a server's protocol. While ``stuck`` nothing gets through."""

    def __init__(self, link: WebSocketLink) -> None:
        self.server = ServerProtocol(max_size=None)
        self.stuck = False
        self.words: list[str] = []
        self.queued = b""
        self.heard: list[Frame] = []
        self.closed = self.aborted = False
        self._link = link
        link.connection_made(cast(asyncio.Transport, self))

    def write(self, data: bytes) -> None:
        self.queued += data
        self.deliver()

    def deliver(self, most: int | None = None) -> None:
        if self.stuck and most is None:
            return
        data, self.queued = self.queued[:most], self.queued[len(self.queued[:most]) :]
        self.server.receive_data(data)
        for event in self.server.events_received():
            if isinstance(event, Request):
                self.server.send_response(self.server.accept(event))
            elif isinstance(event, Frame):
                self.heard.append(event)
        self.answer()

    def answer(self) -> None:
        """What the server has to say arrives."""
        for data in self.server.data_to_send():
            if data and not self.closed:
                self._link.data_received(data)
            else:
                self._lose(None)

    def get_write_buffer_size(self) -> int:
        return len(self.queued)

    def get_extra_info(self, _name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self._lose(None)

    def abort(self) -> None:
        self.aborted = True
        self._lose(None)

    def pause_reading(self) -> None:
        self.words.append("pause")

    def resume_reading(self) -> None:
        self.words.append("resume")

    def _lose(self, error: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._link.connection_lost, error)


class Heard:
    def __init__(self, link: WebSocketLink) -> None:
        self.messages: list[str | bytes] = []
        self.overs: list[CallOver] = []
        link.attend(self.messages.append, self.overs.append)


@asynccontextmanager
async def linked(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[WebSocketLink, Network]]:
    networks: list[Network] = []

    async def connect(self: WebSocketLink, via: object) -> None:
        networks.append(Network(self))

    monkeypatch.setattr(WebSocketLink, "_connect", connect)
    link = await WebSocketLink.open("ws://h/x", CallPlan("ws://h/x", ()), {"A": "b"}, max_message_bytes=1_000_000)
    yield link, networks[0]
    networks[0].stuck = False
    await link.close()


@virtual
async def test_messages_of_any_length_are_what_a_server_hears() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with linked(patch) as (link, network):
            for size in (0, 1, 125, 126, 65_535, 65_536, 100_000):
                link.send(b"x" * size)
                frame = network.heard.pop()
                assert (frame.opcode, frame.fin, bytes(frame.data)) == (Opcode.TEXT, True, b"x" * size)
    assert text_frame("é".encode())[:6] == b"\x81\x82\0\0\0\0"


@virtual
async def test_what_came_before_somebody_listens_is_kept_in_order() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with linked(patch) as (link, network):
            for number in range(1_000):
                network.server.send_text(str(number).encode())
            network.answer()
            assert network.words == ["pause"]  # a server that floods waits
            assert await link.receive() == "0"
            heard = Heard(link)
            assert network.words == ["pause", "resume"]
            network.server.send_text(b"now")
            network.server.send_binary(b"bytes")
            network.answer()
            assert heard.messages == [*map(str, range(1, 1_000)), "now", b"bytes"]


@virtual
async def test_what_comes_early_is_bounded_by_its_size_too() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with linked(patch) as (link, network):
            for _ in range(6):
                network.server.send_text(b"x" * 900_000)
                network.answer()
            assert network.words[0] == "pause"
            heard = Heard(link)
            assert network.words[-1] == "resume"
            assert len(heard.messages) == 6


@virtual
async def test_a_server_that_floods_ends_its_call_and_is_read_no_more() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loadtest.websocket_link.FLOOD_BYTES", 1_000_000)
        patch.setattr("loadtest.websocket_link.FLOOD_MESSAGES", 100)
        async with linked(patch) as (link, network):
            heard = Heard(link)
            await asyncio.sleep(10)
            for _ in range(100 + 500 * 10):  # what it may by now
                network.server.send_text(b"x" * 100)
                network.answer()
            assert heard.overs == []
            for _ in range(3):
                network.server.send_text(b"x")
                network.answer()
            assert [(over.cause, over.problem) for over in heard.overs] == [
                (EndCause.FLOODED, "the server sent more than any call needs")
            ]
            assert network.aborted
        async with linked(patch) as (link, network):
            heard = Heard(link)
            for _ in range(3):
                network.server.send_text(b"x" * 900_000)
                network.answer()
            assert [over.cause for over in heard.overs] == [EndCause.FLOODED]


@virtual
async def test_fragments_are_put_together_and_a_ping_between_them_is_answered() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with linked(patch) as (link, network):
            heard = Heard(link)
            network.server.send_text(b"caf", fin=False)
            network.server.send_ping(b"there?")
            network.server.send_continuation(b"\xc3", fin=False)
            network.server.send_continuation(b"\xa9", fin=True)
            network.answer()
            assert heard.messages == ["café"]
            assert [(frame.opcode, bytes(frame.data)) for frame in network.heard] == [(Opcode.PONG, b"there?")]


@pytest.mark.parametrize(
    ("close", "cause", "problem"),
    [
        (lambda server: server.send_close(1000), EndCause.AGENT_HANGUP, None),
        (lambda server: server.send_close(1013, "full"), EndCause.BUSY, "the gateway is busy: full"),
        (lambda server: server.send_close(1011, "oh"), EndCause.CONNECTION_LOST, "closed by the server with 1011: oh"),
        (lambda server: server.send_eof(), EndCause.CONNECTION_LOST, "the connection was lost"),
    ],
)
def test_how_the_server_ends_it(close: Callable[[ServerProtocol], None], cause: EndCause, problem: str | None) -> None:
    @virtual
    async def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            async with linked(patch) as (link, network):
                heard = Heard(link)
                close(network.server)
                network.answer()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert [(over.cause, over.problem) for over in heard.overs] == [(cause, problem)]
                with pytest.raises(CallOver):
                    link.send(b"more")

    run()


@virtual
async def test_a_server_that_stops_reading_is_noticed_by_the_age_of_what_is_queued() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with linked(patch) as (link, network):
            heard = Heard(link)
            network.stuck = True
            for _ in range(int(SEND_S / 0.02)):
                link.send(b"x" * 100)
                await asyncio.sleep(0.02)
            assert not heard.overs
            link.send(b"x")
            await asyncio.sleep(0.02)
            link.send(b"x")
            assert [(over.cause, over.problem) for over in heard.overs] == [
                (EndCause.STALLED, "the server stopped reading")
            ]


@virtual
async def test_a_server_that_is_slow_has_not_stopped() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with linked(patch) as (link, network):
            heard = Heard(link)
            network.stuck = True
            for _ in range(int(4 * SEND_S / 0.02)):
                link.send(b"x" * 100)
                network.deliver(90)
                await asyncio.sleep(0.02)
            assert not heard.overs
            assert network.queued


@virtual
async def test_more_than_can_wait_is_a_stall_at_once() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with linked(patch) as (link, network):
            heard = Heard(link)
            network.stuck = True
            link.send(b"x")
            link.send(b"x" * MAX_QUEUED_BYTES)
            assert [over.cause for over in heard.overs] == [EndCause.STALLED]


@virtual
async def test_who_vanishes_reads_and_says_nothing_until_the_connection_is_reset() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with linked(patch) as (link, network):
            Heard(link)
            leaving = asyncio.create_task(link.vanish(30.0))
            await asyncio.sleep(29)
            assert (network.words, network.closed, network.heard) == (["resume", "pause"], False, [])
            await leaving
            assert (network.aborted, network.heard) == (True, [])


@virtual
async def test_goodbye_is_said_and_not_waited_for_without_end() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with linked(patch) as (link, network):
            network.stuck = True
            loop: Any = asyncio.get_running_loop()
            began_s = loop.time()
            await link.close()
            assert (network.aborted, loop.time() - began_s) == (True, 2.0)
            network.stuck = False
            network.deliver()
            assert [frame.opcode for frame in network.heard] == [Opcode.CLOSE]
