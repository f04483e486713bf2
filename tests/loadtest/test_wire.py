from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from loadtest.wire import (
    KNOWN_EVENTS,
    MAX_ERROR_CHARACTERS,
    MAX_ERRORS,
    MAX_TEXT_CHARACTERS,
    ServerEvent,
    WireLog,
    decode_event,
)


def note(log: WireLog, turn: int, kind: str, **fields: Any) -> None:
    log.note(decode_event(json.dumps({"type": kind, **fields})), turn)


def transcript(log: WireLog, turn: int, item_id: str, text: str) -> None:
    note(log, turn, "conversation.item.input_audio_transcription.completed", item_id=item_id, transcript=text)


def test_a_transcript_belongs_to_the_turn_its_utterance_began_in() -> None:
    log = WireLog()
    note(log, 0, "input_audio_buffer.speech_started", item_id="a")
    note(log, 0, "input_audio_buffer.committed", item_id="a")
    due = [log.transcripts_due]
    transcript(log, 1, "a", " late words ")
    assert [*due, log.transcripts_due] == [True, False]
    assert (log.heard_text(0), log.heard_text(1)) == ("late words", None)


def test_utterances_of_one_turn_join_in_order_without_the_failed_and_the_empty() -> None:
    log = WireLog()
    for item_id in "abcd":
        note(log, 0, "input_audio_buffer.speech_started", item_id=item_id)
    transcript(log, 0, "d", "two")
    transcript(log, 0, "a", "one")
    transcript(log, 0, "b", "")
    note(log, 0, "conversation.item.input_audio_transcription.failed", item_id="c")
    assert log.heard_text(0) == "one two"
    assert not log.transcripts_due


def test_a_transcript_that_only_failed_is_null_and_an_empty_one_is_empty() -> None:
    log = WireLog()
    note(log, 0, "conversation.item.input_audio_transcription.failed", item_id="a")
    transcript(log, 1, "b", "")
    assert (log.heard_text(0), log.heard_text(1)) == (None, "")


def test_the_agents_text_belongs_to_the_turn_its_response_began_in_and_done_replaces_deltas() -> None:
    log = WireLog()
    names = {"response_id": "r", "item_id": "i"}
    note(log, 0, "response.created", response={"id": "r"})
    responding = [log.responding]
    note(log, 0, "response.output_audio_transcript.delta", delta="Hel", **names)
    note(log, 1, "response.output_audio_transcript.delta", delta="lo", **names)
    assert log.agent_transcript(0) == "Hello"
    note(log, 1, "response.output_audio_transcript.done", transcript="Hello.", **names)
    note(log, 1, "response.output_audio_transcript.delta", delta=" stray", **names)
    note(log, 1, "response.done", response={"id": "r"})
    assert [*responding, log.responding] == [True, False]
    assert (log.agent_transcript(0), log.agent_transcript(1)) == ("Hello.", None)


def test_two_messages_of_a_turn_join() -> None:
    log = WireLog()
    for name in ("One.", "Two."):
        note(log, 0, "response.output_audio_transcript.done", transcript=name, response_id=name, item_id=name)
    assert log.agent_transcript(0) == "One. Two."


def test_items_with_audio_are_known_by_response() -> None:
    log = WireLog()
    for item_id in ("a", "a", "b"):
        note(log, 0, "response.output_audio.delta", response_id="r", item_id=item_id, delta="")
    assert log.items_of("r") == ["a", "b"]
    assert log.items_of("other") == []


def test_errors_are_kept_with_their_code_and_bounded() -> None:
    log = WireLog()
    note(log, 0, "error", error={"type": "invalid_request_error", "code": None, "message": "no"})
    note(log, 0, "error")
    assert log.errors == ["invalid_request_error: no", "error"]
    for _ in range(MAX_ERRORS):
        note(log, 0, "error", error={"code": "x"})
    assert len(log.errors) == MAX_ERRORS
    assert log.errors[-1] == "x"


def test_unknown_and_incomplete_events_are_ignored() -> None:
    log = WireLog()
    for kind in ("response.created", "response.done", "session.created", "rate_limits.updated"):
        note(log, 0, kind, something=[1])
    assert (log.call_id, log.responding, log.errors) == (None, False, [])


def test_what_a_server_says_without_end_is_bounded() -> None:
    log = WireLog()
    for _ in range(30):
        note(log, 0, "response.output_audio_transcript.delta", response_id="r", item_id="a", delta="x" * 10_000)
    said = log.agent_transcript(0)
    assert said is not None
    assert MAX_TEXT_CHARACTERS <= len(said) < MAX_TEXT_CHARACTERS + 10_000
    log.note_error("e" * 1_000_000)
    assert len(log.errors[-1]) == MAX_ERROR_CHARACTERS


@pytest.mark.parametrize("message", ["{", "[]", '"x"', "{}", '{"type": 1}'])
def test_what_is_no_event(message: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_event(message)


def test_what_is_nested_too_deeply_is_no_event() -> None:
    with pytest.raises(msgspec.DecodeError, match="nested"):
        decode_event('{"type":"x","y":' + "[" * 100_000)


def test_events_that_nobody_knows_have_fields_of_any_type_and_known_ones_have_not() -> None:
    assert decode_event('{"type": "vendor.news", "delta": {"a": 1}, "error": "none"}') == ServerEvent("vendor.news")
    for kind in KNOWN_EVENTS:
        with pytest.raises(msgspec.ValidationError):
            decode_event(json.dumps({"type": kind, "delta": {"a": 1}}))
