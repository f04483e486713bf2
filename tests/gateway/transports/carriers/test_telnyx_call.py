"""What is Telnyx's own: Call Control, chunks out of order, its bytes and its API."""

from __future__ import annotations

import json

import numpy as np

from gateway.transports.carriers.chunk_order import ChunkOrder
from gateway.transports.carriers.dialect import Audio, Encoding, Ignored, Key, MarkPlayed, Started, Stopped
from gateway.transports.carriers.telnyx import TelnyxDialect
from gateway.transports.phone.line import Ability
from tests.gateway.transports.carriers.fake_telnyx import CALL, PUBLIC_KEY, FakeTelnyx, signed
from tests.gateway.transports.carriers.links import AsgiLink, asked
from tests.gateway.transports.carriers.rig import rigged, settings
from tests.gateway.transports.carriers.vendors import TELNYX, telnyx_event
from tests.virtual_time import virtual

WEBHOOK = "/v1/carriers/telnyx/call"


@virtual
async def test_call_control_is_answered_over_the_rest_api() -> None:
    async with rigged(TELNYX.settings) as rig:
        body = telnyx_event()
        answer = await asked(rig.app, "POST", WEBHOOK, content=body, headers=signed(body))
        assert (answer.status_code, answer.content) == (200, b"")
        request = rig.rest.requests[0]
        assert str(request.url) == f"https://api.telnyx.com/v2/calls/{CALL}/actions/answer"
        assert request.headers["authorization"] == "Bearer KEY0123456789"
        said = json.loads(request.content)
        url = said.pop("stream_url")
        assert said == {
            "stream_track": "inbound_track",
            "stream_codec": "PCMU",
            "stream_bidirectional_mode": "rtp",
            "stream_bidirectional_codec": "PCMU",
        }
        link = AsgiLink(rig.app, url.removeprefix("wss://voice.example.com"))
        assert await link.answered()
        async with FakeTelnyx(link).connected() as telnyx:
            await telnyx.hush(200)
            assert (rig.record.view()["caller"], rig.record.view()["wire_id"]) == ("+15550001", CALL)
        await link.task


@virtual
async def test_what_is_no_new_call_is_answered_with_nothing_and_a_full_gateway_rejects() -> None:
    async with rigged(TELNYX.settings) as rig:
        for body in (telnyx_event("call.hangup"), telnyx_event(direction="outgoing")):
            assert (await asked(rig.app, "POST", WEBHOOK, content=body, headers=signed(body))).status_code == 200
        assert not rig.rest.requests
        rig.gateway.switchboard.hang_up_all("server_stop")
        body = telnyx_event()
        assert (await asked(rig.app, "POST", WEBHOOK, content=body, headers=signed(body))).status_code == 200
        assert str(rig.rest.requests[0].url).endswith(f"/v2/calls/{CALL}/actions/reject")
        assert json.loads(rig.rest.requests[0].content) == {"cause": "USER_BUSY"}


@virtual
async def test_what_a_line_is_asked_goes_over_the_rest_api() -> None:
    async with TELNYX.called() as (rig, telnyx):
        await telnyx.hush(200)
        line = rig.gateway.switchboard.find(rig.record.id)._leg._line  # type: ignore[union-attr]
        await line.send_dtmf("12#")
        rig.rest.statuses = [200, 422]
        await line.transfer("sip:help@example.com")
        rig.gateway.switchboard.find(rig.record.id).hang_up("transferred")  # type: ignore[union-attr]
        await telnyx.over()
        assert [(str(r.url).rsplit("/", 1)[-1], json.loads(r.content)) for r in rig.rest.requests] == [
            ("send_dtmf", {"digits": "12#"}),
            ("transfer", {"to": "sip:help@example.com"}),
        ]


@virtual
async def test_a_call_that_has_ended_needs_no_hang_up() -> None:
    async with TELNYX.called() as (rig, telnyx):
        await telnyx.hush(200)
        rig.rest.statuses = [422]
        rig.gateway.switchboard.find(rig.record.id).hang_up("max_duration")  # type: ignore[union-attr]
        await telnyx.over()
        assert len(rig.rest.requests) == 1
        assert rig.counted("carrier_api_failed") == 0


@virtual
async def test_chunks_out_of_order_are_heard_in_order() -> None:
    async with TELNYX.called() as (rig, telnyx):
        assert isinstance(telnyx, FakeTelnyx)
        telnyx.swaps = True
        await telnyx.speak(2_000)
        assert rig.counted("carrier_late_audio") == 0
        assert rig.counted("caller_audio_gap") == 0


@virtual
async def test_a_stream_of_ones_own_needs_the_stream_token() -> None:
    token = "a-stream-token-of-some-length"
    tables = settings(telnyx={"enabled": True, "public_key": PUBLIC_KEY, "stream_token": token})
    path = "/v1/carriers/telnyx/stream"
    async with rigged(tables) as rig:
        for query, headers, right in (
            ("", {}, False),
            ("", {"x-telnyx-streaming-auth-token": token[:-1]}, False),
            ("?token=wrong", {}, False),
            ("", {"x-telnyx-streaming-auth-token": token}, True),
            (f"?token={token}&agent=default", {}, True),
            ("", {"authorization": f"Bearer {token}"}, True),
        ):
            link = AsgiLink(rig.app, path + query, headers)
            assert await link.answered() is right, (query, headers)
            if right:
                async with FakeTelnyx(link).connected() as telnyx:
                    await telnyx.hush(60)
                await link.task
        assert [record.agent for record in rig.gateway.recent] == ["anna", "default", "anna"]


# --- bytes ------------------------------------------------------------------------------------------------------

START = (
    '{"event":"start","sequence_number":"1","stream_id":"32DE0DEA","start":{"user_id":"3E6F","call_control_id":"@CALL",'
    '"from":"+13122010094","to":"+13122123456","client_state":"aGF2ZSBhIG5pY2UgZGF5ID1d","custom_parameters":'
    '{"agent":"sales"},"media_format":{"encoding":"PCMA","sample_rate":8000,"channels":1}}}'
).replace("@CALL", CALL)


def test_what_telnyx_says() -> None:
    dialect = TelnyxDialect()
    assert dialect.decode('{"event":"connected","version":"1.0.0"}') == (Ignored(),)
    (event,) = dialect.decode(START)
    assert isinstance(event, Started)
    assert (event.encoding, event.rate_hz, event.out_rate_hz) == (Encoding.ALAW, 8_000, 8_000)
    assert (event.incoming.agent, event.incoming.dialled) == ("sales", "+13122123456")
    media = '{"event":"media","media":{"track":"inbound","chunk":"%d","timestamp":"%d","payload":"//8A"}}'
    assert dialect.decode(media % (1, 0)) == (Audio(b"\xff\xff\x00", 0.0),)
    assert dialect.decode(media % (3, 40)) == ()
    assert dialect.decode(media % (2, 20)) == (Audio(b"\xff\xff\x00", 20.0), Audio(b"\xff\xff\x00", 40.0))
    assert dialect.decode(media % (2, 20)) == (Ignored("late_audio"),)
    assert dialect.decode('{"event":"dtmf","dtmf":{"digit":"5"}}') == (Key("5"),)
    assert dialect.decode('{"event":"mark","mark":{"name":"m1"}}') == (MarkPlayed("m1"),)
    assert dialect.decode('{"event":"error","payload":{"code":100002}}') == (Ignored("vendor_error"),)
    assert dialect.decode('{"event":"stop","stop":{}}') == (Stopped(),)


def test_wideband_comes_in_network_order() -> None:
    dialect = TelnyxDialect()
    (event,) = dialect.decode(START.replace('"PCMA","sample_rate":8000', '"L16","sample_rate":16000'))
    assert isinstance(event, Started)
    assert (event.encoding, event.rate_hz, event.out_rate_hz) == (Encoding.PCM16_BE, 16_000, 8_000)
    assert TelnyxDialect().decode(START.replace("PCMA", "OPUS")) == (Ignored("bad_start"),)


def test_what_telnyx_is_told() -> None:
    dialect = TelnyxDialect(rest=False)
    dialect.decode(START)
    assert dialect.encode_audio(np.array([0, -32_124, 32_124], np.int16)) == [
        '{"event":"media","media":{"payload":"/wCA"}}'
    ]
    assert dialect.encode_mark("m1") == ['{"event":"mark","mark":{"name":"m1"}}']
    assert dialect.encode_clear() == ['{"event":"clear"}']
    assert dialect.abilities == frozenset[Ability]()
    assert dialect.hang_up().request is None


def test_a_call_of_our_texml_is_handed_over_by_other_texml() -> None:
    dialect = TelnyxDialect()
    dialect.decode(START.replace('"agent":"sales"', '"texml_account":"61bf923e-5e4d"'))
    request = dialect.transfer("+15557777").request
    assert request is not None
    assert (request.path, request.form) == (f"/v2/texml/Accounts/61bf923e-5e4d/Calls/{CALL}", True)
    assert request.body == {"Texml": "<Response><Dial>+15557777</Dial></Response>"}
    dialect = TelnyxDialect()
    dialect.decode(START.replace('"agent":"sales"', '"texml_account":"../../x"'))
    assert dialect.transfer("+1").request.path.endswith("/actions/transfer")  # type: ignore[union-attr]


def test_order_is_made_within_a_window() -> None:
    order: ChunkOrder[int] = ChunkOrder()
    assert order.put(5, 5) == [5]
    assert [order.put(number, number) for number in (7, 8, 9)] == [[], [], []]
    assert order.put(10, 10) == [7, 8, 9, 10], "one is given up when four wait"
    assert order.put(6, 6) == []
    assert order.late == 1
    assert order.put(None, 0) == [0]
    assert order.put(2_000, 1) == []
    assert [order.put(number, number) for number in (2_001, 2_002, 2_003)][-1] == [1, 2_001, 2_002, 2_003]
    assert order.put(1, 1) == [1], "a count that begins anew"
