"""FreeSWITCH's mod_audio_stream: its dialect by messages, and calls in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.bridge_settings import FreeswitchSettings
from gateway.transports.carriers.dialect import (
    Asked,
    Audio,
    BadWebhook,
    Encoding,
    Ignored,
    Key,
    Started,
    Stopped,
    Unauthentic,
)
from gateway.transports.carriers.freeswitch import Freeswitch, FreeswitchDialect
from gateway.transports.phone.line import Ability, Incoming, PlayoutOwner
from tests.gateway.call_rig import Engines
from tests.gateway.transports.carriers.fake_freeswitch import CALL, TOKEN, FakeFreeswitch
from tests.gateway.transports.carriers.links import AsgiLink
from tests.gateway.transports.carriers.rig import Rig, rigged, settings
from tests.gateway.transports.fake_peer import LONG, replying
from tests.virtual_time import virtual

STREAM = "/v1/carriers/freeswitch/stream"
METADATA = {"agent": "anna", "from": "+1", "to": "+2", "uuid": CALL}
TABLE = {"enabled": True, "stream_token": TOKEN}


@contextlib.asynccontextmanager
async def called(
    engines: Engines | None = None, metadata: dict[str, str] | None = METADATA, **table: Any
) -> AsyncIterator[tuple[Rig, FakeFreeswitch]]:
    async with rigged(settings(freeswitch={**TABLE, **table}), engines) as rig:
        link = AsgiLink(rig.app, STREAM, {"authorization": f"Bearer {TOKEN}"})
        assert await link.answered()
        rate_hz = table.get("rate_hz", 16_000)
        async with FakeFreeswitch(link, metadata=metadata, rate_hz=rate_hz).connected() as fake:
            yield rig, fake
        await link.task


@virtual
async def test_a_call_for_an_agent_that_there_is_not_is_hung_up_and_nobodys_number_is_logged() -> None:
    with structlog.testing.capture_logs() as logs:
        async with called(metadata={**METADATA, "agent": "+15550001"}) as (_, fake):
            closed = await fake.over()
    assert (closed.code, closed.reason) == (1008, "refused")
    assert fake.events == ["hangup"], "FreeSWITCH keeps a call whose stream is closed"
    assert "15550001" not in str(logs)
    (refusal,) = [entry for entry in logs if entry["event"] == "a carrier's call was refused"]
    assert refusal["reason"] == "unknown_agent"


# --- the wire ---------------------------------------------------------------------------------------------------------


def test_the_metadata_says_whose_call_it_is_and_we_own_the_clock() -> None:
    (event,) = FreeswitchDialect(16_000).decode(json.dumps(METADATA))
    incoming = Incoming("freeswitch", "anna", "+2", "+1", CALL)
    assert event == Started(incoming, Encoding.PCM16_LE, 16_000, owner=PlayoutOwner.OURS)
    events = FreeswitchDialect(8_000).decode(b"\x01\x00")
    assert events[0] == Started(Incoming("freeswitch"), Encoding.PCM16_LE, 8_000, owner=PlayoutOwner.OURS)
    assert events[1] == Audio(b"\x01\x00")
    events = FreeswitchDialect(8_000).decode("not json")
    assert isinstance(events[0], Started)
    assert events[1] == Ignored("bad_json")


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (b"\x01\x00", Audio(b"\x01\x00")),
        (b"", Ignored("bad_audio")),
        ('{"event":"dtmf","digit":"5"}', Key("5")),
        ('{"event":"dtmf","digit":"55"}', Ignored("bad_digit")),
        ('{"event":"hangup"}', Stopped()),
        ('{"event":"other"}', Ignored("unknown_event")),
        ("[]", Ignored("bad_json")),
    ],
)
def test_what_messages_say(message: str | bytes, event: object) -> None:
    dialect = FreeswitchDialect(16_000)
    dialect.decode("{}")
    assert dialect.decode(message) == (event,)


def test_the_rate_goes_before_the_audio_and_again_after_a_clear() -> None:
    dialect = FreeswitchDialect(16_000)
    pcm = np.array([1, 2], np.int16)
    rate, audio = dialect.encode_audio(pcm)
    assert json.loads(rate) == {"type": "rawAudio", "data": {"sampleRate": 16_000}}
    assert audio == b"\x01\x00\x02\x00"
    assert dialect.encode_audio(pcm) == [audio]
    assert dialect.encode_clear() == []
    assert dialect.encode_audio(pcm) == [rate, audio]
    assert dialect.encode_mark("m") == []


def test_hang_up_and_transfer_are_events_for_a_script() -> None:
    assert FreeswitchDialect(8_000).abilities == frozenset()
    dialect = FreeswitchDialect(8_000, transfers=True)
    assert dialect.abilities == {Ability.TRANSFER}
    assert dialect.hang_up().messages == ('{"type":"hangup"}',)
    assert dialect.transfer("1000").messages == ('{"type":"transfer","data":{"target":"1000"}}',)


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_hostile_messages_break_nothing(message: str | bytes) -> None:
    dialect = FreeswitchDialect(8_000)
    for _ in range(2):
        assert isinstance(dialect.decode(message), tuple)


# --- who connects ---


def question(authorization: str = "", **query: str) -> Asked:
    return Asked("wss://x/", {"authorization": authorization} if authorization else {}, query)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (question(), "signature_missing"),
        (question("Bearer wrong"), "signature_invalid"),
        (question("Basic abc"), "signature_missing"),
        (question(token="wrong"), "signature_invalid"),
        (question("Bearer " + "x" * 5_000), "signature_invalid"),
    ],
)
def test_only_the_token_opens_a_stream(asked: Asked, code: str) -> None:
    carrier = Freeswitch(FreeswitchSettings.model_validate(TABLE))
    carrier.check_upgrade(question(f"Bearer {TOKEN}"))
    carrier.check_upgrade(question(token=TOKEN))
    with pytest.raises(Unauthentic) as refused:
        carrier.check_upgrade(asked)
    assert refused.value.code == code
    with pytest.raises(Unauthentic):
        carrier.check_webhook(asked)
    with pytest.raises(BadWebhook):
        carrier.read_webhook(asked)


# --- calls ---


@pytest.mark.parametrize("metadata", [METADATA, None])
@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
def test_a_greeting_a_turn_and_a_hang_up(metadata: dict[str, str] | None, rate_hz: int) -> None:
    @virtual
    async def call() -> None:
        async with called(metadata=metadata, rate_hz=rate_hz) as (rig, fake):
            await fake.hush(2_000)
            assert fake.heard_ms > 400
            await fake.speak(800)
            await fake.until(lambda: rig.turns == 2)
            view = rig.record.view()
            assert [entry["role"] for entry in view["transcript"]] == ["assistant", "user", "assistant"]
            assert view["wire_id"] == ("" if metadata is None else CALL)
            assert fake.ahead_ms <= 60, "nothing here can be taken back"
        assert rig.causes == ["caller_hung_up"]

    call()


@virtual
async def test_a_barge_in_stops_the_sound_within_what_was_sent_ahead() -> None:
    async with called(replying(LONG)) as (rig, fake):
        await fake.hush(2_000)
        fake.heard.clear()
        await fake.speak(800)
        await fake.until(lambda: fake.heard_ms >= 2_000)
        began = asyncio.get_running_loop().time()
        await fake.speak(800)
        await fake.until(lambda: any(entry.cut for entry in rig.record.transcript))
        last = max(at for at, pcm in fake.heard if at < began + 1.2)
        assert last - began < 0.15 + 0.06
        cut = next(entry for entry in rig.record.transcript if entry.cut)
        heard_words = sum(len(pcm) for at, pcm in fake.heard if at < began + 0.3) / 16_000 / 0.25
        assert heard_words - 2 <= len(cut.text.split()) <= heard_words + 0.5


@virtual
async def test_keys_that_the_dialplan_sends() -> None:
    engines = Engines()
    async with called(engines) as (rig, fake):
        await fake.hush(2_000)
        for digit in "12#":
            fake.press(digit)
            await fake.hush(200)
        await fake.until(lambda: rig.turns == 2)
    asked = str(engines.llm.requests[-1].messages)
    assert "1 2" in asked or "12" in asked


@virtual
async def test_a_call_that_we_end_tells_the_script_and_closes() -> None:
    async with called() as (rig, fake):
        await fake.hush(2_000)
        call = rig.gateway.switchboard.find(rig.record.id)
        assert call is not None
        call.hang_up("max_duration")
        closed = await fake.over()
        assert (closed.code, closed.reason, fake.events) == (1000, "max_duration", ["hangup"])


@virtual
async def test_a_stream_without_the_token_is_refused() -> None:
    async with rigged(settings(freeswitch=TABLE)) as rig:
        link = AsgiLink(rig.app, STREAM)
        assert not await link.answered()
        assert link.denied == 403
        assert rig.counted("carrier_signature_missing") == 1
