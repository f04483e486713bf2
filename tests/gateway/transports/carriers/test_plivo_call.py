"""What is Plivo's own: marks that a clear swallows, its transfer by URL, its bytes and its API."""

from __future__ import annotations

import json
from base64 import b64encode

import numpy as np

from gateway.transports.carriers.dialect import Audio, Cleared, Encoding, Ignored, Key, MarkPlayed, Reply, Started
from gateway.transports.carriers.plivo import PlivoDialect
from gateway.transports.phone.line import Ability
from tests.gateway.transports.carriers.fake_plivo import AUTH_ID, CALL, STREAM, TOKEN, FakePlivo, signed
from tests.gateway.transports.carriers.links import asked
from tests.gateway.transports.carriers.rig import settings
from tests.gateway.transports.carriers.vendors import PLIVO
from tests.virtual_time import virtual

URL = f"https://api.plivo.com/v1/Account/{AUTH_ID}/Call/{CALL}/"


@virtual
async def test_hanging_up_deletes_the_call() -> None:
    async with PLIVO.called() as (rig, plivo):
        await plivo.hush(200)
        rig.gateway.switchboard.find(rig.record.id).hang_up("max_duration")  # type: ignore[union-attr]
        await plivo.over()
        request = rig.rest.requests[0]
        assert (request.method, str(request.url)) == ("DELETE", URL)
        assert request.headers["authorization"] == "Basic " + b64encode(f"{AUTH_ID}:{TOKEN}".encode()).decode()


@virtual
async def test_without_an_account_closing_the_stream_hangs_up() -> None:
    tables = settings(plivo={"enabled": True, "auth_token": TOKEN})
    async with PLIVO.called(tables=tables) as (rig, plivo):
        await plivo.hush(200)
        rig.gateway.switchboard.find(rig.record.id).hang_up("max_duration")  # type: ignore[union-attr]
        assert (await plivo.over()).code == 1000
        assert not rig.rest.requests


@virtual
async def test_a_transfer_is_a_document_that_plivo_fetches_once() -> None:
    async with PLIVO.called() as (rig, plivo):
        await plivo.hush(200)
        call = rig.gateway.switchboard.find(rig.record.id)
        assert call is not None
        await call._leg._line.transfer("+15557777")  # type: ignore[attr-defined]
        said = json.loads(rig.rest.requests[0].content)
        assert str(rig.rest.requests[0].url) == URL
        url = said.pop("aleg_url")
        assert said == {"legs": "aleg", "aleg_method": "POST"}
        path = url.removeprefix("https://voice.example.com")
        form = {"CallUUID": CALL}
        assert (await asked(rig.app, "POST", path, form=form)).status_code == 403, "nobody else may"
        fetched = await asked(rig.app, "POST", path, form=form, headers=signed(path, form))
        assert fetched.text == (
            '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Dial><Number>+15557777</Number></Dial></Response>\n'
        )
        assert (await asked(rig.app, "POST", path, form=form, headers=signed(path, form))).status_code == 404
        call.hang_up("transferred")
        await plivo.over()
        assert len(rig.rest.requests) == 1


@virtual
async def test_keys_are_sent_on_the_stream() -> None:
    async with PLIVO.called() as (rig, plivo):
        assert isinstance(plivo, FakePlivo)
        await plivo.hush(200)
        await rig.gateway.switchboard.find(rig.record.id)._leg._line.send_dtmf("12#")  # type: ignore[union-attr]
        await plivo.hush(200)
        assert plivo.dtmf == ["12#"]


# --- bytes ------------------------------------------------------------------------------------------------------

START = (
    (
        '{"event":"start","sequenceNumber":1,"start":{"callId":"@CALL","streamId":"@STREAM","accountId":"MA","tracks":["inbound"],'
        '"mediaFormat":{"encoding":"audio/x-mulaw","sampleRate":8000}},"extra_headers":"agent=sales;to=15550002"}'
    )
    .replace("@CALL", CALL)
    .replace("@STREAM", STREAM)
)


def dialect(start: str = START) -> PlivoDialect:
    made = PlivoDialect(lambda reply: f"https://x/{len(reply.body)}", account=AUTH_ID)
    (event,) = made.decode(start)
    assert isinstance(event, Started)
    return made


def test_what_plivo_says() -> None:
    made = PlivoDialect(lambda reply: "", account=AUTH_ID)
    (event,) = made.decode(START)
    assert isinstance(event, Started)
    assert (event.encoding, event.rate_hz) == (Encoding.MULAW, 8_000)
    assert (event.incoming.agent, event.incoming.dialled, event.incoming.wire_id) == ("sales", "15550002", CALL)
    media = '{"event":"media","streamId":"s","media":{"track":"inbound","timestamp":"1705312200000","payload":"//8A"}}'
    assert made.decode(media) == (Audio(b"\xff\xff\x00"),)
    assert made.decode('{"event":"dtmf","dtmf":{"track":"inbound","digit":"*"}}') == (Key("*"),)
    assert made.decode('{"event":"playedStream","streamId":"s","name":"m1"}') == (MarkPlayed("m1"),)
    assert made.decode('{"event":"clearedAudio","streamId":"s"}') == (Cleared(),)
    assert made.decode('{"event":"incorrectPayload"}') == (Ignored("unknown_event"),)


def test_extra_headers_are_read_however_they_are_written() -> None:
    for written in ("X-PH-agent=sales;x=1", "{'X-PH-agent': 'sales'}", '{\\"agent\\": \\"sales\\"}', "a=b,agent=sales"):
        made = PlivoDialect(lambda reply: "")
        (event,) = made.decode(START.replace("agent=sales;to=15550002", written))
        assert isinstance(event, Started)
        assert event.incoming.agent == "sales", written


def test_what_plivo_is_told() -> None:
    made = dialect()
    pcm = np.array([0, -32_124, 32_124], np.int16)
    assert made.encode_audio(pcm) == [
        '{"event":"playAudio","media":{"contentType":"audio/x-mulaw","sampleRate":8000,"payload":"/wCA"}}'
    ]
    assert made.encode_mark("m1") == [
        '{"event":"checkpoint","streamId":"@STREAM","name":"m1"}'.replace("@STREAM", STREAM)
    ]
    assert made.encode_clear() == ['{"event":"clearAudio","streamId":"@STREAM"}'.replace("@STREAM", STREAM)]
    assert made.send_dtmf("1#").messages == ('{"event":"sendDTMF","dtmf":"1#"}',)
    assert made.abilities == {Ability.SEND_DTMF, Ability.TRANSFER}


def test_wideband_goes_as_it_comes() -> None:
    made = dialect(START.replace('audio/x-mulaw","sampleRate":8000', 'audio/x-l16","sampleRate":16000'))
    assert made.encode_audio(np.array([1, -2], np.int16)) == [
        '{"event":"playAudio","media":{"contentType":"audio/x-l16","sampleRate":16000,"payload":"AQD+/w=="}}'
    ]


def test_a_sip_target_is_a_user() -> None:
    published: list[Reply] = []

    def publish(reply: Reply) -> str:
        published.append(reply)
        return "https://x/1"

    made = PlivoDialect(publish, account=AUTH_ID)
    made.decode(START)
    request = made.transfer("sip:a&b@example.com").request
    assert request is not None
    assert request.body == {"legs": "aleg", "aleg_url": "https://x/1", "aleg_method": "POST"}
    assert b"<Dial><User>sip:a&amp;b@example.com</User></Dial>" in published[0].body
    assert not request.repeatable
