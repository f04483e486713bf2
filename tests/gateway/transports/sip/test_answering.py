"""How the server answers what is out of the ordinary, by a peer that writes its datagrams by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.agent_settings import AgentSettings
from gateway.call_setup import CallNotSetUp
from gateway.media_settings import MediaSettings
from gateway.settings import Settings
from gateway.sip_settings import SipSettings
from gateway.transports.sip import answering, guard
from gateway.transports.sip.message import Request, Response, answer, parse
from gateway.transports.sip.server import SipServer
from tests.gateway.transports.sip.caller import HOST, Caller, Described, Placed, answers
from tests.gateway.transports.sip.sip_rig import SDP, request
from tests.serving import Served, eventually, served

OFFER = Described().offer()


@contextlib.asynccontextmanager
async def taking_calls(media: MediaSettings | None = None, **sip: Any) -> AsyncIterator[tuple[Served, SipServer]]:
    settings = Settings(
        preset="null",
        max_calls=16,
        agents={"default": AgentSettings(greeting=""), "sales": AgentSettings(greeting="")},
        media=media or MediaSettings(),
        sip=SipSettings(enabled=True, port=0, **sip),
    )
    async with served(settings=settings) as here:
        server = here.gateway.wires.sip
        assert server is not None
        yield here, server
        await eventually(lambda: server.idle)


class Peer(asyncio.DatagramProtocol):
    """``reply`` answers requests of the server's."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._news = asyncio.Event()
        self.got: list[Request | Response] = []
        self.reply: Callable[[Request], bytes | None] = lambda request: answer(request, 200).encode()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport
        self.own_port: int = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if not data.strip():
            return
        message = parse(data)
        self.got.append(message)
        self._news.set()
        if isinstance(message, Request) and message.method != "ACK":
            said = self.reply(message)
            if said is not None:
                self.transport.sendto(said, addr)

    def say(self, *lines: str, body: str = "") -> None:
        # rport, so that answers come back to this socket
        lines = tuple(line.replace(";branch", ";rport;branch") for line in lines)
        text = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]) + body
        self.transport.sendto(text.encode(), (HOST, self._port))

    def invite(self, *extra: str, body: str = OFFER, **kwargs: Any) -> None:
        contact = f"<sip:caller@{HOST}:{self.own_port}>"
        given = [SDP] if body else []
        self.say(*request("INVITE", *given, *extra, contact=contact, **kwargs), body=body)

    async def until(self, holds: Callable[[Request | Response], bool]) -> Request | Response:
        async with asyncio.timeout(10):
            while True:
                for message in self.got:
                    if holds(message):
                        return message
                self._news.clear()
                await self._news.wait()

    async def final(self, seq: int = 1) -> Response:
        def is_it(message: Request | Response) -> bool:
            return isinstance(message, Response) and message.status >= 200 and message.cseq[0] == seq

        found = await self.until(is_it)
        assert isinstance(found, Response)
        return found

    async def ends(self, tag: str) -> None:
        """ACK and BYE of a call that was answered."""
        self.say(*request("ACK", tag=tag, branch="z9hG4bKack"))
        self.say(*request("BYE", tag=tag, seq=9, branch="z9hG4bKbye"))
        assert (await self.final(9)).status == 200


@contextlib.asynccontextmanager
async def by_hand(server: SipServer) -> AsyncIterator[Peer]:
    loop = asyncio.get_running_loop()
    transport, peer = await loop.create_datagram_endpoint(lambda: Peer(server.ports["udp"]), (HOST, 0))
    try:
        yield peer
    finally:
        transport.close()


async def test_late_offer() -> None:
    async with taking_calls() as (here, server), by_hand(server) as peer:
        peer.invite(body="")
        response = await peer.final()
        assert b"m=audio" in response.body
        peer.say(*request("ACK", SDP, tag=response.to.tag, branch="z9hG4bKack"), body=Described().answer(""))
        await eventually(here.gateway.switchboard.calls)
        peer.say(*request("BYE", tag=response.to.tag, seq=2, branch="z9hG4bKbye"))
        assert (await peer.final(2)).status == 200


async def test_a_late_offer_that_is_never_answered_is_no_call() -> None:
    async with taking_calls() as (here, server), by_hand(server) as peer:
        peer.invite(body="")
        response = await peer.final()
        peer.say(*request("ACK", tag=response.to.tag, branch="z9hG4bKack"))
        await peer.until(lambda message: isinstance(message, Request) and message.method == "BYE")
        await here.empty()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("nonsense", 400),
        (OFFER.replace("RTP/AVP", "RTP/SAVP"), 488),
        (OFFER.replace("RTP/AVP 0 101", "RTP/AVP 3").replace("PCMU", "GSM"), 488),
    ],
)
async def test_media_that_we_cannot_do(body: str, status: int) -> None:
    async with taking_calls() as (here, server), by_hand(server) as peer:
        peer.invite(body=body)
        assert (await peer.final()).status == status
        peer.say(*request("ACK", tag=peer.got[-1].to.tag))
        await here.empty()


async def test_no_ports_left() -> None:
    media = MediaSettings(port_range="41960-41969")
    async with taking_calls(media) as (here, server):
        async with contextlib.AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(by_hand(server)) for _ in range(6)]
            for number, peer in enumerate(peers):
                peer.invite(call_id=f"call-{number}", branch=f"z9hG4bK{number}")
                response = await peer.final()
                if response.status == 503:
                    assert response.headers.get("retry-after")
                    break
            else:
                raise AssertionError("there are five pairs of ports")
            here.gateway.switchboard.hang_up_all("test")
        for session in list(server.ua.sessions.values()):
            session.close()


@pytest.mark.parametrize("late", [True, False])
async def test_an_engine_that_takes_no_call(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    def refuse(*args: object) -> None:
        raise CallNotSetUp

    monkeypatch.setattr(answering, "PhoneCall", refuse)
    async with taking_calls() as (_, server), by_hand(server) as peer:
        peer.invite(body="" if late else OFFER)
        response = await peer.final()
        if not late:
            assert response.status == 503
            assert response.headers.get("retry-after")
            return
        peer.say(*request("ACK", SDP, tag=response.to.tag, branch="z9hG4bKack"), body=Described().answer(""))
        await peer.until(lambda message: isinstance(message, Request) and message.method == "BYE")


async def test_the_agent_by_user_by_parameter_and_the_caller_by_his_network() -> None:
    async with taking_calls(allow=(f"{HOST}/32",)) as (here, server), by_hand(server) as peer:
        peer.invite("P-Asserted-Identity: <sip:+15550001@carrier.example>", uri="sip:sales@192.0.2.1")
        response = await peer.final()
        peer.say(*request("ACK", tag=response.to.tag, branch="z9hG4bKack"))
        await eventually(here.gateway.switchboard.calls)
        (record,) = here.gateway.switchboard.calls()
        assert record.agent == "sales"
        assert record.view()["caller"] == "+15550001"
        assert record.view()["dialled"] == "sales"
        await peer.ends(response.to.tag)


async def test_a_trunk_calls_by_our_name_there() -> None:
    trunk = {"server": HOST, "user": "account7", "register": False}
    async with taking_calls(trunks={"main": trunk}) as (here, server), by_hand(server) as peer:
        peer.invite(uri="sip:account7@192.0.2.1")
        response = await peer.final()
        peer.say(*request("ACK", tag=response.to.tag, branch="z9hG4bKack"))
        await eventually(here.gateway.switchboard.calls)
        (record,) = here.gateway.switchboard.calls()
        assert record.view()["dialled"] == "desk"
        await peer.ends(response.to.tag)


async def test_it_stops_while_a_call_rings_and_another_waits_for_its_ack() -> None:
    async with taking_calls(ring_s=30) as (here, server), by_hand(server) as peer, by_hand(server) as other:
        peer.invite()
        await peer.until(lambda message: isinstance(message, Response) and message.status == 180)
        other.invite("Require: 100rel", call_id="call-2", branch="z9hG4bKother")
        await other.until(lambda message: isinstance(message, Response) and message.status == 180)
        tasks = [task for task in server._tasks if task.get_name() == "sip call"]
        assert len(tasks) == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await peer.final()).status == 480
        assert {record.cause for record in here.gateway.recent} == {"server_stop"}


async def test_registered_with_a_trunk_and_calls_by_it() -> None:
    async with Caller(on_invite=answers).up() as phone:
        asked: list[Request] = []
        loop = asyncio.get_running_loop()
        transport, registrar = await loop.create_datagram_endpoint(lambda: Peer(0), (HOST, 0))

        def register(request: Request) -> bytes | None:
            asked.append(request)
            return answer(request, 200, headers=[("contact", request.headers.get("contact"))]).encode()

        registrar.reply = register
        trunk = {"server": f"{HOST}:{registrar.own_port}", "user": "account7", "password": "secret"}
        async with taking_calls(trunks={"main": trunk}, host="127.0.0.1") as (_, server):
            await eventually(lambda: asked)
            assert asked[0].method == "REGISTER"
            assert asked[0].from_.uri.user == "account7"
        assert [request.headers.get("expires") for request in asked] == ["600", "0"]
        transport.close()
        by = {"server": f"{HOST}:{phone.port}", "user": "account7", "register": False, "domain": "voice.example"}
        async with taking_calls(trunks={"main": by}) as (here, server):
            admission = await here.gateway.switchboard.admit("out")
            with admission:
                work = server.dial(admission, "sip:+1555@voice.example", caller="", agent="sales", ring_s=5)
                dialling = asyncio.create_task(work)
                await eventually(lambda: phone.incoming and "established" in phone.incoming[0].told)
                await eventually(here.gateway.switchboard.calls)
                placed: Placed = phone.incoming[0]
                invite = placed.session.invite  # type: ignore[attr-defined]
                assert invite.from_.uri_text == "sip:account7@voice.example"
                placed.session.hang_up()
                await dialling


async def test_a_defect_of_ours_costs_a_message_and_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with taking_calls() as (here, server), by_hand(server) as peer:
        with monkeypatch.context() as broken:
            broken.setattr(guard.SourceGuard, "judge", lambda *_: 1 / 0)
            peer.say(*request("OPTIONS"))
            await eventually(lambda: here.faults)
            assert isinstance(here.faults.pop(), ZeroDivisionError | str)
            here.faults.clear()
        peer.say(*request("OPTIONS", branch="z9hG4bKb"))
        assert (await peer.final()).status == 200


async def test_a_stranger_s_calls_that_wait_for_their_ack_do_not_take_all_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SipServer, "trusts", lambda *_: False)
    async with taking_calls(anyone=True, host=HOST) as (_, server), contextlib.AsyncExitStack() as stack:
        tags: list[tuple[Peer, str, str]] = []
        for number in range(9):
            peer = await stack.enter_async_context(by_hand(server))
            peer.invite(call_id=f"call-{number}", branch=f"z9hG4bK{number}")
            response = await peer.final()
            if response.status == 503:
                break
            tags.append((peer, f"call-{number}", response.to.tag))
        assert len(tags) == 8, "half of the places"
        for peer, call_id, tag in tags:
            peer.say(*request("ACK", tag=tag, call_id=call_id, branch="z9hG4bKack"))
            peer.say(*request("BYE", tag=tag, call_id=call_id, seq=2, branch=f"z9hG4bKbye{call_id}"))
            assert (await peer.final(2)).status == 200
