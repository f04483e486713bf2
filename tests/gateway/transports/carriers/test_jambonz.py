"""What is jambonz's own: its signatures, its verbs, and what its media server does to audio."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.carrier_settings import JambonzSettings
from gateway.transports.carriers.dialect import (
    Asked,
    Audio,
    BadWebhook,
    Encoding,
    Ignored,
    Key,
    MarkPlayed,
    Reply,
    Started,
    StreamTo,
    Unauthentic,
)
from gateway.transports.carriers.jambonz import Jambonz, JambonzDialect
from gateway.transports.phone.line import Ability, Incoming
from tests.gateway.transports.carriers.bridges import JAMBONZ, JAMBONZ_TABLE
from tests.gateway.transports.carriers.fake_jambonz import ACCOUNT, CALL, SECRET, FakeJambonz, signed
from tests.gateway.transports.carriers.links import AsgiLink, asked
from tests.gateway.transports.carriers.rig import rigged
from tests.gateway.transports.fake_peer import LONG, replying
from tests.virtual_time import virtual

CALLED = {"call_sid": CALL, "direction": "inbound", "from": "+1", "to": "+2", "call_status": "trying"}
BODY = json.dumps(CALLED).encode()
TOLD = {"callSid": CALL, "from": "+1", "to": "+2", "sampleRate": 8_000, "mixType": "mono", "agent": "sales"}
START = json.dumps(TOLD)


def jambonz(**table: Any) -> Jambonz:
    return Jambonz(JambonzSettings.model_validate({**JAMBONZ_TABLE, **table}), time.time)


def question(headers: dict[str, str], body: bytes = BODY, **query: str) -> Asked:
    lower = {name.lower(): value for name, value in headers.items()}
    return Asked("https://voice.example.com/v1/carriers/jambonz/call", lower, query, "POST", body)


def refusal(carrier: Jambonz, headers: dict[str, str], body: bytes = BODY) -> str:
    with pytest.raises(Unauthentic) as refused:
        carrier.check_webhook(question(headers, body))
    return refused.value.code


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"jambonz:{password}".encode()).decode()}


# --- signatures -------------------------------------------------------------------------------------------------------


def test_a_signed_webhook_is_taken_once() -> None:
    carrier = jambonz()
    headers = signed(BODY)
    carrier.check_webhook(question(headers))
    assert refusal(carrier, headers) == "signature_replayed"


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ({"secret": "another"}, "signature_invalid"),
        ({"body": BODY + b" "}, "signature_invalid"),
        ({"ago_s": 600}, "signature_expired"),
        ({"ago_s": -600}, "signature_expired"),
    ],
)
def test_another_signature_is_refused(made: dict[str, Any], code: str) -> None:
    now = time.time()
    headers = signed(made.get("body", BODY), secret=made.get("secret", SECRET), at=now - made.get("ago_s", 0))
    assert refusal(jambonz(), headers) == code


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "signature_missing"),
        ({"Jambonz-Signature": "nonsense"}, "signature_invalid"),
        ({"Jambonz-Signature": "t=1,v1="}, "signature_invalid"),
        ({"Jambonz-Signature": "t=1,t=2,v1=00"}, "signature_invalid"),
        ({"Jambonz-Signature": "v1=00"}, "signature_invalid"),
        ({"Jambonz-Signature": ",".join(["v1=0"] * 5_000)}, "signature_invalid"),
    ],
)
def test_what_is_no_signature_is_refused(headers: dict[str, str], code: str) -> None:
    assert refusal(jambonz(), headers) == code


def test_of_several_signatures_one_is_enough() -> None:
    header = signed(BODY)["Jambonz-Signature"].replace("v1=", f"v1={'0' * 64},v1=")
    jambonz().check_webhook(question({"Jambonz-Signature": header}))


def test_without_a_webhook_secret_the_password_is_asked_for() -> None:
    carrier = jambonz(webhook_secret=None, stream_token="0123456789abcdef")
    carrier.check_webhook(question(basic("0123456789abcdef")))
    assert refusal(carrier, basic("wrong")) == "signature_invalid"
    assert refusal(carrier, {}) == "signature_missing"


def test_a_stream_without_ticket_needs_the_password() -> None:
    carrier = jambonz(stream_token="0123456789abcdef")
    carrier.check_upgrade(question(basic("0123456789abcdef"), b""))
    carrier.check_upgrade(question({}, b"", token="0123456789abcdef"))
    for headers in (basic("wrong"), {"Authorization": "Basic ~~"}, {}):
        with pytest.raises(Unauthentic):
            carrier.check_upgrade(question(headers, b""))
    with pytest.raises(Unauthentic):
        jambonz().check_upgrade(question(basic(""), b""))


# --- webhooks ---------------------------------------------------------------------------------------------------------


def test_the_verbs_stream_both_ways_and_hang_up_at_the_end() -> None:
    incoming = Incoming("jambonz", "sales", "+2", "+1", CALL)
    reply = jambonz().connect(question({}), StreamTo("wss://voice.example.com/stream", incoming))
    assert json.loads(reply.body) == [
        {
            "verb": "listen",
            "url": "wss://voice.example.com/stream",
            "sampleRate": 8_000,
            "mixType": "mono",
            "passDtmf": True,
            "bidirectionalAudio": {"enabled": True, "streaming": True, "sampleRate": 8_000},
            "metadata": {"agent": "sales"},
        },
        {"verb": "hangup"},
    ]
    (busy,) = json.loads(jambonz().refuse(question({}), busy=True).body)
    assert (busy["verb"], busy["status"]) == ("sip:decline", 486)
    (nobody,) = json.loads(jambonz().refuse(question({}), busy=False).body)
    assert nobody["status"] == 404


def test_who_calls_whom() -> None:
    carrier = jambonz()
    assert carrier.read_webhook(question({})) == Incoming("jambonz", dialled="+2", caller="+1", wire_id=CALL)
    ours = BODY.replace(b"inbound", b"outbound")
    assert carrier.read_webhook(question({}, ours)) == Incoming("jambonz", dialled="+1", caller="+2", wire_id=CALL)
    assert carrier.read_webhook(question({}, BODY.replace(b"trying", b"completed"))) is None
    for nonsense in (b"", b"[]", b"{}", b'{"call_sid":"../x"}'):
        with pytest.raises(BadWebhook):
            carrier.read_webhook(question({}, nonsense))


# --- the wire ---------------------------------------------------------------------------------------------------------


def started(**given: Any) -> JambonzDialect:
    dialect = JambonzDialect(8_000, **given)
    (event,) = dialect.decode(START)
    assert isinstance(event, Started)
    return dialect


def test_the_first_text_says_whose_call_it_is() -> None:
    (event,) = JambonzDialect(16_000).decode(START)
    incoming = Incoming("jambonz", "sales", "+2", "+1", CALL)
    assert event == Started(incoming, Encoding.PCM16_LE, 8_000, 16_000, tail=(bytes(5_120),))
    for odd in ('{"sampleRate":11025}', '{"mixType":"stereo"}'):
        assert JambonzDialect(8_000).decode(odd) == (Ignored("bad_start"),)
    assert JambonzDialect(8_000).decode(bytes(320)) == (Ignored("audio_before_start"),)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (b"\x01\x00" * 160, Audio(b"\x01\x00" * 160)),
        (b"", Ignored("bad_audio")),
        ('{"event":"dtmf","dtmf":"5","duration":"1600"}', Key("5")),
        ('{"event":"dtmf"}', Ignored("bad_digit")),
        ('{"type":"mark","data":{"name":"m7","event":"playout"}}', MarkPlayed("m7", False)),
        ('{"type":"mark","data":{"name":"m7","event":"cleared"}}', MarkPlayed("m7", True)),
        ('{"type":"mark"}', Ignored("bad_mark")),
        ('{"type":"playDone"}', Ignored("unknown_event")),
        ("{", Ignored("bad_json")),
        (START, Ignored("unknown_event")),
    ],
)
def test_what_messages_say(message: str | bytes, event: object) -> None:
    assert started().decode(message) == (event,)


def test_no_sample_is_taken_for_a_mark() -> None:
    (audio,) = started().encode_audio(np.array([-2, -1, 0, 1, -1], np.int16))
    assert np.frombuffer(audio, "<i2").tolist() == [-2, 0, 0, 1, 0]  # type: ignore[arg-type]


def test_a_clear_first_pushes_out_what_is_kept() -> None:
    tail, kill = started().encode_clear()
    assert tail == bytes(2 * 1_280)
    assert json.loads(kill) == {"type": "killAudio"}
    (mark,) = started().encode_mark("m1")
    assert json.loads(mark) == {"type": "mark", "data": {"name": "m1"}}


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_hostile_messages_break_nothing(message: str | bytes) -> None:
    for dialect in (JambonzDialect(8_000), started()):
        assert isinstance(dialect.decode(message), tuple)


# --- what a line is asked ---------------------------------------------------------------------------------------------


def test_a_hang_up_says_so_on_the_stream_and_over_rest() -> None:
    act = started().hang_up()
    assert (act.messages, act.request) == (('{"type":"disconnect"}',), None)
    act = started(account=ACCOUNT, publish=lambda reply: "").hang_up()
    assert act.request is not None
    assert (act.request.method, act.request.path) == ("PUT", f"/v1/Accounts/{ACCOUNT}/Calls/{CALL}")
    assert act.request.body == {"call_status": "completed"}


def test_a_transfer_is_a_hook_that_dials() -> None:
    published: list[Reply] = []
    dialect = started(account=ACCOUNT, publish=lambda reply: published.append(reply) or "https://x/doc")  # type: ignore[func-returns-value]
    assert dialect.abilities == {Ability.TRANSFER}
    request = dialect.transfer("+15551234").request
    assert request is not None
    assert request.body == {"call_hook": {"url": "https://x/doc", "method": "POST"}}
    dial, hangup = json.loads(published[0].body)
    assert dial == {"verb": "dial", "target": [{"type": "phone", "number": "+15551234"}], "callerId": "+2"}
    assert hangup == {"verb": "hangup"}
    dialect.transfer("sip:help@example.com")
    assert json.loads(published[1].body)[0]["target"] == [{"type": "sip", "sipUri": "sip:help@example.com"}]


def test_without_the_calls_id_nothing_is_asked_over_rest() -> None:
    dialect = JambonzDialect(8_000, account=ACCOUNT, publish=lambda reply: "")
    dialect.decode('{"callSid":"../../Accounts"}')
    assert dialect.abilities == frozenset()
    assert dialect.hang_up().request is None


@virtual
async def test_the_sub_protocol_is_accepted_where_it_is_offered() -> None:
    async with rigged(JAMBONZ.settings) as rig:
        for headers, chosen in (({"sec-websocket-protocol": "x, audio.jambonz.org"}, "audio.jambonz.org"), ({}, None)):
            link = AsgiLink(rig.app, await JAMBONZ.stream_path(rig), headers)
            assert await link.answered()
            assert link.subprotocol == chosen
            await link.close()
            await link.task


@virtual
async def test_the_last_words_are_not_kept_back() -> None:
    async with JAMBONZ.called() as (rig, fake):
        assert isinstance(fake, FakeJambonz)
        await fake.hush(3_000)
        assert fake.heard_ms >= 500, "the greeting, to its end"
        assert fake.stuck_ms < 80
        assert rig.counted("carrier_unknown_mark") == 0


@virtual
async def test_after_a_barge_in_nothing_of_the_old_reply_is_left_for_the_next() -> None:
    async with JAMBONZ.called(replying(LONG)) as (rig, fake):
        assert isinstance(fake, FakeJambonz)
        await fake.hush(2_000)
        await fake.speak(800)
        await fake.until(lambda: fake.heard_ms >= 2_000)
        await fake.speak(800)
        await fake.until(lambda: any(entry.cut for entry in rig.record.transcript))
        kept = [one for one in fake._kept if not isinstance(one, str)]
        assert all(not pcm.any() for pcm in kept)


@virtual
async def test_a_transfer_from_the_request_to_the_verbs_that_jambonz_fetches() -> None:
    async with JAMBONZ.called() as (rig, fake):
        await fake.hush(200)
        line = rig.gateway.switchboard.find(rig.record.id)._leg._line  # type: ignore[union-attr]
        await line.transfer("+15551234")
        (request,) = rig.rest.requests
        assert str(request.url) == f"https://jambonz.example.com/api/v1/Accounts/{ACCOUNT}/Calls/{CALL}"
        assert request.headers["authorization"] == "Bearer jambonz-api-key"
        url = json.loads(request.content)["call_hook"]["url"]
        path = url.removeprefix("https://voice.example.com")
        body = b'{"call_sid":"' + CALL.encode() + b'"}'
        verbs = await asked(rig.app, "POST", path, content=body, headers=signed(body))
        assert verbs.json()[0]["verb"] == "dial"
        again = b'{"call_sid":"' + CALL.encode() + b'" }'
        assert (await asked(rig.app, "POST", path, content=again, headers=signed(again))).status_code == 404
        rig.gateway.switchboard.find(rig.record.id).hang_up("transferred")  # type: ignore[union-attr]
        await fake.over()
