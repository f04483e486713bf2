"""Calls that the served SIP server places."""

from __future__ import annotations

import asyncio

import pytest

from gateway.outbound import DialFailed
from gateway.transports.sip import dialling
from gateway.transports.sip.dialling import OutgoingLine, _until_answered
from gateway.transports.sip.incoming import IncomingSession
from gateway.transports.sip.media import RtpMedia
from gateway.transports.sip.server import SipServer
from tests.gateway.transports.sip.caller import HOST, Placed, answers
from tests.gateway.transports.sip.server_rig import phone, taking_calls
from tests.serving import Served, eventually


async def dialled(here: Served, server: SipServer, to: str, ring_s: float = 5.0) -> None:
    admission = await here.gateway.switchboard.admit("out")
    with admission:
        await server.dial(admission, to, caller="+15551234567", agent="default", ring_s=ring_s)


async def test_a_call_that_we_place() -> None:
    async with taking_calls() as (here, server), phone(on_invite=answers) as caller:
        dialling = asyncio.create_task(dialled(here, server, f"sip:bob@{HOST}:{caller.port}"))
        await eventually(lambda: caller.incoming and "established" in caller.incoming[0].told)
        await eventually(here.gateway.switchboard.calls)
        (record,) = here.gateway.switchboard.calls()
        assert record.state == "answered"
        caller.incoming[0].session.hang_up()
        await dialling
        assert record.cause == "caller_hung_up"


async def test_a_call_to_a_name_counts_for_the_address_of_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def as_over_tls(host: str, port: int) -> str:
        return host

    monkeypatch.setattr(dialling, "resolve", as_over_tls)
    async with taking_calls() as (here, server), phone(on_invite=answers) as caller:
        await caller.sockets.listen_stream(HOST, caller.port)
        placing = asyncio.create_task(dialled(here, server, f"sip:bob@localhost:{caller.port};transport=tcp"))
        await eventually(here.gateway.switchboard.calls)
        (record,) = here.gateway.switchboard.calls()
        await eventually(lambda: record.state == "answered")
        assert (server.calls_of(HOST), server.calls_of("localhost")) == (1, 0), "else it is cut while nobody signals"
        caller.incoming[0].session.hang_up()
        await placing


async def test_a_call_that_we_place_and_that_is_hung_up_as_it_is_answered() -> None:
    def answers_and_goes(session: IncomingSession, placed: Placed) -> None:
        placed.established = session.hang_up  # type: ignore[method-assign]
        answers(session, placed)

    async with taking_calls() as (here, server), phone(on_invite=answers_and_goes) as caller:
        await dialled(here, server, f"sip:bob@{HOST}:{caller.port}")
        await caller.incoming[0].until("closed")


async def test_answered_and_over_before_anybody_looked_is_answered() -> None:
    class Session:
        has_progress = True

        def invite(self, media: object) -> None:
            line.established()
            line.hung_up("caller_hung_up")

    async with taking_calls() as (here, server):
        with await here.gateway.switchboard.admit("out") as admission:
            line = OutgoingLine(admission)
            line.media = await RtpMedia.open(server.answering.media_policy(), line)
            await _until_answered(Session(), line, 1.0)  # type: ignore[arg-type]
            assert line.cause == "caller_hung_up"
            await line.free()


async def test_a_call_that_we_place_and_end() -> None:
    async with taking_calls() as (here, server), phone(on_invite=answers) as caller:
        dialling = asyncio.create_task(dialled(here, server, f"sip:bob@{HOST}:{caller.port}"))
        await eventually(lambda: caller.incoming and "established" in caller.incoming[0].told)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
        await caller.incoming[0].until("hung up")


@pytest.mark.parametrize(("status", "code"), [(486, "busy"), (603, "declined"), (404, "not_found"), (403, "forbidden")])
async def test_a_call_that_nobody_takes(status: int, code: str) -> None:
    async with taking_calls() as (here, server), phone(on_invite=lambda session, _: session.reject(status)) as caller:
        with pytest.raises(DialFailed) as caught:
            await dialled(here, server, f"sip:bob@{HOST}:{caller.port}")
        assert (caught.value.code, caught.value.status) == (code, status)


async def test_a_call_that_rings_for_too_long_is_cancelled() -> None:
    async with (
        taking_calls() as (here, server),
        phone(on_invite=lambda session, _: session.ring(for_long=True)) as caller,
    ):
        with pytest.raises(DialFailed) as caught:
            await dialled(here, server, f"sip:bob@{HOST}:{caller.port}", ring_s=0.3)
        assert caught.value.code == "no_answer"
        await caller.incoming[0].until("closed")


@pytest.mark.parametrize(
    "to",
    ["sip:bob@no-such-host.invalid", "sip:b@127.0.0.1;transport=tls", "http://x", "sip:b@127.0.0.1:1;transport=tcp"],
)
async def test_a_call_to_nowhere(to: str) -> None:
    async with taking_calls() as (here, server):
        with pytest.raises(DialFailed) as caught:
            await dialled(here, server, to)
        assert caught.value.code in {"unreachable", "not_found"}
