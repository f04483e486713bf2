"""What webhooks are answered with, to the byte."""

from __future__ import annotations

import pytest

from gateway.carrier_settings import PlivoSettings, TelnyxSettings, TwilioSettings
from gateway.transports.carriers.dialect import Asked, Carrier, StreamTo
from gateway.transports.carriers.plivo import Plivo
from gateway.transports.carriers.telnyx import Telnyx
from gateway.transports.carriers.twilio import Twilio
from gateway.transports.phone.line import Incoming

HEAD = b'<?xml version="1.0" encoding="UTF-8"?>\n<Response>'
TAIL = b"</Response>\n"
URL = "wss://voice.example.com/v1/carriers/x/stream/TICKET"
CARRIERS: list[Carrier] = [
    Twilio(TwilioSettings()),
    Telnyx(TelnyxSettings(), lambda: 0.0),
    Plivo(PlivoSettings(), lambda: 0.0),
]
CONNECT = {
    "twilio": b'<Connect><Stream url="%s"/></Connect>',
    "telnyx": b'<Connect><Stream url="%s" track="inbound_track" codec="PCMU" bidirectionalMode="rtp" '
    b'bidirectionalCodec="PCMU"></Stream></Connect>',
    "plivo": b'<Stream bidirectional="true" keepCallAlive="true" audioTrack="inbound" '
    b'contentType="audio/x-mulaw;rate=8000">%s</Stream>',
}
BUSY = {"twilio": b'<Reject reason="busy"/>', "telnyx": b'<Reject reason="busy"/>', "plivo": b'<Hangup reason="busy"/>'}
NOBODY = {"twilio": b"<Reject/>", "telnyx": b"<Reject/>", "plivo": b'<Hangup reason="rejected"/>'}


def asked(**fields: str) -> Asked:
    return Asked("https://voice.example.com/", {}, form=tuple(fields.items()))


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: carrier.name)
def test_answers(carrier: Carrier) -> None:
    incoming = Incoming(carrier.name, "sales", "+1", "+2", "id")
    question = asked(CallSid="CA1", CallUUID="1")
    reply = carrier.connect(question, StreamTo(URL, incoming))
    assert reply.body == HEAD + CONNECT[carrier.name] % URL.encode() + TAIL
    assert (reply.media_type, reply.status, reply.request) == ("text/xml", 200, None)
    assert carrier.refuse(question, busy=True).body == HEAD + BUSY[carrier.name] + TAIL
    assert carrier.refuse(question, busy=False).body == HEAD + NOBODY[carrier.name] + TAIL
    nasty = carrier.connect(question, StreamTo('wss://x/"><Hangup/>&', incoming))
    assert b"<Hangup/>" not in nasty.body


def test_a_stream_of_our_texml_is_told_whose_it_is() -> None:
    question = asked(CallSid="v3:x", AccountSid="61bf923e-5e4d")
    reply = CARRIERS[1].connect(question, StreamTo(URL, Incoming("telnyx", "sales", "+1", "+2", "v3:x")))
    assert b'<Parameter name="texml_account" value="61bf923e-5e4d"/></Stream>' in reply.body


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda carrier: carrier.name)
def test_who_calls_whom(carrier: Carrier) -> None:
    call = {"CallSid": "CA1", "CallUUID": "u1", "From": "+15550001", "To": "+15550002"}
    incoming = carrier.read_webhook(asked(**call))
    assert incoming is not None
    assert (incoming.transport, incoming.caller, incoming.dialled) == (carrier.name, "+15550001", "+15550002")
    assert incoming.wire_id in {"CA1", "u1"}
    assert carrier.read_webhook(asked(**call, CallStatus="completed")) is None, "the call is over"
    hidden = carrier.read_webhook(asked(**{**call, "From": "x" * 500, "To": "a\nb"}))
    assert hidden is not None
    assert (hidden.caller, hidden.dialled) == ("", "")


@pytest.mark.parametrize(("carrier", "word"), [(CARRIERS[0], "outbound-api"), (CARRIERS[2], "outbound")])
def test_who_was_called_by_us_is_who_speaks(carrier: Carrier, word: str) -> None:
    call = {"CallSid": "CA1", "CallUUID": "u1", "From": "+15550002", "To": "+15550001", "Direction": word}
    incoming = carrier.read_webhook(asked(**call))
    assert incoming is not None
    assert (incoming.caller, incoming.dialled) == ("+15550001", "+15550002")
