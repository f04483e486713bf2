"""What the agent does by itself on Asterisk's lines: it hangs up, and it sends callers on, by the dialplan."""

from __future__ import annotations

import uuid

import httpx
import pytest

from gateway.bridge_settings import AsteriskSettings, AudioSocketSettings
from gateway.settings import AgentSettings, Settings
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
