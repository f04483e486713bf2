"""Calls over a fake Twilio, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl

import httpx
import pytest

from tests.gateway.call_rig import Engines
from tests.gateway.transports.carriers.fake_twilio import ACCOUNT, CALL, TOKEN, FakeTwilio, signed
from tests.gateway.transports.carriers.links import AsgiLink
from tests.gateway.transports.carriers.rig import Rig, rigged, settings
from tests.gateway.transports.fake_peer import LONG, replying
from tests.virtual_time import virtual

TWILIO = settings(twilio={"enabled": True, "auth_token": TOKEN})
STREAM = "/v1/carriers/twilio/stream"


@contextlib.asynccontextmanager
async def called(
    engines: Engines | None = None, *, latency_s: float = 0.03, told: dict[str, str] | None = None
) -> AsyncIterator[tuple[Rig, FakeTwilio]]:
    async with rigged(TWILIO, engines) as rig:
        link = AsgiLink(rig.app, STREAM, signed(STREAM))
        assert await link.answered()
        async with FakeTwilio(link, told=told, latency_s=latency_s).connected() as twilio:
            yield rig, twilio
        await link.task


@virtual
async def test_a_greeting_a_turn_and_a_hang_up_by_the_caller() -> None:
    async with called(told={"from": "+15550001", "to": "+15550002"}) as (rig, twilio):
        await twilio.hush(2_000)
        assert twilio.heard_ms > 400, "the greeting"
        await twilio.speak(800)
        await twilio.until(lambda: rig.turns == 2)
        view = rig.record.view()
        assert [entry["role"] for entry in view["transcript"]] == ["assistant", "user", "assistant"]
        assert (view["transport"], view["agent"]) == ("twilio", "anna")
        assert (view["caller"], view["dialled"], view["wire_id"]) == ("+15550001", "+15550002", CALL)
        assert twilio.ahead_ms <= 320
        assert twilio.marks
    assert rig.causes == ["caller_hung_up"]
    assert not rig.rest.requests, "who hung up is not hung up"


@virtual
async def test_a_barge_in_stops_the_sound_at_twilio_and_the_context_holds_what_its_marks_say() -> None:
    async with called(replying(LONG)) as (rig, twilio):
        await twilio.until(lambda: rig.turns == 1)
        await twilio.hush(500)
        twilio.heard.clear()
        await twilio.speak(800)
        await twilio.until(lambda: twilio.heard_ms >= 2_000)
        clears = len(twilio.cleared_at)
        began = asyncio.get_running_loop().time()
        await twilio.speak(800)
        await twilio.until(lambda: any(entry.cut for entry in rig.record.transcript))
        cleared = twilio.cleared_at[clears]
        last = max(at for at, pcm in twilio.heard if at < began + 1.2)
        assert cleared - began < 0.15 + 0.06, "held within 150 ms of the onset, and one way of the network"
        assert last < cleared + 0.02, "nothing sounds after the clear arrived"
        heard_words = sum(len(pcm) for at, pcm in twilio.heard if at < cleared) / 8_000 / 0.25
        cut = next(entry for entry in rig.record.transcript if entry.cut)
        said = len(cut.text.split())
        assert heard_words - 2 <= said <= heard_words + 0.5
    assert rig.counted("mark_overdue") == 0


@virtual
async def test_keys_reach_the_conversation() -> None:
    engines = Engines()
    async with called(engines) as (rig, twilio):
        await twilio.hush(2_000)
        for digit in "12#":
            twilio.press(digit)
            await twilio.hush(200)
        await twilio.until(lambda: rig.turns == 2)
    assert "1 2" in str(engines.llm.requests[-1].messages) or "12" in str(engines.llm.requests[-1].messages)


@virtual
async def test_hanging_up_is_asked_of_the_rest_api() -> None:
    async with called() as (rig, twilio):
        await twilio.hush(2_000)
        call = rig.gateway.switchboard.find(rig.record.id)
        assert call is not None
        call.hang_up("max_duration")
        closed = await twilio.over()
        assert (closed.code, closed.reason) == (1000, "max_duration")
        request = rig.rest.requests[0]
        assert str(request.url) == f"https://api.twilio.com/2010-04-01/Accounts/{ACCOUNT}/Calls/{CALL}.json"
        assert request.headers["authorization"] == "Basic " + b64encode(f"{ACCOUNT}:{TOKEN}".encode()).decode()
        assert dict(parse_qsl(request.content.decode())) == {"Status": "completed"}
        assert len(rig.rest.requests) == 1


@virtual
async def test_a_hang_up_that_the_api_refuses_still_closes_the_stream() -> None:
    async with called() as (rig, twilio):
        await twilio.hush(1_000)
        rig.rest.statuses = [503, 500, 503]
        call = rig.gateway.switchboard.find(rig.record.id)
        assert call is not None
        call.hang_up("max_duration")
        await twilio.over()
        assert len(rig.rest.requests) == 3
        assert rig.counted("carrier_api_failed") == 1


@virtual
async def test_a_carrier_that_vanishes_and_one_that_falls_silent() -> None:
    async with rigged(TWILIO) as rig:
        for vanish, cause in ((True, "connection_lost"), (False, "media_timeout")):
            link = AsgiLink(rig.app, STREAM, signed(STREAM))
            assert await link.answered()
            async with FakeTwilio(link).connected() as twilio:
                await twilio.hush(1_000)
                if vanish:
                    await link.vanish()
                twilio.stopped = True
                async with asyncio.timeout(60):
                    await link.task
                assert rig.record.cause == cause


@virtual
async def test_a_stream_that_never_starts_is_closed() -> None:
    async with rigged(TWILIO) as rig:
        link = AsgiLink(rig.app, STREAM, signed(STREAM))
        assert await link.answered()
        with pytest.raises(Exception, match="1008 no_start"):
            await link.recv()
        await link.task
        assert rig.counted("carrier_no_start") == 1
        assert rig.causes == []


@virtual
async def test_a_full_gateway_and_one_that_stops_refuse_the_upgrade() -> None:
    async with rigged(TWILIO) as rig:
        rig.gateway.switchboard.hang_up_all("server_stop")
        link = AsgiLink(rig.app, STREAM, signed(STREAM))
        assert not await link.answered()
        assert link.denied == 503
        answer = httpx.Response(503, content=link.denial).json()
        assert answer["error"]["code"] == "draining"
