"""The same calls over every carrier, from the webhook to the end, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.call_rig import Engines
from tests.gateway.transports.carriers.vendors import VENDORS, Vendor
from tests.gateway.transports.fake_peer import LONG, replying
from tests.virtual_time import virtual

EVERY = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)


@EVERY
@virtual
async def test_a_greeting_a_turn_and_a_hang_up_by_the_caller(vendor: Vendor) -> None:
    async with vendor.called() as (rig, fake):
        await fake.hush(2_000)
        assert fake.heard_ms > 400, "the greeting"
        await fake.speak(800)
        await fake.until(lambda: rig.turns == 2)
        view = rig.record.view()
        assert [entry["role"] for entry in view["transcript"]] == ["assistant", "user", "assistant"]
        assert (view["transport"], view["agent"]) == (vendor.name, "anna")
        assert (view["caller"], view["dialled"], view["wire_id"]) == ("+15550001", "+15550002", vendor.wire_id)
        assert fake.ahead_ms <= 320
    assert rig.causes == ["caller_hung_up"]
    assert not rig.rest.requests, "who hung up is not hung up"
    assert rig.counted("caller_audio_gap") == 0


@EVERY
@virtual
async def test_a_barge_in_stops_the_sound_there_and_the_context_holds_what_the_marks_say(vendor: Vendor) -> None:
    async with vendor.called(replying(LONG)) as (rig, fake):
        await fake.until(lambda: rig.turns == 1)
        await fake.hush(500)
        fake.heard.clear()
        await fake.speak(800)
        await fake.until(lambda: fake.heard_ms >= 2_000)
        clears = len(fake.cleared_at)
        began = asyncio.get_running_loop().time()
        await fake.speak(800)
        await fake.until(lambda: any(entry.cut for entry in rig.record.transcript))
        cleared = fake.cleared_at[clears]
        last = max(at for at, pcm in fake.heard if at < began + 1.2)
        assert cleared - began < 0.15 + 0.06, "held within 150 ms of the onset, and both ways of the network"
        assert last < cleared + 0.02, "nothing sounds after the clear arrived"
        heard_words = sum(len(pcm) for at, pcm in fake.heard if at < cleared) / 8_000 / 0.25
        said = len(next(entry for entry in rig.record.transcript if entry.cut).text.split())
        assert heard_words - 2 <= said <= heard_words + 0.5


@EVERY
@virtual
async def test_keys_reach_the_conversation(vendor: Vendor) -> None:
    engines = Engines()
    async with vendor.called(engines) as (rig, fake):
        await fake.hush(2_000)
        for digit in "12#":
            fake.press(digit)
            await fake.hush(200)
        await fake.until(lambda: rig.turns == 2)
    asked = str(engines.llm.requests[-1].messages)
    assert "1 2" in asked or "12" in asked


@EVERY
@virtual
async def test_who_answers_is_named_by_the_webhooks_address(vendor: Vendor) -> None:
    async with vendor.called(query="?agent=default") as (rig, fake):
        await fake.hush(500)
        assert rig.record.agent == "default"


@EVERY
@virtual
async def test_an_agent_that_there_is_not_is_refused(vendor: Vendor) -> None:
    async with vendor.called() as (rig, fake):
        answer = await vendor.webhook(rig, "?agent=nobody")
        assert answer.status_code == 200
        assert "stream" not in answer.text.lower()
        assert rig.counted("carrier_unknown_agent") == 1
        await fake.hush(100)


@EVERY
@virtual
async def test_a_call_that_we_hang_up_ends_there(vendor: Vendor) -> None:
    async with vendor.called() as (rig, fake):
        await fake.hush(2_000)
        call = rig.gateway.switchboard.find(rig.record.id)
        assert call is not None
        call.hang_up("max_duration")
        closed = await fake.over()
        assert (closed.code, closed.reason) == (1000, "max_duration")
        assert len(rig.rest.requests) == 1


@EVERY
@virtual
async def test_a_ticket_opens_one_stream(vendor: Vendor) -> None:
    async with vendor.called() as (rig, fake):
        path = await vendor.stream_path(rig)
        for expected in (True, False):
            link = vendor.link(rig, path)
            assert await link.answered() is expected
            if expected:
                await link.close()
                await link.task
            else:
                assert link.denied == 403
                assert b"ticket_invalid" in link.denial
        await fake.hush(100)
