"""Calls by AudioSocket over the real server, with Asterisk as its source has it at the other end."""

from __future__ import annotations

import asyncio
import uuid

import httpx
import pytest
import uvloop

from gateway.bridge_settings import AudioSocketSettings
from gateway.settings import Settings
from gateway.transports.asterisk import audiosocket_wire
from gateway.transports.asterisk.audiosocket_line import AudioSocketLine
from tests.gateway.transports.asterisk.fake_audiosocket import dial
from tests.gateway.transports.bridge_rig import (
    LONG,
    counted,
    free_port,
    last,
    live,
    said,
    settings,
    talkative,
    times_of,
    tone,
)
from tests.serving import eventually, served

ID = uuid.UUID("40325ec2-5efd-4bd3-805f-53576e581d13")


def audiosocket(**table: object) -> Settings:
    given = {"enabled": True, "port": free_port(), "calls": "any", **table}
    return settings(audiosocket=AudioSocketSettings(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
async def test_a_turn(rate_hz: int) -> None:
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        phone = await dial(here_settings.audiosocket.port, ID, rate_hz=rate_hz)
        phone.say(tone(700, rate_hz))
        await eventually(lambda: len(phone.loud()) > 20)
        record = live(here)
        assert (record.transport, record.summary()["wire_id"], record.agent) == ("audiosocket", str(ID), "default")
        await eventually(lambda: said(record, "assistant") == ["You said: hello there."])
        assert said(record, "user") == ["hello there"]
        await eventually(lambda: not phone.loud() or phone.heard[-1][0] - phone.loud()[-1][0] > 0.3)
        assert {len(pcm) for _, pcm in phone.heard} == {rate_hz // 50}
        await phone.hang_up()
        await here.empty()
        assert last(here).cause == "caller_hung_up"
        assert last(here).quality["frames_in"] > 30


def test_a_turn_on_the_loop_that_the_server_runs_on() -> None:
    """uvloop's transports are none by their class."""

    async def call() -> None:
        here_settings = audiosocket()
        async with served(settings=here_settings) as here:
            phone = await dial(here_settings.audiosocket.port, ID)
            phone.say(tone(700))
            await eventually(lambda: len(phone.loud()) > 20)
            here.gateway.switchboard.hang_up_all("server_stop")
            await eventually(lambda: phone.result == "hangup")
            await phone.end()
            stranger = await dial(here_settings.audiosocket.port, None)
            stranger.writer.write(b"GET / HTTP/1.1\r\n\r\n" * 10_000)
            await eventually(lambda: counted(here, "audiosocket_no_uuid") == 1)
            await stranger.end()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(call())


async def test_a_dialplan_that_does_not_close_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.asterisk.audiosocket.CLOSE_S", 0.1)
    here_settings = audiosocket(calls="known")
    async with served(settings=here_settings):
        phone = await dial(here_settings.audiosocket.port, None)
        phone.writer.write(b"\x01\x00\x10" + ID.bytes)
        assert await phone.reader.readexactly(3) == b"\x00\x00\x00"
        assert await phone.reader.read() == b"", "it is half closed, and waits"

        def cut() -> bool:
            phone.writer.write(bytes(1_000))
            return phone.writer.transport.is_closing()

        await eventually(cut)
        await phone.end()


async def test_what_a_flooding_peer_goes_on_to_say_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    real = audiosocket_wire._message

    def message(kind: int, payload: bytes) -> audiosocket_wire.Message:
        nonlocal read
        read += 1
        return real(kind, payload)

    monkeypatch.setattr(audiosocket_wire, "_message", message)
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        phone = await dial(here_settings.audiosocket.port, ID)
        await eventually(lambda: phone.heard)
        phone.writer.write(b"\x77\x00\x00" * 200_000)
        await here.empty()
        await phone.end()
        assert last(here).cause == "peer_flooding"
    assert read < 6_000


async def test_the_channel_is_never_starved_while_the_agent_has_nothing_to_say() -> None:
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        phone = await dial(here_settings.audiosocket.port, ID)
        await eventually(lambda: len(phone.heard) > 110)  # beyond the 2 s in which Asterisk gives up on a silent one
        assert phone.result is None
        assert phone.loud() == []
        await phone.hang_up()
        await here.empty()


async def test_a_barge_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the decision and silence at the phone lie at most 150 ms of speech; the rest was never said."""
    here_settings = audiosocket()
    with times_of(monkeypatch, AudioSocketLine, "clear") as cleared:
        async with served(talkative().set, here_settings) as here:
            phone = await dial(here_settings.audiosocket.port, ID)
            phone.say(tone(500))
            await eventually(lambda: len(phone.loud()) > 40)
            cleared.clear()
            phone.say(tone(1_500))
            await eventually(lambda: cleared)
            record = live(here)
            await eventually(lambda: any(entry.cut for entry in record.transcript))
            decided = cleared[0]
            reply = [at for at, _ in phone.loud() if decided < at < decided + 0.5]
            assert len(reply) <= 7
            cut = next(entry for entry in record.transcript if entry.cut)
            assert LONG.startswith(cut.text)
            assert 0 < len(cut.text) < len(LONG) / 2
            await phone.hang_up()
            await here.empty()


async def test_keys_are_a_turn() -> None:
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        phone = await dial(here_settings.audiosocket.port, ID)
        await eventually(lambda: phone.heard)
        for digit in "42#":
            phone.press(digit)
        await eventually(lambda: len(phone.loud()) > 10)
        (keys,) = said(live(here), "user")
        assert keys.replace(" ", "").replace(",", "").find("42") >= 0
        await phone.hang_up()
        await here.empty()


async def test_the_gateway_hangs_up_and_the_dialplan_goes_on() -> None:
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        phone = await dial(here_settings.audiosocket.port, ID)
        await eventually(lambda: phone.heard)
        here.gateway.switchboard.hang_up_all("server_stop")
        await eventually(lambda: phone.result is not None)
        assert phone.result == "hangup"
        await phone.end()
        await here.empty()
        assert last(here).cause == "server_stop"


async def test_a_caller_who_is_gone_before_the_call_is_set_up_leaves_nothing() -> None:
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        for _ in range(3):
            phone = await dial(here_settings.audiosocket.port, ID)
            await phone.hang_up()
        await here.empty()


# --- credentials: the UUID -------------------------------------------------------------------------------------------


async def announce(here_url: str, **fields: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.post(f"{here_url}/v1/asterisk/calls", data=fields)


async def test_an_announced_call_knows_its_agent_and_numbers_and_comes_once() -> None:
    here_settings = audiosocket(calls="known")
    async with served(settings=here_settings) as here:
        answer = await announce(here.url, agent="sales", dialled="+15551234", caller="+15559876")
        assert answer.status_code == 201
        call = uuid.UUID(answer.text)
        phone = await dial(here_settings.audiosocket.port, call)
        await eventually(lambda: len(phone.loud()) > 10)
        record = live(here)
        assert record.agent == "sales"
        await eventually(lambda: said(record, "assistant") == ["Sales here."])
        again = await dial(here_settings.audiosocket.port, call)
        await eventually(lambda: again.result == "hangup")
        assert again.heard == []
        assert counted(here, "audiosocket_call_replayed") == 1
        await again.end()
        await phone.hang_up()
        await here.empty()


async def test_a_uuid_that_nobody_knows_goes_back_to_its_dialplan() -> None:
    here_settings = audiosocket(calls="known")
    async with served(settings=here_settings) as here:
        phone = await dial(here_settings.audiosocket.port, ID)
        await eventually(lambda: phone.result == "hangup")
        assert phone.heard == []
        assert counted(here, "audiosocket_call_unknown") == 1
        await phone.end()


async def test_an_announcement_that_is_too_old_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.asterisk.expected.ANNOUNCED_S", 0.0)
    here_settings = audiosocket(calls="known")
    async with served(settings=here_settings) as here:
        call = uuid.UUID((await announce(here.url)).text)
        phone = await dial(here_settings.audiosocket.port, call)
        await eventually(lambda: phone.result == "hangup")
        assert counted(here, "audiosocket_call_expired") == 1
        await phone.end()


async def test_a_uuid_of_the_settings_is_its_agents() -> None:
    here_settings = audiosocket(calls="known", uuids={str(ID): "sales"})
    async with served(settings=here_settings) as here:
        phone = await dial(here_settings.audiosocket.port, ID)
        await eventually(lambda: len(phone.loud()) > 10)
        assert live(here).agent == "sales"
        await phone.hang_up()
        await here.empty()


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"uuid": "nonsense"}, 400, "invalid_uuid"),
        ({"agent": "nobody"}, 404, "agent_not_found"),
        ({"colour": "red"}, 400, "invalid_announcement"),
        ({"caller": "x" * 200}, 400, "invalid_announcement"),
        ({"caller": "a\nb"}, 400, "invalid_announcement"),
        ({"caller": "x" * 5_000}, 413, "body_too_large"),
    ],
)
async def test_an_announcement_that_means_nothing_is_refused(fields: dict[str, str], status: int, code: str) -> None:
    async with served(settings=audiosocket()) as here:
        answer = await announce(here.url, **fields)
        assert answer.status_code == status
        assert answer.json()["error"]["code"] in {code, "unknown_agent"}


async def test_the_same_uuid_is_announced_once_and_json_will_do() -> None:
    async with served(settings=audiosocket()) as here, httpx.AsyncClient(base_url=here.url) as client:
        first = await client.post("/v1/asterisk/calls", json={"uuid": str(ID)})
        assert (first.status_code, first.text) == (201, str(ID))
        assert (await client.post("/v1/asterisk/calls", json={"uuid": str(ID)})).status_code == 409
        assert (await client.post("/v1/asterisk/calls", json=[1])).status_code == 400


# --- strangers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x10\x01\x40" + bytes(320), b"\x01\x00\x02ab", b"\xff\xff\xff" + bytes(70_000)],
)
async def test_what_does_not_begin_with_a_uuid_is_cut(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.asterisk.audiosocket.UUID_S", 0.2)
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        phone = await dial(here_settings.audiosocket.port, None)
        phone.writer.write(first)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await phone.reader.readexactly(1)
        assert counted(here, "audiosocket_no_uuid") == 1
        await phone.end()


async def test_a_connection_that_says_nothing_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.asterisk.audiosocket.UUID_S", 0.1)
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        phone = await dial(here_settings.audiosocket.port, None)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await phone.reader.readexactly(1)
        assert counted(here, "audiosocket_no_uuid") == 1
        await phone.end()


async def test_an_address_that_is_not_allowed_is_cut_at_once() -> None:
    here_settings = audiosocket(calls="known", allowed=("10.0.0.0/8",))
    async with served(settings=here_settings) as here:
        phone = await dial(here_settings.audiosocket.port, None)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await phone.reader.readexactly(1)
        assert counted(here, "audiosocket_address_refused") == 1
        await phone.end()


async def test_more_strangers_than_may_wait_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.asterisk.audiosocket.MAX_STRANGERS", 2)
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        waiting = [await dial(here_settings.audiosocket.port, None) for _ in range(3)]
        await eventually(lambda: counted(here, "audiosocket_too_many_strangers") == 1)
        for phone in waiting:
            await phone.end()


async def test_noise_after_the_uuid_ends_no_other_call() -> None:
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        good = await dial(here_settings.audiosocket.port, ID)
        bad = await dial(here_settings.audiosocket.port, uuid.uuid4())
        await eventually(lambda: bad.heard)
        bad.writer.write(bytes(range(16, 256)) * 8 + b"\x77\x00\x00" * 3_000)
        await eventually(lambda: bad.result is not None)
        frames = len(good.heard)
        await eventually(lambda: len(good.heard) > frames + 10)
        assert good.result is None
        await bad.end()
        await good.hang_up()
        await here.empty()


async def test_over_capacity_the_call_goes_back_to_its_dialplan() -> None:
    here_settings = audiosocket()
    async with served(settings=here_settings) as here:
        phones = [await dial(here_settings.audiosocket.port, uuid.uuid4()) for _ in range(4)]
        await eventually(lambda: here.gateway.switchboard.live == 4)
        one_more = await dial(here_settings.audiosocket.port, uuid.uuid4())
        await eventually(lambda: one_more.result == "hangup")
        for phone in [*phones, one_more]:
            await phone.hang_up()
        await here.empty()


async def test_without_asterisk_there_is_nothing_to_announce() -> None:
    async with served(settings=settings()) as here:
        assert (await announce(here.url)).status_code == 404
