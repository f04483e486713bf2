"""Short real calls over WebRTC to a scripted server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest

from loadtest import webrtc_call, webrtc_signalling
from loadtest.call import CALL_RATE_HZ, CallPlan, CallTape, EndCause
from loadtest.measure import voiced_spans
from loadtest.placing import place_planned_call
from loadtest.script import Interrupt, Pause, Say, Vanish, conversation
from tests.listening import listening
from tests.loadtest.realtime_server import Script
from tests.loadtest.test_websocket_call import QUICK, line
from tests.loadtest.webrtc_server import Faults, Heard, webrtc_server


async def call(
    script: Script, *turns: Say | Interrupt, faults: Faults | None = None, **plan: object
) -> tuple[CallTape, Heard]:
    async with webrtc_server(script, faults) as (url, heard):
        tape = await place_planned_call(CallPlan(url, conversation(turns), patience=QUICK, **plan))  # type: ignore[arg-type]
    return tape, heard


async def test_one_turn_is_recorded_on_both_sides_with_its_texts() -> None:
    tape, heard = await call(Script(replies=(400,)), line("hello"), agent="front desk", key="secret")
    assert (tape.end_cause, tape.problem, tape.log.errors) == (EndCause.HANGUP, None, [])
    assert len(tape.caller) == len(tape.agent)
    (mark,) = tape.marks
    caller, agent = voiced_spans(tape.caller, CALL_RATE_HZ), voiced_spans(tape.agent, CALL_RATE_HZ)
    assert (caller[0].start, caller[0].end) == (mark.start, mark.end)
    (answer,) = agent
    assert answer.end - answer.start == pytest.approx(0.4 * CALL_RATE_HZ, abs=0.04 * CALL_RATE_HZ)
    assert answer.start - caller[0].end >= 0.24 * CALL_RATE_HZ  # 200 ms of silence, then this caller's buffer
    assert tape.log.call_id == "sess_1"
    assert tape.log.heard_text(0) == "utterance 0"
    assert tape.log.agent_transcript(0) == "answer 0"
    assert heard.loud_frames >= 10
    (method, target, headers, body), (hangup, path, hangup_headers, _) = heard.requests
    assert (method, target) == ("POST", "/v1/realtime/calls?agent=front+desk")
    assert (headers["authorization"], headers["content-type"]) == ("Bearer secret", "application/sdp")
    assert body.startswith("v=0")
    assert (hangup, path) == ("POST", "/v1/realtime/calls/rtc_1/hangup")
    assert hangup_headers["authorization"] == "Bearer secret"
    (update,) = heard.events
    assert update["session"] == {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}


async def test_setup_and_media_are_told_apart() -> None:
    tape, _ = await call(Script(greeting_ms=300, replies=(200,)), line("hello"))
    assert tape.setup is not None
    assert tape.setup_ms is not None
    steps = [tape.setup.answered_ms, tape.setup.connected_ms, tape.setup.channel_open_ms, tape.setup_ms]
    assert None not in steps
    assert steps == sorted(steps, key=lambda at: at or 0)
    assert tape.setup.first_audio_ms is not None
    assert tape.media is not None
    assert tape.media.packets_received > 20
    assert (tape.media.packets_lost, tape.media.packets_duplicate) == (0, 0)
    greeting, answer = voiced_spans(tape.agent, CALL_RATE_HZ)
    assert greeting.end < tape.marks[0].start < answer.start


async def test_a_barge_in_is_the_servers_to_carry_out() -> None:
    tape, heard = await call(Script(replies=(5_000, 200)), line("hello"), line("stop", 400, barge_in_after_ms=300))
    first, second = tape.marks
    assert (first.kind, second.kind) == ("say", "interrupt")
    cut, answer = voiced_spans(tape.agent, CALL_RATE_HZ)
    assert cut.start < second.start < cut.end < answer.start
    assert [event["type"] for event in heard.events] == ["session.update"]


async def test_a_client_secret_opens_the_call_in_the_keys_place() -> None:
    _, heard = await call(Script(replies=(200,)), line("hello"), key="secret", agent="desk", ephemeral=True)
    (_, bought, headers, body), (_, called, call_headers, _), (_, _, hangup_headers, _) = heard.requests
    assert bought == "/v1/realtime/client_secrets"
    assert headers["authorization"] == "Bearer secret"
    assert json.loads(body) == {"session": {"type": "realtime"}, "agent": "desk"}
    assert called == "/v1/realtime/calls?agent=desk"
    assert call_headers["authorization"] == hangup_headers["authorization"] == "Bearer ek_1"


async def test_an_older_server_is_told_by_delete() -> None:
    tape, heard = await call(Script(replies=(200,)), line("hello"), faults=Faults(hangup_status=404))
    assert tape.end_cause is EndCause.HANGUP
    assert [(method, target) for method, target, _, _ in heard.requests[-2:]] == [
        ("POST", "/v1/realtime/calls/rtc_1/hangup"),
        ("DELETE", "/v1/realtime/calls/rtc_1"),
    ]


async def test_a_hang_up_that_fails_is_told() -> None:
    tape, _ = await call(Script(replies=(200,)), line("hello"), faults=Faults(hangup_status=500))
    assert (tape.end_cause, tape.log.errors) == (EndCause.HANGUP, ["hang-up: 500"])


async def test_the_key_is_shown_to_the_server_that_was_called_alone() -> None:
    tape, heard = await call(
        Script(replies=(200,)), line("hello"), key="secret", faults=Faults(location="http://elsewhere.invalid/x")
    )
    assert tape.end_cause is EndCause.HANGUP
    assert len(heard.requests) == 1


async def test_a_key_beyond_ascii_goes_out_as_utf8() -> None:
    tape, heard = await call(Script(replies=(200,)), line("hello"), key="ключ")
    assert tape.end_cause is EndCause.HANGUP
    assert [headers["authorization"] for _, _, headers, _ in heard.requests] == ["Bearer ключ"] * 2


@pytest.mark.parametrize("when", ["ringing", "talking"])
async def test_a_caller_who_is_interrupted_hangs_up(when: str) -> None:
    async with webrtc_server(Script(replies=(5_000,)), Faults(silent_channel=when == "ringing")) as (url, heard):
        calling = asyncio.create_task(place_planned_call(CallPlan(url, conversation([line("hello")]))))
        async with asyncio.timeout(20):
            while not (heard.offers if when == "ringing" else heard.frames):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if when == "ringing":
            await asyncio.sleep(0.2)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert heard.requests[-1][1].endswith("/hangup")


async def test_a_server_that_answers_a_byte_at_a_time_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 100000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"v")
                await writer.drain()
                await asyncio.sleep(0.02)

    monkeypatch.setattr(webrtc_signalling, "_ANSWER_S", 0.3)
    async with listening(drip) as port:
        tape = await place_planned_call(CallPlan(f"http://127.0.0.1:{port}", conversation([line("hello")])))
    assert tape.end_cause is EndCause.REFUSED
    assert tape.problem is not None
    assert "TimeoutError" in tape.problem


async def test_the_agent_may_hang_up() -> None:
    turns = (line("hello"), line("more"), line("and more"))
    tape, heard = await call(Script(replies=(200,), close_after_reply=1000), *turns)
    assert tape.end_cause is EndCause.AGENT_HANGUP
    assert len(tape.marks) < 3
    assert len(heard.requests) == 1  # there is nothing left to hang up


async def test_the_time_limit_hangs_up() -> None:
    tape, heard = await call(Script(replies=(3_000,)), line("hello"), max_seconds=1.5)
    assert tape.end_cause is EndCause.TIME_LIMIT
    assert len(tape.caller) == 1.5 * CALL_RATE_HZ
    assert heard.requests[-1][1].endswith("/hangup")


@pytest.mark.parametrize(
    ("status", "key", "cause", "words"),
    [
        (401, None, EndCause.UNAUTHORIZED, "a key is needed"),
        (401, "wrong", EndCause.UNAUTHORIZED, "not accepted"),
        (403, None, EndCause.FORBIDDEN, "not allowed"),
        (404, None, EndCause.NOT_FOUND, "odd: because"),
        (503, None, EndCause.BUSY, "busy"),
        (415, None, EndCause.REFUSED, "415"),
    ],
)
async def test_refusals_are_told_apart(status: int, key: str | None, cause: EndCause, words: str) -> None:
    faults = Faults(status=status, body='{"error":{"code":"odd","message":"because of the script"}}')
    tape, _ = await call(Script(), line("hello"), faults=faults, agent="nobody", key=key)
    assert tape.end_cause is cause
    assert tape.problem is not None
    assert words in tape.problem
    assert "odd: because of the script" in tape.problem
    assert tape.setup_ms is None


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        tape = await place_planned_call(CallPlan(url, conversation([line("hello")])))
    assert tape.end_cause is EndCause.REFUSED
    assert tape.problem is not None
    assert f"{url}/v1/realtime/calls" in tape.problem


@pytest.mark.parametrize("answer", ["<html>", "v=0\r\nnonsense", "v=0\r\no=- 1 1 IN IP4 0\r\ns=-\r\nt=0 0\r\n"])
async def test_an_answer_that_is_none(answer: str) -> None:
    tape, _ = await call(Script(), line("hello"), faults=Faults(answer=lambda sdp: answer))
    assert tape.end_cause is EndCause.NO_SESSION
    assert tape.problem is not None
    assert "SDP" in tape.problem


async def test_media_that_never_connects_says_where_the_server_was_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(sdp: str) -> str:
        kept = [line for line in sdp.splitlines() if not line.startswith("a=candidate")]
        index = kept.index("a=end-of-candidates")
        kept.insert(index, "a=candidate:1 1 udp 2130706431 127.0.0.1 9 typ host")
        return "\r\n".join(kept) + "\r\n"

    monkeypatch.setattr(webrtc_call, "_CONNECT_S", 0.3)
    tape, heard = await call(Script(), line("hello"), faults=Faults(answer=elsewhere))
    assert tape.end_cause is EndCause.NO_MEDIA
    assert tape.problem is not None
    assert "127.0.0.1:9" in tape.problem
    assert heard.requests[-1][1].endswith("/hangup")


async def test_a_server_of_something_else_is_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    tape, _ = await call(Script(first_event="welcome"), line("hello"))
    assert tape.end_cause is EndCause.NO_SESSION
    assert tape.problem is not None
    assert "welcome" in tape.problem
    monkeypatch.setattr(webrtc_call, "_CONNECT_S", 0.5)
    silent, _ = await call(Script(), line("hello"), faults=Faults(silent_channel=True))
    assert silent.end_cause is EndCause.NO_SESSION


async def test_a_server_that_ends_the_call_at_once_is_no_session() -> None:
    tape, heard = await call(Script(), line("hello"), faults=Faults(close_at_once=True))
    assert tape.end_cause is EndCause.NO_SESSION
    assert tape.problem == "the server ended the call before its session began"
    assert len(heard.requests) == 1


async def test_bad_events_are_noted_and_survived() -> None:
    raw = ("{", "[]", json.dumps({"type": "something.new", "delta": "x"}))
    tape, _ = await call(Script(replies=(200,), raw=raw), line("hello"))
    assert tape.end_cause is EndCause.HANGUP
    assert [error.split(":")[0] for error in tape.log.errors] == ["malformed event", "malformed event"]


async def test_who_vanishes_says_no_goodbye() -> None:
    async with webrtc_server(Script(greeting_ms=2_000), None) as (url, heard):
        tape = await place_planned_call(CallPlan(url, (Pause(200), Vanish()), linger_s=0.2))
        frames = heard.frames
        await asyncio.sleep(0.1)
        assert heard.frames == frames
    assert tape.end_cause is EndCause.VANISHED
    assert [method for method, *_ in heard.requests] == ["POST"]
