"""chan_websocket's dialect, by messages as Asterisk's documentation and source have them."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bridge_settings import AsteriskSettings
from gateway.transports.asterisk.chan_websocket import FORMATS, Asterisk, ChanWebSocket
from gateway.transports.asterisk.expected import NextSteps
from gateway.transports.carriers.dialect import (
    Asked,
    Audio,
    BadWebhook,
    CarrierEvent,
    Cleared,
    Encoding,
    Flow,
    Ignored,
    Key,
    MarkPlayed,
    Started,
    Stopped,
    Unauthentic,
)
from gateway.transports.phone.line import Ability, Incoming

PLAIN_START = (
    "MEDIA_START connection_id:e226e283-c90a-4ea9-9e37-389000b9ef47 channel:WebSocket/offhook-0x7f3c channel_id:1763.1 "
    "format:ulaw optimal_frame_size:160 ptime:20"
)
JSON_START = json.dumps(
    {
        "event": "MEDIA_START",
        "connection_id": "e226e283",
        "channel": "WebSocket/offhook-0x7f3c",
        "channel_id": "1763.1",
        "format": "slin16",
        "optimal_frame_size": 640,
        "ptime": 20,
        "channel_variables": {"OFFHOOK_AGENT": "sales", "OFFHOOK_CALLER": "+1555", "OFFHOOK_DIALLED": "+1666"},
    }
)


def started(start: str) -> ChanWebSocket:
    dialect = ChanWebSocket()
    assert isinstance(dialect.decode(start)[0], Started)
    return dialect


def one(dialect: ChanWebSocket, message: str | bytes) -> CarrierEvent:
    (event,) = dialect.decode(message)
    return event


def test_the_first_message_says_whose_call_it_is_and_its_format() -> None:
    assert ChanWebSocket().decode(PLAIN_START) == (
        Started(Incoming("asterisk", wire_id="WebSocket/offhook-0x7f3c"), Encoding.MULAW, 8_000),
    )
    assert ChanWebSocket().decode(JSON_START) == (
        Started(
            Incoming("asterisk", "sales", "+1666", "+1555", wire_id="WebSocket/offhook-0x7f3c"),
            Encoding.PCM16_LE,
            16_000,
        ),
    )


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_that_asterisk_frames_is_taken(name: str) -> None:
    (event,) = ChanWebSocket().decode(f"MEDIA_START connection_id:a format:{name} optimal_frame_size:160")
    assert isinstance(event, Started)
    assert (event.encoding, event.rate_hz) == FORMATS[name]


def test_a_format_that_only_passes_through_ends_the_stream_with_a_word() -> None:
    events = ChanWebSocket().decode("MEDIA_START connection_id:a format:opus optimal_frame_size:0")
    assert events == (Ignored("asterisk_format_unsupported"), Stopped("protocol_error"))


@pytest.mark.parametrize(
    ("plain", "as_json", "event"),
    [
        ("DTMF_END digit:5 channel_id:1.1", {"event": "DTMF_END", "digit": "5"}, Key("5")),
        ("DTMF_END digit:#", {"event": "DTMF_END", "digit": "#"}, Key("#")),
        ("DTMF_END digit:", {"event": "DTMF_END"}, Ignored("bad_key")),
        ("MEDIA_XOFF", {"event": "MEDIA_XOFF", "channel_id": "1.1"}, Flow(False)),
        ("MEDIA_XON", {"event": "MEDIA_XON", "channel_id": "1.1"}, Flow(True)),
        ("QUEUE_DRAINED", {"event": "QUEUE_DRAINED"}, Ignored("")),
        ("STATUS queue_length:43 xon_level:800", {"event": "STATUS", "queue_length": 43}, Ignored("")),
        ("ERROR channel_id:1.1 error_text:no", {"event": "ERROR", "error_text": "no"}, Ignored("asterisk_error")),
        ("MEDIA_MARK_PROCESSED 77", {"event": "MEDIA_MARK_PROCESSED", "correlation_id": "77"}, Ignored("unknown_mark")),
        ("SOMETHING_NEW a:b", {"event": "SOMETHING_NEW"}, Ignored("unknown_event")),
    ],
)
def test_both_forms_say_the_same(plain: str, as_json: dict[str, object], event: CarrierEvent) -> None:
    assert one(started(PLAIN_START), plain) == event
    assert one(started(JSON_START), json.dumps(as_json)) == event


def test_media_is_heard_once_it_began() -> None:
    assert one(ChanWebSocket(), bytes(160)) == Ignored("audio_before_start")
    assert one(started(PLAIN_START), b"\xff" * 160) == Audio(b"\xff" * 160)
    assert one(started(PLAIN_START), b"") == Ignored("bad_audio")
    assert one(started(PLAIN_START), PLAIN_START) == Ignored("second_start")


def test_a_mark_goes_out_by_a_short_name_and_comes_back_by_its_own() -> None:
    dialect = started(PLAIN_START)
    name = "a long name with spaces " * 5
    assert dialect.encode_mark(name) == ["MARK_MEDIA 1"]
    assert one(dialect, "MEDIA_MARK_PROCESSED 1") == MarkPlayed(name[:128])
    assert one(dialect, "MEDIA_MARK_PROCESSED 1") == Ignored("unknown_mark")
    dialect = started(JSON_START)
    (command,) = dialect.encode_mark("m")
    assert json.loads(command) == {"command": "MARK_MEDIA", "correlation_id": "1"}
    assert one(dialect, '{"event":"MEDIA_MARK_PROCESSED","correlation_id":"1"}') == MarkPlayed("m")


def test_commands_are_short_enough_for_asterisk() -> None:
    dialect = started(JSON_START)
    for number in range(600):
        for command in [*dialect.encode_mark(f"{'m' * 120}{number}"), *dialect.encode_clear()]:
            assert len(command) <= 128
    assert len(dialect._marks) <= 512


def test_a_flush_is_followed_by_a_mark_that_tells_it_was_done() -> None:
    dialect = started(PLAIN_START)
    assert dialect.encode_clear() == ["FLUSH_MEDIA", "MARK_MEDIA flushed1"]
    assert one(dialect, "MEDIA_MARK_PROCESSED flushed1") == Cleared()
    dialect = started(JSON_START)
    flush, mark = dialect.encode_clear()
    assert json.loads(flush) == {"command": "FLUSH_MEDIA"}
    assert one(dialect, json.dumps({"event": "MEDIA_MARK_PROCESSED", **json.loads(mark)})) == Cleared()


def test_audio_goes_out_in_whole_frames_of_the_size_that_asterisk_asked_for() -> None:
    dialect = started(PLAIN_START.replace("optimal_frame_size:160", "optimal_frame_size:240"))
    frame = np.full(160, 1_000, np.int16)
    sizes = [len(m) for _ in range(6) for m in dialect.encode_audio(frame)]
    assert sizes == [240, 240, 240, 240]
    dialect.encode_audio(frame)
    filled, mark = dialect.encode_mark("end")
    assert isinstance(filled, bytes)
    assert (len(filled), filled[160:], mark) == (240, b"\xff" * 80, "MARK_MEDIA 1")
    dialect.encode_audio(frame)
    dialect.encode_clear()
    assert dialect.encode_mark("nothing waits") == ["MARK_MEDIA 3"]


@pytest.mark.parametrize("size", ["0", "-5", "99999999", "nan", "x"])
def test_a_frame_size_that_makes_no_sense_is_20_ms(size: str) -> None:
    dialect = started(PLAIN_START.replace("optimal_frame_size:160", f"optimal_frame_size:{size}"))
    assert [len(m) for m in dialect.encode_audio(np.zeros(160, np.int16))] == [160]


def test_hanging_up_is_a_command_and_a_transfer_leaves_its_target_for_the_dialplan() -> None:
    assert started(PLAIN_START).hang_up().messages == ("HANGUP",)
    assert started(PLAIN_START).abilities == frozenset()
    steps = NextSteps(lambda: 0.0)
    dialect = ChanWebSocket(steps)
    dialect.decode(JSON_START)
    assert dialect.abilities == {Ability.TRANSFER}
    act = dialect.transfer("+15551234")
    assert (act.messages, act.request) == (('{"command":"HANGUP"}',), None)
    assert steps.take("WebSocket/offhook-0x7f3c") == "+15551234"


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300)))
def test_hostile_messages_are_ignored(message: str | bytes) -> None:
    for dialect in (ChanWebSocket(), started(PLAIN_START), started(JSON_START)):
        for event in dialect.decode(message):
            assert isinstance(event, Ignored | Audio | Flow | Key | Started | Stopped)


@pytest.mark.parametrize(
    "message",
    ["{" * 5_000, '{"event":' + "[" * 3_000, "MEDIA_START " + "a:b " * 5_000, '{"event":5}', "[]", "{}", " ", ""],
)
def test_odd_messages_are_ignored(message: str) -> None:
    assert all(isinstance(event, Ignored | Stopped) for event in ChanWebSocket().decode(message))


# --- who connects ---


def asterisk() -> Asterisk:
    return Asterisk(AsteriskSettings(enabled=True, password="0123456789abcdef"), lambda: 0.0)  # type: ignore[arg-type]


def asked(credentials: str | None) -> Asked:
    headers = {} if credentials is None else {"authorization": credentials}
    return Asked("wss://example.com/v1/carriers/asterisk/stream", headers)


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_the_name_and_the_password_open_the_stream() -> None:
    asterisk().check_upgrade(asked(basic("asterisk:0123456789abcdef")))


@pytest.mark.parametrize(
    ("credentials", "code"),
    [
        (None, "signature_missing"),
        ("Bearer 0123456789abcdef", "signature_missing"),
        ("Basic", "signature_missing"),
        ("Basic ~~~", "signature_invalid"),
        (basic("asterisk:wrong"), "signature_invalid"),
        (basic("someone:0123456789abcdef"), "signature_invalid"),
        (basic("asterisk:0123456789abcdef") + "x" * 2_000, "signature_invalid"),
        ("Basic " + base64.b64encode(b"\xff\xfe").decode(), "signature_invalid"),
    ],
)
def test_nothing_else_does(credentials: str | None, code: str) -> None:
    with pytest.raises(Unauthentic) as refused:
        asterisk().check_upgrade(asked(credentials))
    assert refused.value.code == code


def test_there_are_no_webhooks() -> None:
    with pytest.raises(Unauthentic):
        asterisk().check_webhook(asked(None))
    with pytest.raises(BadWebhook):
        asterisk().read_webhook(asked(None))
