"""What the agent does by itself on Asterisk's lines: it hangs up, and it sends callers on, by the dialplan."""

from __future__ import annotations

import uuid

import httpx
import pytest

from gateway.bridge_settings import AsteriskSettings, AudioSocketSettings
from gateway.settings import AgentSettings, Settings
from gateway.transports.asterisk.chan_websocket import ChanWebSocket
from gateway.transports.asterisk.expected import NextSteps
from gateway.transports.phone.line import Ability
from tests.gateway.transports.asterisk.fake_audiosocket import dial
from tests.gateway.transports.asterisk.fake_chan_websocket import CHANNEL, dialled
from tests.gateway.transports.bridge_rig import answered, free_port, last
from tests.serving import Served, eventually, served

ID = uuid.UUID("40325ec2-5efd-4bd3-805f-53576e581d13")


def acting(*, transfers: bool) -> Settings:
    agent = AgentSettings(
        instructions="Be brief.", tools=("end_call", "transfer"), transfer_targets={"sales": "100"}, silence_ms=200
    )
    return Settings(
        preset="null",
        max_calls=4,
        agents={"default": agent},
        audiosocket=AudioSocketSettings(enabled=True, port=free_port(), calls="any", transfers=transfers),
        asterisk=AsteriskSettings(enabled=True, password="0123456789abcdef", transfers=transfers),  # type: ignore[arg-type]
    )


async def next_step(here: Served, call: str) -> str:
    async with httpx.AsyncClient(base_url=here.url) as client:
        return (await client.get("/v1/asterisk/next", params={"call": call})).text


async def by_audiosocket(here: Served, keys: str) -> int:
    """Press keys until the agent has ended the application; how many frames of speech came before."""
    phone = await dial(here.gateway.settings.audiosocket.port, ID)
    await eventually(lambda: phone.heard)
    for key in keys:
        phone.press(key)
    await eventually(lambda: phone.result is not None)
    assert phone.result == "hangup"
    await phone.end()
    return len(phone.loud())


async def by_websocket(here: Served, keys: str) -> int:
    async with dialled(here.url, as_json=True) as phone:
        await eventually(lambda: answered(here))
        for key in keys:
            await phone.press(key)
        await eventually(lambda: phone.result is not None)
        assert phone.result == "hangup"
        assert phone.faults == []
        return len(phone.loud())


LINES = pytest.mark.parametrize(
    ("press", "call"), [(by_audiosocket, str(ID)), (by_websocket, CHANNEL)], ids=["audiosocket", "websocket"]
)


@LINES
async def test_a_caller_is_sent_on_after_the_last_words(press: object, call: str) -> None:
    assert callable(press)
    async with served(settings=acting(transfers=True)) as here:
        assert await press(here, "*1#") > 10
        await here.empty()
        assert last(here).cause == "transferred"
        assert await next_step(here, call) == "100"
        assert await next_step(here, call) == ""


@LINES
async def test_the_agent_hangs_up_after_its_goodbye(press: object, call: str) -> None:
    assert callable(press)
    async with served(settings=acting(transfers=False)) as here:
        assert await press(here, "*0#") > 10
        await here.empty()
        assert last(here).cause == "agent_hung_up"
        assert await next_step(here, call) == ""


async def test_of_two_calls_with_one_uuid_neither_is_sent_where_the_other_shall_go() -> None:
    async with served(settings=acting(transfers=True)) as here:
        port = here.gateway.settings.audiosocket.port
        one, other = await dial(port, ID), await dial(port, ID)
        await eventually(lambda: one.heard and other.heard)
        for key in "*1#":
            one.press(key)
        (_, record) = here.gateway.switchboard.calls()
        await eventually(lambda: any("failed" in entry.text for entry in record.transcript))
        assert await next_step(here, str(ID)) == ""
        assert one.result is None, "it goes on"
        await other.hang_up()
        await eventually(lambda: here.gateway.switchboard.live == 1)
        for key in "*1#":
            one.press(key)
        await eventually(lambda: one.result is not None)
        await one.end()
        assert await next_step(here, str(ID)) == "100", "alone it is"


async def test_what_no_dialplan_asked_for_is_not_told_to_a_later_call_of_the_uuid() -> None:
    async with served(settings=acting(transfers=True)) as here:
        assert await by_audiosocket(here, "*1#") > 10
        await here.empty()
        later = await dial(here.gateway.settings.audiosocket.port, ID)
        await eventually(lambda: later.heard)
        await later.hang_up()
        await here.empty()
        assert await next_step(here, str(ID)) == ""


def test_a_channel_without_a_name_is_not_sent_on() -> None:
    steps = NextSteps(lambda: 0.0)
    nameless = ChanWebSocket(steps)
    nameless.decode("MEDIA_START connection_id:a format:ulaw optimal_frame_size:160")
    assert not nameless.abilities
    named = ChanWebSocket(steps)
    named.decode("MEDIA_START connection_id:a channel:WebSocket/x format:ulaw optimal_frame_size:160")
    assert named.abilities == {Ability.TRANSFER}
