"""Calls by chan_websocket over the real server, with Asterisk as its source has it at the other end."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.bridge_settings import AsteriskSettings
from gateway.settings import Settings
from gateway.transports.carriers.line import CarrierLine
from tests.gateway.transports.asterisk.fake_chan_websocket import CHANNEL, dialled
from tests.gateway.transports.bridge_rig import (
    LONG,
    answered,
    counted,
    last,
    live,
    said,
    settings,
    talkative,
    times_of,
    tone,
)
from tests.serving import eventually, served

both = pytest.mark.parametrize("as_json", [True, False], ids=["json", "plain"])


def asterisk(**table: object) -> Settings:
    given = {"enabled": True, "password": "0123456789abcdef", **table}
    return settings(asterisk=AsteriskSettings(**given))  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
async def test_a_turn(as_json: bool, rate_hz: int) -> None:
    async with served(settings=asterisk()) as here:
        async with dialled(here.url, as_json=as_json, rate_hz=rate_hz, subprotocols=["media"]) as phone:
            assert phone.socket.subprotocol == "media"
            phone.say(tone(700, rate_hz))
            await eventually(lambda: len(phone.loud()) > 20)
            record = live(here)
            assert (record.transport, record.summary()["wire_id"]) == ("asterisk", CHANNEL)
            await eventually(lambda: said(record, "assistant") == ["You said: hello there."])
            await eventually(lambda: phone.marks_told > 2)
            assert phone.faults == []
        await here.empty()
        assert last(here).cause == "caller_hung_up"


@both
async def test_a_barge_in_drops_what_asterisk_had_and_the_context_holds_what_was_heard(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with times_of(monkeypatch, CarrierLine, "clear") as cleared:
        async with served(talkative().set, asterisk()) as here:
            async with dialled(here.url, as_json=as_json) as phone:
                phone.say(tone(500, 16_000))
                await eventually(lambda: len(phone.loud()) > 60)
                cleared.clear()
                phone.say(tone(1_500, 16_000))
                await eventually(lambda: cleared)
                record = live(here)
                await eventually(lambda: any(entry.cut for entry in record.transcript))
                decided = cleared[0]
                assert len([at for at, _ in phone.loud() if decided < at < decided + 0.5]) <= 7
                assert phone.frames_dropped > 0
                assert phone.marks_dropped > 0
                cut = next(entry for entry in record.transcript if entry.cut)
                assert LONG.startswith(cut.text)
                heard_ms = 20 * len([at for at, _ in phone.loud() if at < decided + 0.5])
                words = len(cut.text.split())
                assert heard_ms / 250 - 2 <= words <= heard_ms / 250 + 1
                assert phone.faults == []
            await here.empty()


async def test_a_full_queue_makes_the_agent_wait_and_loses_nothing() -> None:
    async with served(talkative().set, asterisk()) as here:
        async with dialled(here.url, as_json=True) as phone:
            phone.say(tone(500, 16_000))
            await eventually(lambda: len(phone.loud()) > 20)
            await phone._event("MEDIA_XOFF")
            await asyncio.sleep(0.7)
            stopped = len(phone.loud())
            await asyncio.sleep(0.3)
            assert len(phone.loud()) == stopped
            await phone._event("MEDIA_XON")
            await eventually(lambda: len(phone.loud()) > 195)
            assert phone.faults == []
        await here.empty()


async def test_keys_are_a_turn() -> None:
    async with served(settings=asterisk()) as here:
        async with dialled(here.url, as_json=False) as phone:
            await eventually(lambda: answered(here))
            for digit in "42#":
                await phone.press(digit)
            await eventually(lambda: len(phone.loud()) > 10)
            (keys,) = said(live(here), "user")
            assert "42" in keys.replace(" ", "").replace(",", "")
        await here.empty()


@both
async def test_the_gateway_hangs_up(as_json: bool) -> None:
    async with served(settings=asterisk()) as here:
        async with dialled(here.url, as_json=as_json) as phone:
            await eventually(lambda: answered(here))
            here.gateway.switchboard.hang_up_all("server_stop")
            await eventually(lambda: phone.result is not None)
            assert phone.result == "hangup"
        await here.empty()


async def test_the_address_says_which_agent_answers_and_who_calls() -> None:
    async with served(settings=asterisk()) as here:
        async with dialled(here.url, as_json=False, query="?agent=sales&from=%2B1555&to=100") as phone:
            await eventually(lambda: len(phone.loud()) > 10)
            told = live(here).summary()
            assert (told["agent"], told["caller"], told["dialled"]) == ("sales", "+1555", "100")
        await here.empty()


async def test_an_agent_that_there_is_not_ends_the_stream() -> None:
    async with served(settings=asterisk()) as here:
        async with dialled(here.url, as_json=False, query="?agent=nobody") as phone:
            await eventually(lambda: phone.result is not None)
        await here.empty()


@pytest.mark.parametrize("password", ["wrong", ""])
async def test_a_bad_password_is_refused(password: str) -> None:
    async with served(settings=asterisk()) as here:
        with pytest.raises(InvalidStatus) as refused:
            async with dialled(here.url, as_json=True, password=password):
                pass
        assert refused.value.response.status_code == 403
        here.faults.clear()
        assert counted(here, "carrier_signature_invalid") == 1


async def test_no_password_at_all_is_refused() -> None:
    async with served(settings=asterisk()) as here:
        url = here.url.replace("http", "ws", 1) + "/v1/carriers/asterisk/stream"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, proxy=None)
        assert refused.value.response.status_code == 403
        here.faults.clear()


async def test_where_asterisk_is_not_enabled_there_is_nothing() -> None:
    async with served(settings=settings()) as here:
        with pytest.raises(InvalidStatus) as refused:
            async with dialled(here.url, as_json=True):
                pass
        assert refused.value.response.status_code == 404
        here.faults.clear()


async def test_noise_leaves_the_call_up() -> None:
    async with served(settings=asterisk()) as here:
        async with dialled(here.url, as_json=True) as phone:
            await eventually(lambda: answered(here))
            for noise in ('{"event":', "[]", "MEDIA_MARK_PROCESSED x", "\x00", "{}" * 100, b"", b"\x01"):
                await phone.socket.send(noise)
            phone.say(tone(700, 16_000))
            await eventually(lambda: len(phone.loud()) > 20)
            assert counted(here, "carrier_bad_json") > 0
        await here.empty()


async def test_a_codec_that_cannot_be_used_ends_the_stream() -> None:
    async with served(settings=asterisk()) as here:
        async with dialled(here.url, as_json=True) as phone:
            await phone.socket.close()
        url = here.url.replace("http", "ws", 1) + "/v1/carriers/asterisk/stream"
        headers = {"Authorization": "Basic YXN0ZXJpc2s6MDEyMzQ1Njc4OWFiY2RlZg=="}
        async with connect(url, additional_headers=headers, proxy=None) as socket:
            await socket.send("MEDIA_START connection_id:a channel:b format:opus optimal_frame_size:0")
            with pytest.raises(ConnectionClosed):
                await socket.recv()
        await here.empty()
        assert counted(here, "carrier_asterisk_format_unsupported") == 1


async def test_the_dialplan_learns_where_a_caller_goes_once() -> None:
    async with served(settings=asterisk(transfers=True)) as here, httpx.AsyncClient(base_url=here.url) as client:
        here.app.state.carriers.find("asterisk").next_steps.hand_over(CHANNEL, "+15551234")
        here.gateway.asterisk.next_steps.hand_over("a-uuid", "100")
        assert (await client.get("/v1/asterisk/next", params={"call": CHANNEL})).text == "+15551234"
        assert (await client.get("/v1/asterisk/next", params={"call": CHANNEL})).text == ""
        assert (await client.get("/v1/asterisk/next", params={"call": "a-uuid"})).text == "100"
        assert (await client.get("/v1/asterisk/next")).text == ""
