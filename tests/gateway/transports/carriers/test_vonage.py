"""What is Vonage's own: its tokens, its NCCOs, its frames and its API."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.carrier_settings import VonageSettings
from gateway.settings import ConfigurationError
from gateway.transports.carriers.dialect import (
    Asked,
    Audio,
    BadWebhook,
    Cleared,
    Encoding,
    Ignored,
    Key,
    MarkPlayed,
    Started,
    StreamTo,
    Unauthentic,
)
from gateway.transports.carriers.vonage import Vonage, VonageDialect
from gateway.transports.phone.line import Ability, Incoming
from tests.gateway.transports.carriers.bridges import KEY_FILE, PRIVATE_KEY, VONAGE, VONAGE_TABLE
from tests.gateway.transports.carriers.fake_vonage import APPLICATION, CALL, SECRET, FakeVonage, signed, token
from tests.gateway.transports.carriers.links import AsgiLink, asked
from tests.gateway.transports.carriers.rig import rigged, settings
from tests.virtual_time import virtual

WEBHOOK = "/v1/carriers/vonage/call"
BODY = json.dumps({"from": "15550001", "to": "15550002", "uuid": CALL, "conversation_uuid": "CON-1"}).encode()
START = json.dumps({"event": "websocket:connected", "content-type": "audio/l16;rate=16000", "uuid": CALL, "to": "1555"})


def vonage(**table: Any) -> Vonage:
    return Vonage(VonageSettings.model_validate({**VONAGE_TABLE, "rate_hz": 16_000, **table}), time.time)


def question(headers: dict[str, str], body: bytes = BODY, **query: str) -> Asked:
    lower = {name.lower(): value for name, value in headers.items()}
    return Asked("https://voice.example.com/v1/carriers/vonage/call", lower, query, "POST", body)


def refusal(carrier: Vonage, headers: dict[str, str], body: bytes = BODY) -> str:
    with pytest.raises(Unauthentic) as refused:
        carrier.check_webhook(question(headers, body))
    return refused.value.code


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_signed_webhook_is_taken_once() -> None:
    carrier = vonage()
    headers = signed(BODY)
    carrier.check_webhook(question(headers))
    assert refusal(carrier, headers) == "signature_replayed"
    carrier.check_webhook(question(signed(), b""))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"secret": "another-secret-that-is-as-long-as-it"}, "signature_invalid"),
        ({"iat": None}, "signature_invalid"),
        ({"jti": None}, "signature_invalid"),
        ({"iat": "soon"}, "signature_invalid"),
        ({"application_id": "another"}, "signature_invalid"),
        ({"payload_hash": "0" * 64}, "signature_invalid"),
        ({"payload_hash": None}, "signature_invalid"),
        ({"payload_hash": 5}, "signature_invalid"),
    ],
)
def test_another_token_is_refused(changes: dict[str, Any], code: str) -> None:
    assert refusal(vonage(), signed(BODY, **changes)) == code


@pytest.mark.parametrize(("claim", "ahead_s"), [("iat", -600), ("iat", 600), ("exp", -1)])
def test_a_token_of_another_time_is_refused(claim: str, ahead_s: int) -> None:
    assert refusal(vonage(), signed(BODY, **{claim: int(time.time()) + ahead_s})) == "signature_expired"


def test_a_token_that_is_none_is_refused() -> None:
    assert refusal(vonage(), {}) == "signature_missing"
    assert refusal(vonage(), {"Authorization": "Basic YTpi"}) == "signature_missing"
    assert refusal(vonage(), {"Authorization": "Bearer a.b.c"}) == "signature_invalid"
    assert refusal(vonage(), {"Authorization": "Bearer " + "x" * 20_000}) == "signature_invalid"
    claims = {"iat": int(time.time()), "jti": "1"}
    for unsafe in (jwt.encode(claims, "", algorithm="none"), jwt.encode(claims, PRIVATE_KEY, algorithm="RS256")):
        assert refusal(vonage(), {"Authorization": f"Bearer {unsafe}"}, b"") == "signature_invalid"


def test_a_body_that_was_changed_is_refused() -> None:
    assert refusal(vonage(), signed(BODY), BODY.replace(b"15550001", b"15550009")) == "signature_invalid"


def test_only_where_it_is_allowed_nobody_signs() -> None:
    carrier = vonage(signature_secret=None, allow_unsigned=True)
    carrier.check_webhook(question({}))
    carrier.check_upgrade(question({}, b""))
    assert refusal(carrier, signed(BODY)) == "signature_invalid"


@pytest.mark.parametrize(("given_token", "code"), [("", "signature_missing"), ("wrong", "signature_invalid")])
def test_a_stream_without_ticket_needs_the_token_of_the_settings(given_token: str, code: str) -> None:
    carrier = vonage(stream_token="0123456789abcdef")
    carrier.check_upgrade(question({}, b"", token="0123456789abcdef"))
    carrier.check_upgrade(question({"Authorization": "Bearer 0123456789abcdef"}, b""))
    with pytest.raises(Unauthentic) as refused:
        carrier.check_upgrade(question({}, b"", token=given_token))
    assert refused.value.code == code


def test_a_key_that_cannot_be_read_is_a_clear_word_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no PEM private key"):
        vonage(private_key=tmp_path / "missing.pem")
    (tmp_path / "bad.pem").write_text("no key")
    with pytest.raises(ConfigurationError, match="no PEM private key"):
        vonage(private_key=tmp_path / "bad.pem")


# --- webhooks ---------------------------------------------------------------------------------------------------------


def test_the_ncco_connects_the_call_to_its_stream() -> None:
    carrier = vonage()
    incoming = Incoming("vonage", "sales", "15550002", "15550001", CALL)
    reply = carrier.connect(question({}), StreamTo("wss://voice.example.com/stream", incoming))
    assert reply.media_type == "application/json"
    assert json.loads(reply.body) == [
        {
            "action": "connect",
            "endpoint": [
                {
                    "type": "websocket",
                    "uri": "wss://voice.example.com/stream",
                    "content-type": "audio/l16;rate=16000",
                    "headers": {"uuid": CALL, "agent": "sales", "from": "15550001", "to": "15550002"},
                }
            ],
        }
    ]
    assert json.loads(carrier.refuse(question({}), busy=True).body) == []


def test_who_calls_whom() -> None:
    carrier = vonage()
    expected = Incoming("vonage", dialled="15550002", caller="15550001", wire_id=CALL)
    assert carrier.read_webhook(question({})) == expected
    by_query = question({}, b"", **{"from": "15550001", "to": "15550002", "uuid": CALL})
    assert carrier.read_webhook(by_query) == expected
    event = json.dumps({"status": "completed", "uuid": CALL}).encode()
    assert carrier.read_webhook(question({}, event)) is None
    for nonsense in (b"[]", b"{", b'{"uuid": 5}', b'{"uuid": "../x"}'):
        with pytest.raises(BadWebhook):
            carrier.read_webhook(question({}, nonsense))


@virtual
async def test_a_webhook_that_nobody_signed_is_refused_and_counted() -> None:
    async with rigged(VONAGE.settings) as rig:
        answer = await asked(rig.app, "POST", WEBHOOK, content=BODY, headers={"Authorization": f"Bearer {token()}"})
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "signature_invalid"
        assert rig.counted("carrier_signature_invalid") == 1


# --- the wire ---------------------------------------------------------------------------------------------------------


def started() -> VonageDialect:
    dialect = VonageDialect()
    (event,) = dialect.decode(START)
    assert isinstance(event, Started)
    return dialect


def test_the_first_message_says_the_rate_and_whose_call_it_is() -> None:
    (event,) = VonageDialect().decode(START)
    assert event == Started(Incoming("vonage", dialled="1555", wire_id=CALL), Encoding.PCM16_LE, 16_000)
    (event,) = VonageDialect(8_000).decode('{"event":"websocket:connected"}')
    assert isinstance(event, Started)
    assert event.rate_hz == 8_000
    (event,) = VonageDialect().decode('{"event":"websocket:connected","content-type":"audio/l16;rate=11025"}')
    assert event == Ignored("bad_start")


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (b"\x01\x00" * 320, Audio(b"\x01\x00" * 320)),
        (b"", Ignored("bad_audio")),
        ('{"event":"websocket:dtmf","digit":"5","duration":260}', Key("5")),
        ('{"event":"websocket:dtmf","dtmf":"#"}', Key("#")),
        ('{"event":"websocket:dtmf","dtmf":{"digit":"*"}}', Key("*")),
        ('{"event":"websocket:dtmf"}', Ignored("bad_digit")),
        ('{"event":"websocket:notify","payload":{"mark":"m7"}}', MarkPlayed("m7")),
        ('{"event":"websocket:notify","payload":{"other":1}}', Ignored("bad_mark")),
        ('{"event":"websocket:cleared"}', Cleared()),
        ('{"event":"websocket:new"}', Ignored("unknown_event")),
        ("{", Ignored("bad_json")),
        (START, Ignored("second_start")),
    ],
)
def test_what_messages_say(message: str | bytes, event: object) -> None:
    assert started().decode(message) == (event,)


def test_audio_before_the_start_is_ignored() -> None:
    assert VonageDialect().decode(bytes(640)) == (Ignored("audio_before_start"),)


def test_a_message_is_20_ms_whatever_comes() -> None:
    dialect = started()
    sizes = [len(m) for n in (100, 320, 540, 640) for m in dialect.encode_audio(np.full(n, 7, np.int16))]
    assert sizes == [640] * 5
    dialect.encode_audio(np.full(200, 7, np.int16))
    filled, notify = dialect.encode_mark("end")
    assert isinstance(filled, bytes)
    assert (len(filled), filled[-240:]) == (640, bytes(240))
    assert json.loads(notify) == {"action": "notify", "payload": {"mark": "end"}}
    dialect.encode_audio(np.full(200, 7, np.int16))
    assert [json.loads(m) for m in dialect.encode_clear()] == [{"action": "clear"}]
    assert len(dialect.encode_mark("nothing waits")) == 1


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_hostile_messages_break_nothing(message: str | bytes) -> None:
    for dialect in (VonageDialect(), started()):
        assert isinstance(dialect.decode(message), tuple)


# --- what a line is asked ---------------------------------------------------------------------------------------------


def test_without_the_calls_uuid_or_a_key_nothing_is_asked_over_rest() -> None:
    dialect = VonageDialect()
    dialect.decode('{"event":"websocket:connected","uuid":"../../v1"}')
    assert dialect.abilities == frozenset()
    assert dialect.hang_up().request is None
    assert VonageDialect(rest=False).abilities == frozenset()
    assert vonage(private_key=None).api_url == ""


def test_transfers_hang_ups_and_keys() -> None:
    dialect = started()
    assert dialect.abilities == {Ability.TRANSFER, Ability.SEND_DTMF}
    request = dialect.transfer("+15551234").request
    assert request is not None
    assert (request.method, request.path, request.repeatable) == ("PUT", f"/v1/calls/{CALL}", False)
    ncco = [{"action": "connect", "from": "1555", "endpoint": [{"type": "phone", "number": "15551234"}]}]
    assert request.body == {"action": "transfer", "destination": {"type": "ncco", "ncco": ncco}}
    by_sip = dialect.transfer("sip:help@example.com").request
    assert by_sip is not None
    assert "'uri': 'sip:help@example.com'" in str(by_sip.body)
    keys = dialect.send_dtmf("12#").request
    assert keys is not None
    assert (keys.path, keys.body) == (f"/v1/calls/{CALL}/dtmf", {"digits": "12#"})
    hang_up = dialect.hang_up().request
    assert hang_up is not None
    assert (hang_up.body, 404 in hang_up.done) == ({"action": "hangup"}, True)


def test_a_request_carries_a_token_of_the_application() -> None:
    carrier = vonage()
    request = started().hang_up().request
    assert request is not None
    bearer = carrier.api_headers(request)["Authorization"].removeprefix("Bearer ")
    claims = jwt.decode(bearer, PRIVATE_KEY.public_key(), algorithms=["RS256"])
    assert claims["application_id"] == APPLICATION
    assert claims["exp"] - claims["iat"] == 300
    assert carrier.api_headers(request)["Authorization"] != carrier.api_headers(request)["Authorization"]


@virtual
async def test_a_call_at_16_khz() -> None:
    tables = settings(vonage={**VONAGE_TABLE, "rate_hz": 16_000})
    async with rigged(tables) as rig:
        link = AsgiLink(rig.app, await VONAGE.stream_path(rig))
        assert await link.answered()
        async with FakeVonage(link, rate_hz=16_000, latency_s=0.03).connected() as fake:
            await fake.hush(2_000)
            assert fake.heard_ms > 400
            await fake.speak(800)
            await fake.until(lambda: rig.turns == 2)
        await link.task


@virtual
async def test_a_line_that_is_hung_up_asks_the_api_with_the_calls_uuid() -> None:
    async with VONAGE.called() as (rig, fake):
        await fake.hush(200)
        call = rig.gateway.switchboard.find(rig.record.id)
        assert call is not None
        call.hang_up("max_duration")
        await fake.over()
        (request,) = rig.rest.requests
        assert (request.method, str(request.url)) == ("PUT", f"https://api.nexmo.com/v1/calls/{CALL}")
        assert json.loads(request.content) == {"action": "hangup"}


def test_the_settings_say_what_is_missing() -> None:
    with pytest.raises(ValueError, match="signature_secret"):
        VonageSettings(enabled=True)
    with pytest.raises(ValueError, match="application_id"):
        VonageSettings(enabled=True, signature_secret=SECRET, private_key=KEY_FILE)  # type: ignore[arg-type]
