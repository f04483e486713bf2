"""Short real calls to a scripted server on loopback."""

from __future__ import annotations

import json
import socket

import numpy as np
import pytest

from loadtest import websocket_call
from loadtest.call import CALL_RATE_HZ, CallPlan, CallTape, EndCause
from loadtest.measure import voiced_spans
from loadtest.placing import place_planned_call
from loadtest.script import Interrupt, Line, Patience, Say, conversation
from tests.loadtest.realtime_server import Script, Seen, realtime_server
from tests.loadtest.tapes import sent

QUICK = Patience(greeting_ms=200, answer_ms=800, pause_ms=120, stalled_ms=800, agent_turn_ms=3_000)


def line(text: str, ms: int = 300, barge_in_after_ms: float | None = None) -> Say | Interrupt:
    wave = 6_000 * np.sin(2 * np.pi * 200 * np.arange(CALL_RATE_HZ * ms // 1000) / CALL_RATE_HZ)
    said = Line(text, wave.astype(np.int16), float(ms))
    return Say(said) if barge_in_after_ms is None else Interrupt(said, barge_in_after_ms)


async def call(script: Script, *turns: Say | Interrupt, **plan: object) -> tuple[CallTape, Seen]:
    async with realtime_server(script) as (url, seen):
        tape = await place_planned_call(CallPlan(url, conversation(turns), patience=QUICK, **plan))  # type: ignore[arg-type]
    return tape, seen


async def test_one_turn_is_recorded_on_both_sides_with_its_texts() -> None:
    tape, _ = await call(Script(replies=(400,)), line("hello"))
    assert tape.end_cause is EndCause.HANGUP
    assert tape.problem is None
    assert tape.setup_ms is not None
    assert len(tape.caller) == len(tape.agent)
    (mark,) = tape.marks
    caller, agent = voiced_spans(tape.caller, CALL_RATE_HZ), voiced_spans(tape.agent, CALL_RATE_HZ)
    assert (caller[0].start, caller[0].end) == (mark.start, mark.end)
    assert len(agent) == 1
    assert agent[0].end - agent[0].start == pytest.approx(0.4 * CALL_RATE_HZ, abs=0.01 * CALL_RATE_HZ)
    # 200 ms of silence, then the prebuffer: no caller could have heard it sooner
    assert agent[0].start - caller[0].end >= 0.26 * CALL_RATE_HZ
    assert tape.log.call_id == "sess_1"
    assert tape.log.heard_text(0) == "utterance 0"
    assert tape.log.agent_transcript(0) == "answer 0"
    assert tape.log.errors == []


async def test_the_microphone_sends_every_frame_in_order_silence_included() -> None:
    tape, seen = await call(Script(replies=(200,)), line("hello"))
    came, recorded = np.frombuffer(bytes(seen.audio), dtype="<i2"), sent(tape)
    assert len(came) >= len(recorded) - 3 * CALL_RATE_HZ // 50
    assert np.array_equal(came[: len(recorded)], recorded[: len(came)])


async def test_only_what_must_be_set_is_set() -> None:
    _, seen = await call(Script(), line("hello"), agent="front desk", key="secret")
    assert seen.paths == ["/v1/realtime?agent=front+desk"]
    assert seen.authorization == ["Bearer secret"]
    (update,) = seen.events
    audio = update["session"]["audio"]
    assert update["session"].keys() == {"type", "audio"}
    assert audio["input"].keys() == {"format", "transcription"}
    assert audio["output"].keys() == {"format"}


async def test_a_greeting_is_waited_for_and_is_no_answer() -> None:
    tape, _ = await call(Script(greeting_ms=500, replies=(200,)), line("hello"))
    greeting, answer = voiced_spans(tape.agent, CALL_RATE_HZ)
    assert greeting.end < tape.marks[0].start < answer.start
    assert tape.log.agent_transcript(-1) == "greeting"
    assert tape.log.agent_transcript(0) == "answer 0"


async def test_a_barge_in_flushes_the_buffer_and_tells_what_was_heard() -> None:
    script = Script(replies=(5_000, 200))
    tape, seen = await call(script, line("hello"), line("stop", 400, barge_in_after_ms=300))
    first, second = tape.marks
    assert (first.kind, second.kind) == ("say", "interrupt")
    cut, answer = voiced_spans(tape.agent, CALL_RATE_HZ)
    stop_ms = (cut.end - second.start) * 1000 / CALL_RATE_HZ
    assert 100 <= stop_ms <= 400  # the server notices after 100 ms of sound
    assert answer.start > second.end
    truncates = [event for event in seen.events if event["type"] == "conversation.item.truncate"]
    heard_ms = (cut.end - cut.start) * 1000 / CALL_RATE_HZ
    (truncate,) = truncates
    assert truncate["item_id"] == "item_answer 0"
    assert truncate["audio_end_ms"] == pytest.approx(heard_ms, abs=10)
    assert tape.log.agent_transcript(0) == "answer 0"
    assert tape.log.heard_text(1) == "utterance 1"


async def test_a_hole_in_a_reply_is_late_frames() -> None:
    tape, _ = await call(Script(replies=(200,), reply_gap_ms=400), line("hello"))
    assert len(tape.late_slots) >= 10
    start = tape.late_slots[0] * CALL_RATE_HZ // 50
    assert start > tape.marks[0].end


async def test_no_answer_and_no_transcript_end_the_call_all_the_same() -> None:
    tape, _ = await call(Script(deaf=True), line("hello"))
    assert tape.end_cause is EndCause.HANGUP
    assert not tape.agent.any()
    assert tape.log.heard_text(0) is None
    assert tape.log.agent_transcript(0) is None


async def test_the_time_limit_hangs_up() -> None:
    tape, _ = await call(Script(replies=(60_000,)), line("hello"), max_seconds=1.5)
    assert tape.end_cause is EndCause.TIME_LIMIT
    assert len(tape.caller) == 1.5 * CALL_RATE_HZ


async def test_the_agent_may_hang_up() -> None:
    turns = (line("hello"), line("more"), line("and more"))
    tape, _ = await call(Script(replies=(400,), close_after_reply=1000), *turns)
    assert tape.end_cause is EndCause.AGENT_HANGUP
    assert len(tape.marks) < 3
    assert voiced_spans(tape.agent, CALL_RATE_HZ)


async def test_a_server_that_fails_is_a_lost_connection() -> None:
    tape, _ = await call(Script(replies=(400,), close_after_reply=1011), line("hello"), line("more"), line("more"))
    assert tape.end_cause is EndCause.CONNECTION_LOST
    assert tape.problem is not None
    assert "1011" in tape.problem


@pytest.mark.parametrize(
    ("status", "key", "cause", "words"),
    [
        (401, None, EndCause.UNAUTHORIZED, "a key is needed"),
        (401, "wrong", EndCause.UNAUTHORIZED, "not accepted"),
        (403, None, EndCause.FORBIDDEN, "not allowed"),
        (404, None, EndCause.NOT_FOUND, "no agent named nobody"),
        (503, None, EndCause.BUSY, "busy"),
        (500, None, EndCause.REFUSED, "500"),
    ],
)
async def test_refusals_are_told_apart(status: int, key: str | None, cause: EndCause, words: str) -> None:
    tape, _ = await call(Script(status=status), line("hello"), agent="nobody", key=key)
    assert tape.end_cause is cause
    assert tape.problem is not None
    assert words in tape.problem
    assert "because of the script" in tape.problem
    assert tape.setup_ms is None


async def test_close_1013_is_busy() -> None:
    tape, _ = await call(Script(close_at_once=(1013, "all lines taken")), line("hello"))
    assert tape.end_cause is EndCause.BUSY
    assert tape.problem == "the gateway is busy: all lines taken"


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}/v1/realtime"
        tape = await place_planned_call(CallPlan(url, conversation([line("hello")])))
    assert tape.end_cause is EndCause.REFUSED
    assert tape.problem is not None
    assert url in tape.problem


async def test_a_server_of_something_else_is_no_session() -> None:
    tape, _ = await call(Script(first_event="welcome"), line("hello"))
    assert tape.end_cause is EndCause.NO_SESSION
    assert tape.problem is not None
    assert "welcome" in tape.problem


async def test_bad_events_are_noted_and_survived() -> None:
    audio = {"type": "response.output_audio.delta", "item_id": "x", "response_id": "y"}
    raw = (
        "{",
        "[]",
        json.dumps({"type": "something.new", "delta": "x"}),
        json.dumps({**audio, "delta": "not base64!"}),
        json.dumps({**audio, "delta": "AAAA"}),
        json.dumps({"type": "error", "error": {"type": "invalid_request_error", "code": "odd", "message": "so"}}),
    )
    tape, _ = await call(Script(replies=(200,), raw=raw), line("hello"))
    assert tape.end_cause is EndCause.HANGUP
    assert tape.log.agent_transcript(0) == "answer 0"
    kinds = [error.split(":")[0] for error in tape.log.errors]
    assert kinds == ["malformed event", "malformed event", "malformed audio delta", "malformed audio delta", "odd"]


async def test_a_server_that_says_nothing_is_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_call, "_FIRST_EVENT_S", 0.1)
    tape, _ = await call(Script(mute=True), line("hello"))
    assert tape.end_cause is EndCause.NO_SESSION


async def test_a_vanished_server_is_a_lost_connection() -> None:
    tape, _ = await call(Script(abort_after_reply=True), line("hello"), line("more"))
    assert tape.end_cause is EndCause.CONNECTION_LOST
    assert tape.problem == "the connection was lost"
