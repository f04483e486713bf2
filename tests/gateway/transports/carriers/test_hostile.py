"""Messages that no carrier sends: the call stays up, and everything is counted."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.call import Call
from gateway.transports.carriers.dialect import CarrierEvent, Dialect, Message
from gateway.transports.carriers.plivo import PlivoDialect
from gateway.transports.carriers.telnyx import TelnyxDialect
from gateway.transports.carriers.twilio import TwilioDialect
from tests.gateway.transports.carriers import test_plivo_call, test_telnyx_call, test_twilio_call
from tests.gateway.transports.carriers.vendors import VENDORS, Vendor
from tests.virtual_time import virtual

EVERY = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
MARK = {
    "twilio": '{"event":"mark","mark":{"name":"%d"}}',
    "telnyx": '{"event":"mark","mark":{"name":"%d"}}',
    "plivo": '{"event":"playedStream","name":"%d"}',
}
HOSTILE: tuple[Message, ...] = (
    b"",
    b"\x00\xff" * 500,
    "",
    "null",
    "[]",
    '"media"',
    "{",
    "[" * 20_000,
    '{"event":' + "[" * 5_000 + "]" * 5_000 + "}",
    '{"event":null}',
    '{"event":{"a":1}}',
    '{"event":"media"}',
    '{"event":"media","media":null}',
    '{"event":"media","media":{"payload":"???"}}',
    '{"event":"media","media":{"payload":12}}',
    '{"event":"media","media":{"payload":"AAA"}}',
    '{"event":"media","media":{"payload":"","timestamp":"1e999","chunk":"-1e300"}}',
    '{"event":"media","media":{"payload":"AAAA","timestamp":"NaN","chunk":true}}',
    '{"event":"media","media":{"payload":"AAAA","timestamp":-5,"track":"outbound"}}',
    '{"event":"media","media":{"payload":"AAAA","track":[]}}',
    '{"event":"media","media":{"payload":"AAAA","track":{}}}',
    '{"event":"dtmf"}',
    '{"event":"dtmf","dtmf":{"digit":"12"}}',
    '{"event":"dtmf","dtmf":{"digit":"\\ud800"}}',
    '{"event":"dtmf","dtmf":{"digit":""}}',
    '{"event":"mark","mark":{"name":"' + "m" * 1_000 + '"}}',
    '{"event":"mark"}',
    '{"event":"playedStream"}',
    '{"event":"start"}',
    '{"event":"start","start":[]}',
    '{"event":"new thing","x":"' + "y" * 10_000 + '"}',
)


@EVERY
@virtual
async def test_a_call_survives_them_all(vendor: Vendor) -> None:
    async with vendor.called() as (rig, fake):
        await fake.hush(2_000)
        for message in HOSTILE:
            fake.send(message)
        fake.send("x" * 300_000)
        fake.send(b"x" * 300_000)
        for number in range(1_000):
            fake.send(MARK[vendor.name] % number)
        await fake.hush(200)
        assert rig.counted("carrier_message_too_large") == 2
        assert rig.counted("carrier_unknown_mark") == 1_000
        assert rig.counted("carrier_bad_json") >= 6
        assert rig.counted("carrier_binary_message") == 2
        assert rig.counted("carrier_unknown_event") >= 3
        assert rig.counted("carrier_bad_audio") >= 3
        assert rig.counted("carrier_bad_digit") == 3
        await fake.speak(800)
        await fake.until(lambda: rig.turns == 2)
    assert rig.causes == ["caller_hung_up"]


@EVERY
@virtual
async def test_before_its_start_a_stream_can_say_what_it_likes_but_not_for_long(vendor: Vendor) -> None:
    async with vendor.called() as (rig, fake):
        await fake.hush(100)
        path = await vendor.stream_path(rig)
        link = vendor.link(rig, path)
        assert await link.answered()
        for message in HOSTILE * 3:
            await link.send(message)
        with pytest.raises(Exception, match="1008 no_start"):
            await link.recv()
        await link.task


@EVERY
@virtual
async def test_audio_far_ahead_of_the_clock_is_dropped_and_does_not_stop_a_call(vendor: Vendor) -> None:
    async with vendor.called() as (rig, fake):
        await fake.hush(2_000)
        for number, samples in enumerate([8_000] * 100 + [16_001]):
            payload = base64.b64encode(b"\xff" * samples).decode()
            media = {"track": "inbound", "chunk": number + 1_000, "timestamp": number * 1_000, "payload": payload}
            fake.send(json.dumps({"event": "media", "media": media}))
        await fake.hush(3_000)
        call = rig.gateway.switchboard.find(rig.record.id)
        assert isinstance(call, Call)
        assert call.heard_samples / 16_000 < 11, "engines would be kept from other callers"
        assert rig.counted("carrier_audio_ahead") >= 95
        assert rig.counted("carrier_audio_too_long") == 1
        assert rig.record.cause is None


@EVERY
@virtual
async def test_a_carrier_that_says_far_too_much_is_hung_up(vendor: Vendor) -> None:
    async with vendor.called() as (rig, fake):
        await fake.hush(2_000)
        for _ in range(6_000):
            fake.send('{"event":"new thing"}')
        closed = await fake.over()
        assert (closed.code, closed.reason) == (1000, "peer_flooding")
        assert rig.causes == ["peer_flooding"]


def _started(kind: type[Any]) -> Dialect:
    dialect: Dialect
    if kind is PlivoDialect:
        dialect, start = PlivoDialect(lambda reply: ""), test_plivo_call.START
    elif kind is TelnyxDialect:
        dialect, start = TelnyxDialect(), test_telnyx_call.START
    else:
        dialect, start = TwilioDialect(), test_twilio_call.START
    dialect.decode(start)
    return dialect


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["inbound", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.dictionaries(
    st.sampled_from(
        "start media dtmf mark stop name digit payload timestamp chunk track streamSid callSid callId streamId "
        "mediaFormat media_format encoding sampleRate sample_rate extra_headers customParameters".split()
    ),
    JSON | st.dictionaries(st.sampled_from("payload chunk timestamp digit name track".split()), JSON, max_size=4),
    max_size=4,
)
EVENT = st.sampled_from("start media dtmf mark stop playedStream clearedAudio error connected".split())


@pytest.mark.parametrize("kind", [TwilioDialect, TelnyxDialect, PlivoDialect])
@given(EVENT, FIELDS, st.booleans())
def test_no_message_breaks_a_dialect(kind: type[Any], event: str, fields: dict[str, Any], started: bool) -> None:
    dialect = _started(kind) if started else (kind(lambda reply: "") if kind is PlivoDialect else kind())
    events: tuple[CarrierEvent, ...] = dialect.decode(json.dumps({"event": event, **fields}))
    assert isinstance(events, tuple)


@pytest.mark.parametrize("kind", [TwilioDialect, TelnyxDialect, PlivoDialect])
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_bytes_break_a_dialect(kind: type[Any], message: Message) -> None:
    _started(kind).decode(message)
