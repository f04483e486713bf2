"""Twilio's calls over the real server and real sockets, in real time: once each, for what only they can show."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.transports.carriers.signatures import twilio_signature
from tests.gateway.transports.carriers import test_rest
from tests.gateway.transports.carriers.fake_twilio import CALL, TOKEN, FakeTwilio
from tests.gateway.transports.carriers.links import SocketLink
from tests.gateway.transports.carriers.rig import settings
from tests.listening import listening
from tests.serving import Served, served


def at(url: str, form: dict[str, str] | None = None) -> dict[str, str]:
    return {"X-Twilio-Signature": twilio_signature(TOKEN, url, (form or {}).items())}


async def answer_to(here: Served) -> str:
    url = here.url + "/v1/carriers/twilio/call"
    form = {"CallSid": CALL, "From": "+15550001", "To": "+15550002", "CallStatus": "ringing"}
    async with httpx.AsyncClient() as client:
        answer = await client.post(url, data=form, headers=at(url, form))
    return answer.text.split('url="')[1].split('"')[0]


@contextlib.asynccontextmanager
async def called(here: Served) -> AsyncIterator[FakeTwilio]:
    url = await answer_to(here)
    async with (
        connect(url, additional_headers=at(url), compression=None) as socket,
        FakeTwilio(SocketLink(socket)).connected() as twilio,
    ):
        yield twilio


async def test_a_turn_from_the_webhook_on_and_a_hang_up_by_us_over_the_api() -> None:
    api = test_rest.Api()
    async with listening(api.serve) as port:
        twilio_table = {"enabled": True, "auth_token": TOKEN, "api_url": f"http://127.0.0.1:{port}"}
        async with served(settings=settings(twilio=twilio_table)) as here, called(here) as twilio:
            await twilio.until(lambda: twilio.heard_ms > 200)
            (record,) = here.gateway.switchboard.calls()
            await twilio.hush(1_500)
            await twilio.speak(1_000)
            await twilio.until(lambda: len(record.turns) == 2)
            assert [entry.role for entry in record.transcript] == ["assistant", "user", "assistant"]
            call = here.gateway.switchboard.find(record.id)
            assert call is not None
            call.hang_up("max_duration")
            closed = await twilio.over()
            assert (closed.code, closed.reason) == (1000, "max_duration")
            assert api.requests[0].endswith("Status=completed")


async def test_callers_who_hang_up_vanish_or_never_start_leave_nothing_behind() -> None:
    async with served(settings=settings(twilio={"enabled": True, "auth_token": TOKEN})) as here:
        async with called(here) as twilio:
            await twilio.hush(200)
        async with called(here) as twilio:
            await twilio.hush(200)
            link = twilio._link
            assert isinstance(link, SocketLink)
            link._socket.transport.abort()
            await twilio.over()
        url = await answer_to(here)
        async with connect(url, additional_headers=at(url), compression=None):
            pass
        await here.empty()
        assert sorted(str(record.cause) for record in here.gateway.recent) == ["caller_hung_up", "connection_lost"]


async def test_a_bad_signature_is_answered_before_the_upgrade() -> None:
    async with served(settings=settings(twilio={"enabled": True, "auth_token": TOKEN})) as here:
        url = await answer_to(here)
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, additional_headers=at(url + "x"), compression=None)
        assert refused.value.response.status_code == 403
        assert b"signature_invalid" in (refused.value.response.body or b"")
        here.faults.clear()  # uvicorn calls every upgrade that is denied one
