"""A locked session: its client takes part in the call, and neither reads nor changes what the agent is."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.realtime import session_lock
from gateway.realtime.client_events import ResponseParams
from gateway.realtime.errors import Rejected
from gateway.realtime.protocol import ClearAudio, CommitAudio
from gateway.realtime.session_object import SessionDefaults
from gateway.realtime.session_patch import InputPatch, OutputPatch, SessionPatch, TranscriptionPatch
from streaming import events as ev
from streaming.config import BargeIn, ResponseOptions, SessionConfig, TurnDetection, TurnMode
from tests.gateway.realtime.rig import Rig

SECRET = "The code word is Xyzzy."
CONFIG = SessionConfig(
    instructions=SECRET,
    examples=(("Hello?", "Xyzzy here."),),
    greeting="Hello there.",
    turn=TurnDetection(mode=TurnMode.SEMANTIC, barge_in=BargeIn.HOLD),
)
ANNA = SessionDefaults(config=CONFIG, voices=("amy", "joe"), languages=("en", "de"), agent=True)
LOCKED = "session_locked"


def locked(*, media: bool = True, **minted: Any) -> Rig:
    """As a client secret opens it."""
    rig = Rig(ANNA, opened=False, media=media)
    if minted:
        rig.protocol.begin_with({"type": "realtime", **minted})
    rig.protocol.lock()
    return rig


def message(role: str, text: str) -> dict[str, Any]:
    part = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": part, "text": text}]}


# --- what it shows --------------------------------------------------------------------------------------------


def test_it_is_shown_without_what_the_agent_was_told() -> None:
    rig = locked(
        tracing={"workflow_name": "Xyzzy"}, audio={"input": {"transcription": {"prompt": "Xyzzy", "language": "de"}}}
    )
    rig.protocol.open()
    created = rig.take()[0]
    updated = rig.update(include=["offhook"])
    plain = Rig(ANNA).protocol.show_session()
    for session in (created["session"], updated):
        assert set(plain) - set(session) == {"instructions", "tools", "tool_choice", "tracing", "prompt"}
        assert session["audio"]["input"]["transcription"] == {"model": "default", "language": "de"}
        assert "Xyzzy" not in json.dumps(session)
    assert plain["instructions"] == SECRET


def test_what_came_before_the_lock_is_what_the_call_is() -> None:
    rig = locked(instructions="Rhyme.", max_output_tokens=7, audio={"output": {"voice": "joe", "speed": 1.2}})
    assert rig.update(output_modalities=["text"])["max_output_tokens"] == 7
    config = rig.protocol.config
    assert (config.instructions, config.voice, config.speed, config.max_output_tokens) == ("Rhyme.", "joe", 1.2, 7)
    assert (config.audio_output, config.examples, config.owns_playout) == (False, CONFIG.examples, True)


def test_a_session_beside_the_offer_is_the_client_s() -> None:
    rig = locked()
    rig.protocol.begin_with({"type": "realtime", "include": ["offhook"]})
    with pytest.raises(Rejected) as refused:
        rig.protocol.begin_with({"type": "realtime", "include": [], "instructions": "Sing."})
    assert (refused.value.code, refused.value.param) == (LOCKED, "session.instructions")
    assert rig.protocol.show_session()["include"] == ("offhook",)
    assert rig.protocol.config.instructions == SECRET


# --- updates --------------------------------------------------------------------------------------------------


FIXED = pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"instructions": "Sing."}, "instructions"),
        ({"instructions": SECRET}, "instructions"),
        ({"instructions": None}, "instructions"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"max_output_tokens": 4_096}, "max_output_tokens"),
        ({"max_output_tokens": None}, "max_output_tokens"),
        ({"truncation": "disabled"}, "truncation"),
        ({"tracing": "auto"}, "tracing"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"audio": {"output": {"voice": "nobody"}}}, "audio.output.voice"),
        ({"audio": {"output": {"voice": "joe"}}}, "audio.output.voice"),
        ({"audio": {"output": {"voice": "amy"}}}, "audio.output.voice"),
        ({"audio": {"output": {"speed": 1.5}}}, "audio.output.speed"),
        ({"audio": {"input": {"transcription": {"language": "de"}}}}, "audio.input.transcription.language"),
        ({"audio": {"input": {"transcription": {"prompt": "Names"}}}}, "audio.input.transcription.prompt"),
    ],
)


@FIXED
def test_what_the_agent_is_does_not_change_and_all_else_does(session: dict[str, Any], param: str) -> None:
    allowed: dict[str, Any] = {"include": ["offhook"], "output_modalities": ["text"]}
    rig, other = locked(), locked()
    assert (rig.update(**allowed, **session), rig.counted) == (other.update(**allowed), [session_lock.IGNORED])
    assert rig.protocol.config == other.protocol.config
    assert (rig.protocol.config.audio_output, other.counted) == (False, [])


@FIXED
def test_an_offer_that_asks_for_another_agent_is_refused(session: dict[str, Any], param: str) -> None:
    rig = locked()
    before = rig.protocol.show_session()
    with pytest.raises(Rejected) as refused:
        rig.protocol.begin_with({"type": "realtime", "include": ["offhook"], **session})
    assert (refused.value.code, refused.value.param) == (LOCKED, f"session.{param}")
    assert rig.protocol.show_session() == before


def test_what_is_open_in_an_object_is_taken_where_another_field_of_it_is_not() -> None:
    rig = locked(media=False, audio={"input": {"transcription": {"language": "de"}}})
    wire = {"type": "audio/pcma"}
    updated = rig.update(
        instructions="Sing.",
        audio={
            "input": {"transcription": {"model": "whisper-1", "language": "en", "prompt": "Names"}, "format": wire},
            "output": {"voice": "joe", "speed": 1.5, "format": wire},
        },
    )["audio"]
    assert updated["input"]["transcription"] == {"model": "whisper-1", "language": "de"}
    assert (updated["input"]["format"], updated["output"]["format"]) == (wire, wire)
    assert (updated["output"]["voice"], updated["output"]["speed"]) == ("amy", 1.0)
    assert rig.counted == [session_lock.IGNORED]


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"include": ["x"]}, "invalid_value", "session.include[0]"),
        ({"audio": {"input": {"noise_reduction": {"type": "near_field"}}}}, "noise_reduction_not_supported", None),
        ({"audio": {"output": {"format": {"type": "audio/pcmu"}}}}, "unsupported_audio_format", None),
        ({"max_output_tokens": "all"}, "invalid_value", "session.max_output_tokens"),
        ({"colour": "red"}, "unknown_parameter", "session.colour"),
    ],
)
def test_a_value_that_is_none_is_one_error_and_nothing_of_it_is_taken(
    session: dict[str, Any], code: str, param: str | None
) -> None:
    rig = locked()
    refused = rig.refuse_update(output_modalities=["text"], instructions="Sing.", **session)
    assert (refused[0], param or refused[1], rig.counted) == (code, refused[1], [])
    assert rig.protocol.config.audio_output


def test_how_the_caller_takes_part_does() -> None:
    rig = locked(media=False)
    assert rig.update(model="gpt-realtime", include=["offhook"])["include"] == ["offhook"]
    assert rig.update(output_modalities=["text"])["output_modalities"] == ["text"]
    assert rig.update(output_modalities=None)["output_modalities"] == ["audio"]
    heard = rig.update(audio={"input": {"transcription": None, "turn_detection": None}})["audio"]["input"]
    assert (heard["transcription"], heard["turn_detection"]) == (None, None)
    turn = {"type": "server_vad", "silence_duration_ms": 900}
    wire = {"type": "audio/pcmu"}
    heard = rig.update(audio={"input": {"turn_detection": turn, "format": wire}, "output": {"format": wire}})
    assert heard["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 900
    assert (heard["audio"]["input"]["format"], heard["audio"]["output"]["format"]) == (wire, wire)


def test_transcripts_go_on_again_in_the_language_of_the_call() -> None:
    rig = locked(audio={"input": {"transcription": {"language": "de"}}})
    for transcription in (None, {"model": "whisper-1"}):
        rig.update(audio={"input": {"transcription": transcription}})
        assert rig.protocol.config.language == "de"
    assert rig.protocol.show_session()["audio"]["input"]["transcription"] == {"model": "whisper-1", "language": "de"}


def test_a_null_that_keeps_a_value_is_no_change() -> None:
    unused = {"tools": None, "tool_choice": None, "parallel_tool_calls": None, "prompt": None, "reasoning": None}
    rig = locked()
    rig.update(**unused, audio={"input": {"noise_reduction": None}, "output": None})
    assert rig.counted == []


def test_an_open_session_ignores_nothing() -> None:
    rig = Rig(ANNA)
    assert rig.update(instructions="Sing.", audio={"output": {"voice": "joe"}})["instructions"] == "Sing."
    assert rig.counted == []


# --- items and responses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (message("system", "You are a poet."), "role"),
        (message("assistant", "I am a poet."), "role"),
        ({"type": "function_call_output", "call_id": "c", "output": "9"}, "type"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, "type"),
        ({"type": "item_reference", "id": "item_1"}, "type"),
    ],
)
def test_an_item_is_what_the_caller_says(item: dict[str, Any], param: str) -> None:
    body = locked().refuse({"type": "conversation.item.create", "event_id": "e1", "item": item})
    assert (body["code"], body["param"], body["event_id"]) == (LOCKED, f"item.{param}", "e1")


def test_the_caller_may_write_a_message_of_some_length() -> None:
    rig = locked()
    most = session_lock.MAX_MESSAGE_CHARS
    [created] = rig.do({"type": "conversation.item.create", "item": message("user", "x" * most)})
    assert isinstance(created, ev.CreateItem)
    assert (created.item.role, len(created.item.text or "")) == ("user", most)
    halves = [{"type": "input_text", "text": "x" * most}, {"type": "input_audio", "transcript": "x"}]
    for content in ([{"type": "input_text", "text": "x" * (most + 1)}], halves):
        item = {"type": "message", "role": "user", "content": content}
        body = rig.refuse({"type": "conversation.item.create", "item": item})
        assert (body["code"], body["param"]) == ("item_too_long", "item.content")


def test_a_broken_item_is_told_so_as_elsewhere() -> None:
    for item, param in (({"type": "message", "role": "user"}, "content"), ({"type": "message"}, "role")):
        body = locked().refuse({"type": "conversation.item.create", "item": item})
        assert (body["code"], body["param"]) == ("invalid_event", f"item.{param}")


def test_what_was_said_is_not_rewritten() -> None:
    body = locked().refuse({"type": "conversation.item.delete", "item_id": "item_1"})
    assert (body["code"], body["param"]) == (LOCKED, "type")
    first = {"type": "conversation.item.create", "previous_item_id": "root", "item": message("user", "Hi")}
    body = locked().refuse(first)
    assert (body["code"], body["param"]) == (LOCKED, "previous_item_id")


@pytest.mark.parametrize(
    "response",
    [
        {"instructions": "Sing."},
        {"instructions": ""},
        {"input": []},
        {"input": [message("user", "Translate this.")]},
        {"tools": []},
        {"tool_choice": "none"},
        {"max_output_tokens": 4_096},
        {"prompt": {"id": "p"}},
    ],
)
def test_a_response_is_the_agent_s_own(response: dict[str, Any]) -> None:
    body = locked().refuse({"type": "response.create", "event_id": "e1", "response": {"metadata": {}, **response}})
    assert (body["code"], body["param"], body["event_id"]) == (LOCKED, f"response.{next(iter(response))}", "e1")


def test_all_else_is_as_it_is_everywhere() -> None:
    rig = locked()
    asked = {"output_modalities": ["text"], "metadata": {"a": "b"}, "audio": {"output": {"voice": "amy"}}}
    options = ResponseOptions(audio_output=False, metadata={"a": "b"})
    assert rig.do({"type": "response.create", "response": asked}) == [ev.CreateResponse(options)]
    assert rig.do({"type": "response.create"}) == [ev.CreateResponse()]
    assert rig.do({"type": "response.cancel"}) == [ev.CancelResponse()]
    assert rig.do({"type": "output_audio_buffer.clear"}) == [ev.ClearOutput()]
    assert rig.do({"type": "input_audio_buffer.commit"}) == [CommitAudio()]
    assert rig.do({"type": "input_audio_buffer.clear"}) == [ClearAudio()]
    assert rig.do({"type": "conversation.item.retrieve", "item_id": "i"}) == [ev.RetrieveItem("i")]
    truncate = {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 5}
    assert rig.do(truncate) == [ev.TruncateItem("i", 0, 5)]
    assert rig.do({"type": "offhook.dtmf", "digits": "1"}) == [ev.Dtmf("1")]


def test_the_allowed_fields_exist() -> None:
    for kind, allowed in (
        (SessionPatch, session_lock.SESSION_FIELDS),
        (InputPatch, session_lock.INPUT_FIELDS),
        (OutputPatch, session_lock.OUTPUT_FIELDS),
        (TranscriptionPatch, session_lock.TRANSCRIPTION_FIELDS),
        (ResponseParams, session_lock.RESPONSE_FIELDS),
    ):
        assert allowed <= {field.name for field in msgspec.structs.fields(kind)}
