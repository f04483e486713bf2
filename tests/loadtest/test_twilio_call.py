"""Short real calls to a scripted Twilio-side server on loopback."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools

import pytest

from loadtest import script
from loadtest.call import CallPlan, CallTape, EndCause, PhoneOptions
from loadtest.command import CallOptions, Press, Say, place_call
from loadtest.measure import voiced_spans
from loadtest.placing import place_planned_call
from loadtest.script import Interrupt, conversation
from tests.loadtest.test_sip_call import QUICK, RATE_HZ, line
from tests.loadtest.twilio_server import Script, Seen, twilio_server


async def call(script: Script, *turns: script.Say | script.Press | Interrupt, **plan: object) -> tuple[CallTape, Seen]:
    async with twilio_server(script) as (url, seen):
        tape = await place_planned_call(CallPlan(url, conversation(turns), patience=QUICK, rate_hz=RATE_HZ, **plan))  # type: ignore[arg-type]
    return tape, seen


async def test_one_turn_is_recorded_on_both_sides() -> None:
    tape, seen = await call(Script(), line())
    assert (tape.end_cause, tape.problem, tape.log.errors) == (EndCause.HANGUP, None, [])
    (mark,) = tape.marks
    caller, agent = voiced_spans(tape.caller, RATE_HZ), voiced_spans(tape.agent, RATE_HZ)
    assert (caller[0].start, caller[0].end) == (mark.start, mark.end)
    (answer,) = agent
    assert answer.end - answer.start == pytest.approx(0.4 * RATE_HZ, abs=0.01 * RATE_HZ)
    assert answer.start - mark.end >= 0.2 * RATE_HZ
    assert tape.log.call_id == seen.of("start")[0]["start"]["callSid"]
    assert tape.setup is not None
    assert None not in (tape.setup.answered_ms, tape.setup.first_audio_ms)
    assert tape.buffer is not None
    assert (tape.buffer.received_ms, tape.buffer.marks_returned, tape.buffer.dropped_ms) == (400, 2, 0)


async def test_what_is_sent_is_what_twilio_documents() -> None:
    tape, seen = await call(Script(), line(), agent="sales", phone=PhoneOptions(caller="+1555", parameters={"a": "b"}))
    assert [message["event"] for message in seen.messages[:3]] == ["connected", "start", "media"]
    assert seen.messages[-1]["event"] == "stop"
    assert seen.messages[0] == {"event": "connected", "protocol": "Call", "version": "1.0.0"}
    start = seen.messages[1]
    assert start["start"]["customParameters"] == {"a": "b", "agent": "sales", "from": "+1555"}
    assert start["start"]["mediaFormat"] == {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
    assert start["start"]["tracks"] == ["inbound"]
    assert start["streamSid"] == start["start"]["streamSid"]
    numbered = seen.messages[1:]
    assert [message["sequenceNumber"] for message in numbered] == [str(n) for n in range(1, len(numbered) + 1)]
    assert {message["streamSid"] for message in numbered} == {start["streamSid"]}
    media = [message["media"] for message in seen.of("media")]
    assert [message["chunk"] for message in media] == [str(n + 1) for n in range(len(media))]
    stamps = [int(message["timestamp"]) for message in media]
    steps = [b - a for a, b in itertools.pairwise(stamps)]
    assert stamps[0] == 0
    assert all(step > 0 and step % 20 == 0 for step in steps)
    assert sum(step // 20 - 1 for step in steps) == len(tape.skipped_slots)  # time goes on meanwhile
    assert {m["track"] for m in media} == {"inbound"}
    assert {len(base64.b64decode(m["payload"])) for m in media} == {160}


@pytest.mark.parametrize("public", [None, "wss://voice.example.com/v1/carriers/twilio/stream"])
async def test_the_upgrade_is_signed_over_its_url(public: str | None) -> None:
    async with twilio_server(Script()) as (url, seen):
        phone = PhoneOptions(auth_token="secret", signed_url=public)
        await place_planned_call(CallPlan(url, (), patience=QUICK, rate_hz=RATE_HZ, phone=phone))
    signed = public or url.removeprefix("twilio+")
    expected = base64.b64encode(hmac.new(b"secret", signed.encode(), hashlib.sha1).digest()).decode()
    assert seen.signatures == [expected]


async def test_without_a_token_nothing_is_signed() -> None:
    _, seen = await call(Script())
    assert seen.signatures == [None]
    assert seen.paths == ["/v1/carriers/twilio/stream"]


async def test_marks_come_back_as_their_audio_has_been_heard() -> None:
    tape, seen = await call(Script(replies=(600,)), line())
    assert [message["mark"]["name"] for message in seen.of("mark")] == ["m1", "m2", "m3"]
    chunks = [0]
    for message in seen.messages:
        if message["event"] == "media":
            chunks[-1] += 1
        elif message["event"] == "mark":
            chunks.append(0)
    fewest = 8 - len(tape.skipped_slots)
    assert all(fewest <= between <= 12 for between in chunks[1:-1])  # 200 ms lie between two marks
    (answer,) = voiced_spans(tape.agent, RATE_HZ)
    heard_ms = answer.start * 1000 / RATE_HZ + 200
    assert chunks[0] * 20 == pytest.approx(heard_ms, abs=45 + 20 * len(tape.skipped_slots))


async def test_an_interruption_empties_the_buffer_and_returns_its_marks() -> None:
    tape, seen = await call(Script(replies=(4_000, 200)), line(), line("stop", 400, barge_in_after_ms=300))
    second = tape.marks[1]
    cut, answer = voiced_spans(tape.agent, RATE_HZ)
    assert 100 <= (cut.end - second.start) * 1000 / RATE_HZ <= 400
    assert answer.start > second.end
    assert tape.buffer is not None
    assert tape.buffer.clears == 2  # the scripted agent clears at every onset
    assert tape.buffer.cleared_ms >= 3_000
    assert [message["mark"]["name"] for message in seen.of("mark")] == [f"m{n}" for n in range(1, 22)]


async def test_keys_are_events_beside_the_audio() -> None:
    tape, seen = await call(Script(), script.Press("1#"))
    assert [message["dtmf"] for message in seen.of("dtmf")] == [
        {"track": "inbound_track", "digit": "1"},
        {"track": "inbound_track", "digit": "#"},
    ]
    assert tape.marks[0].keys
    kinds = [message["event"] for message in seen.messages]
    first = kinds.index("dtmf")
    assert kinds[first : kinds.index("dtmf", first + 1)].count("media") == 10  # 200 ms from key to key


async def test_the_agent_may_hang_up_and_gets_no_stop() -> None:
    tape, seen = await call(Script(close_after_mark=1000), line(), line(), line())
    assert tape.end_cause is EndCause.AGENT_HANGUP
    assert seen.of("stop") == []


async def test_a_server_that_fails_is_a_lost_connection() -> None:
    tape, _ = await call(Script(close_after_mark=1011), line(), line(), line())
    assert tape.end_cause is EndCause.CONNECTION_LOST
    assert "1011" in (tape.problem or "")


@pytest.mark.parametrize(("status", "cause"), [(403, EndCause.FORBIDDEN), (503, EndCause.BUSY)])
async def test_refusals_are_told_apart(status: int, cause: EndCause) -> None:
    tape, _ = await call(Script(status=status))
    assert (tape.end_cause, tape.setup_ms) == (cause, None)


@pytest.mark.parametrize(
    ("code", "cause"), [(1000, EndCause.BUSY), (1013, EndCause.BUSY), (1011, EndCause.CONNECTION_LOST)]
)
async def test_a_stream_that_is_closed_at_once_never_came_about(code: int, cause: EndCause) -> None:
    tape, _ = await call(Script(close_at_once=code), line())
    assert (tape.end_cause, tape.setup_ms) == (cause, None)
    assert tape.problem is not None


async def test_what_twilio_would_not_take_is_noted_and_survived() -> None:
    raw = (
        "{",
        '{"event":"media","streamSid":"MZ0","media":{"payload":"//8="}}',
        '{"event":"media","streamSid":"SID","media":{"payload":"!"}}',
        '{"event":"media","streamSid":"SID"}',
        '{"event":"mark","streamSid":"SID","mark":{}}',
        '{"event":"sing","streamSid":"SID"}',
    )
    tape, _ = await call(Script(raw=raw), line())
    assert tape.end_cause is EndCause.HANGUP
    assert [error.split(":")[0] for error in tape.log.errors] == [
        "malformed message",
        "media",
        "media",
        "media",
        "mark",
        "sing",
    ]
    assert len(voiced_spans(tape.agent, RATE_HZ)) == 1


async def test_ctrl_c_says_stop() -> None:
    async with twilio_server(Script()) as (url, seen):
        calling = asyncio.create_task(place_planned_call(CallPlan(url, conversation([line()]), rate_hz=RATE_HZ)))
        while len(seen.of("media")) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert len(seen.of("stop")) == 1


async def test_a_report_of_a_stream() -> None:
    async with twilio_server(Script(replies=(400, 300), greeting_ms=200)) as (url, _):
        report = await place_call(CallOptions(url, (Say("Stop."), Press("12")), patience=QUICK))
    assert (report.transport, report.answered, report.errors) == ("twilio", True, [])
    assert report.called == url.removeprefix("twilio+")
    assert report.greeting is not None
    assert report.buffer is not None
    assert report.media is None
    assert [turn.pressed_keys for turn in report.turns] == [None, "12"]
