"""What is Twilio's own: its REST API, its bytes, its streams without a ticket, in virtual time."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from urllib.parse import parse_qsl

import httpx
import numpy as np
import pytest

from gateway.transports.carriers.dialect import Audio, Ignored, Key, MarkPlayed, Started, Stopped
from gateway.transports.carriers.twilio import TwilioDialect
from gateway.transports.phone.line import Ability, LineError
from streaming.audio.g711 import decode_mulaw, encode_mulaw
from streaming.audio.keypad_tones import keypad_tones
from tests.gateway.transports.carriers.fake_twilio import ACCOUNT, CALL, STREAM, TOKEN, FakeTwilio, signed
from tests.gateway.transports.carriers.links import AsgiLink
from tests.gateway.transports.carriers.rig import rigged, settings
from tests.gateway.transports.carriers.vendors import TWILIO
from tests.gateway.transports.fake_peer import LONG, replying
from tests.virtual_time import virtual

PATH = "/v1/carriers/twilio/stream"
CALLS = f"https://api.twilio.com/2010-04-01/Accounts/{ACCOUNT}/Calls/{CALL}.json"


@virtual
async def test_a_stream_of_ones_own_twiml_is_told_by_its_parameters() -> None:
    async with rigged(TWILIO.settings) as rig:
        link = AsgiLink(rig.app, PATH, signed(PATH))
        assert await link.answered()
        told = {"agent": "default", "from": "+15550001", "to": "+15550002"}
        async with FakeTwilio(link, told=told).connected() as twilio:
            await twilio.hush(200)
            view = rig.record.view()
            assert (view["agent"], view["caller"], view["dialled"]) == ("default", "+15550001", "+15550002")
        await link.task


@virtual
async def test_an_unknown_agent_in_the_parameters_hangs_up() -> None:
    async with rigged(TWILIO.settings) as rig:
        link = AsgiLink(rig.app, PATH, signed(PATH))
        assert await link.answered()
        async with FakeTwilio(link, told={"agent": "nobody"}).connected() as twilio:
            closed = await twilio.over()
        await link.task
        assert closed.code == 1008
        assert str(rig.rest.requests[0].url) == CALLS


@virtual
async def test_hanging_up_is_asked_of_the_rest_api_with_the_accounts_token() -> None:
    async with TWILIO.called() as (rig, twilio):
        await twilio.hush(500)
        rig.gateway.switchboard.find(rig.record.id).hang_up("max_duration")  # type: ignore[union-attr]
        await twilio.over()
        request = rig.rest.requests[0]
        assert (request.method, str(request.url)) == ("POST", CALLS)
        assert request.headers["authorization"] == "Basic " + b64encode(f"{ACCOUNT}:{TOKEN}".encode()).decode()
        assert dict(parse_qsl(request.content.decode())) == {"Status": "completed"}


@virtual
async def test_a_hang_up_that_the_api_refuses_still_closes_the_stream() -> None:
    async with TWILIO.called() as (rig, twilio):
        await twilio.hush(500)
        rig.rest.statuses = [503, 500, 503]
        rig.gateway.switchboard.find(rig.record.id).hang_up("max_duration")  # type: ignore[union-attr]
        await twilio.over()
        assert len(rig.rest.requests) == 3
        assert rig.counted("carrier_api_failed") == 1


@virtual
async def test_a_transfer_puts_new_twiml_in_place_and_is_no_hang_up_of_the_callers() -> None:
    """Twilio stops the stream because of it, before its API has answered."""
    async with TWILIO.called() as (rig, twilio):
        await twilio.hush(500)

        async def stops(request: httpx.Request) -> None:
            twilio.stop()
            await asyncio.sleep(0.5)

        rig.rest.then = stops
        call = rig.gateway.switchboard.find(rig.record.id)
        assert call is not None
        line = call._leg._line  # type: ignore[attr-defined]
        await line.transfer("+15557777")
        assert rig.record.cause is None, "the session says what it was"
        call.hang_up("transferred")
        await twilio.over()
        assert [dict(parse_qsl(one.content.decode())) for one in rig.rest.requests] == [
            {"Twiml": "<Response><Dial>+15557777</Dial></Response>"}
        ], "and who was handed over is not hung up"


@virtual
async def test_a_transfer_that_fails_leaves_the_call_up_and_is_not_tried_again() -> None:
    async with TWILIO.called() as (rig, twilio):
        await twilio.hush(500)
        rig.rest.statuses = [500]
        line = rig.gateway.switchboard.find(rig.record.id)._leg._line  # type: ignore[union-attr]
        with pytest.raises(LineError) as failed:
            await line.transfer("sip:help@example.com")
        assert failed.value.code == "transfer_failed"
        assert len(rig.rest.requests) == 1
        with pytest.raises(LineError):
            await line.hold(True)
        await twilio.speak(400)
        assert rig.record.cause is None
    assert rig.causes == ["caller_hung_up"]


@virtual
async def test_a_carrier_that_vanishes_and_one_that_falls_silent() -> None:
    async with rigged(TWILIO.settings) as rig:
        for vanish, cause in ((True, "connection_lost"), (False, "media_timeout")):
            link = AsgiLink(rig.app, PATH, signed(PATH))
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
async def test_a_carrier_that_does_not_read_is_hung_up() -> None:
    async with TWILIO.called() as (rig, twilio):
        await twilio.hush(1_000)
        link = twilio._link
        assert isinstance(link, AsgiLink)
        link.reading.clear()
        await twilio.speak(800)
        async with asyncio.timeout(60):
            while rig.record.cause is None:
                await twilio.hush(200)
        link.reading.set()
        twilio.stopped = True
    assert rig.causes == ["peer_not_reading"]


@virtual
async def test_a_stream_that_never_starts_is_closed() -> None:
    async with rigged(TWILIO.settings) as rig:
        link = AsgiLink(rig.app, PATH, signed(PATH))
        assert await link.answered()
        with pytest.raises(Exception, match="1008 no_start"):
            await link.recv()
        await link.task
        assert rig.counted("carrier_no_start") == 1
        assert rig.causes == []


@virtual
async def test_another_accounts_stream_is_closed() -> None:
    only = settings(twilio={"enabled": True, "auth_token": TOKEN, "account_sid": "AC" + "f" * 32})
    async with rigged(only) as rig:
        link = AsgiLink(rig.app, PATH, signed(PATH))
        assert await link.answered()
        async with FakeTwilio(link).connected() as twilio:
            assert (await twilio.over()).reason == "wrong_account"
        await link.task


@virtual
async def test_a_gateway_that_stops_refuses_the_upgrade() -> None:
    async with rigged(TWILIO.settings) as rig:
        rig.gateway.switchboard.hang_up_all("server_stop")
        link = AsgiLink(rig.app, PATH, signed(PATH))
        assert not await link.answered()
        assert link.denied == 503
        assert b'"draining"' in link.denial
        answer = await TWILIO.webhook(rig)
        assert '<Reject reason="busy"/>' in answer.text


@virtual
async def test_keys_sound_to_their_end_even_if_somebody_speaks() -> None:
    async with TWILIO.called(replying(LONG)) as (rig, twilio):
        await twilio.hush(2_000)
        await twilio.speak(800)
        await twilio.until(lambda: twilio.heard_ms >= 2_000)
        line = rig.gateway.switchboard.find(rig.record.id)._leg._line  # type: ignore[union-attr]
        sending = asyncio.create_task(line.send_dtmf("12#"))
        await twilio.speak(500)
        assert not sending.done(), "it takes as long as the keys sound"
        await twilio.speak(200)
        assert sending.done()
        await twilio.hush(1_000)
        heard = np.concatenate([pcm for _, pcm in twilio.heard])
        keys = decode_mulaw(encode_mulaw(keypad_tones("12#", 8_000)))
        at = next(at for at in range(0, len(heard) - len(keys) + 1, 160) if (heard[at : at + 960] == keys[:960]).all())
        assert (heard[at : at + len(keys)] == keys).all()


# --- bytes ------------------------------------------------------------------------------------------------------

START = (
    (
        '{"event":"start","sequenceNumber":"1","streamSid":"@STREAM","start":{"accountSid":"@ACCOUNT","streamSid":"@STREAM",'
        '"callSid":"@CALL","tracks":["inbound"],"mediaFormat":{"encoding":"audio/x-mulaw","sampleRate":8000,"channels":1},'
        '"customParameters":{"agent":"sales","from":"+1555"}}}'
    )
    .replace("@STREAM", STREAM)
    .replace("@ACCOUNT", ACCOUNT)
    .replace("@CALL", CALL)
)


def started() -> TwilioDialect:
    dialect = TwilioDialect()
    (event,) = dialect.decode(START)
    assert isinstance(event, Started)
    assert (event.incoming.agent, event.incoming.caller, event.incoming.wire_id) == ("sales", "+1555", CALL)
    return dialect


def test_what_twilio_says() -> None:
    dialect = TwilioDialect()
    assert dialect.decode('{"event":"connected","protocol":"Call","version":"1.0.0"}') == (Ignored(),)
    dialect = started()
    media = (
        '{"event":"media","sequenceNumber":"4","streamSid":"@STREAM",'
        '"media":{"track":"inbound","chunk":"2","timestamp":"20","payload":"//8A"}}'
    ).replace("@STREAM", STREAM)
    assert dialect.decode(media) == (Audio(b"\xff\xff\x00", 20.0),)
    assert dialect.decode(media.replace("inbound", "outbound")) == (Ignored(),)
    assert dialect.decode('{"event":"dtmf","dtmf":{"track":"inbound_track","digit":"#"}}') == (Key("#"),)
    assert dialect.decode('{"event":"mark","mark":{"name":"m 1"}}') == (MarkPlayed("m 1"),)
    assert dialect.decode('{"event":"stop","stop":{}}') == (Stopped(),)
    assert dialect.decode(START) == (Ignored("second_start"),)


def test_what_twilio_is_told() -> None:
    dialect = started()
    assert dialect.encode_audio(np.array([0, -32_124, 32_124], np.int16)) == [
        '{"event":"media","streamSid":"@STREAM","media":{"payload":"/wCA"}}'.replace("@STREAM", STREAM)
    ]
    assert dialect.encode_mark("m1") == [
        '{"event":"mark","streamSid":"@STREAM","mark":{"name":"m1"}}'.replace("@STREAM", STREAM)
    ]
    assert dialect.encode_clear() == ['{"event":"clear","streamSid":"@STREAM"}'.replace("@STREAM", STREAM)]
    assert dialect.abilities == {Ability.TRANSFER, Ability.SEND_DTMF}
    assert dialect.transfer("sip:a&b@x").request.body == {  # type: ignore[union-attr]
        "Twiml": "<Response><Dial><Sip>sip:a&amp;b@x</Sip></Dial></Response>"
    }


def test_ids_that_are_none_never_become_a_path() -> None:
    dialect = TwilioDialect()
    dialect.decode(START.replace(CALL, "../../Accounts"))
    assert dialect.abilities == {Ability.SEND_DTMF}
    assert dialect.hang_up().request is None
