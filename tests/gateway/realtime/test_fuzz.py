"""Whatever a client sends: no exception, at most one ``error`` a frame, and the session goes on."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.realtime.client_events import parse_event
from gateway.realtime.errors import ProtocolError
from gateway.realtime.protocol import CommitAudio
from tests.gateway.realtime.checker import OrderChecker
from tests.gateway.realtime.rig import Rig

TYPES = [
    "session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
    "output_audio_buffer.clear",
    "conversation.item.create",
    "conversation.item.retrieve",
    "conversation.item.delete",
    "conversation.item.truncate",
    "response.create",
    "response.cancel",
]
WORDS = [
    *("type", "event_id", "session", "audio", "input", "output", "format", "rate", "turn_detection", "threshold"),
    *("transcription", "language", "noise_reduction", "voice", "speed", "tools", "tool_choice", "tracing", "metadata"),
    *("max_output_tokens", "instructions", "include", "truncation", "prompt", "output_modalities", "item", "item_id"),
    *("role", "content", "text", "transcript", "content_index", "audio_end_ms", "response", "conversation", "id"),
]
VALUES = ["realtime", "message", "user", "input_text", "server_vad", "semantic_vad", "audio/pcm", "audio/pcmu", "inf"]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from([*VALUES, "auto", "AAAA", "AAA=", "amy", "alloy", "root"])
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=12,
)
events = st.builds(
    lambda kind, rest: {**rest, "type": kind},
    st.sampled_from(TYPES),
    st.dictionaries(st.sampled_from(WORDS), documents, max_size=5),
)
turns = st.fixed_dictionaries({}, optional={"type": scalars, "threshold": scalars, "eagerness": scalars})
audio_sides = st.fixed_dictionaries(
    {}, optional={"format": documents, "turn_detection": turns, "transcription": documents}
)
sessions = st.fixed_dictionaries(
    {"type": st.just("realtime")},
    optional={
        "audio": st.fixed_dictionaries({}, optional={"input": audio_sides, "output": documents}),
        "instructions": scalars,
        "tracing": documents,
        "max_output_tokens": scalars,
    },
)
updates = st.builds(lambda session: {"type": "session.update", "session": session}, sessions)
frames = (
    st.text(st.characters(codec=None), max_size=60)
    | st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape"))
    | documents.map(json.dumps)
    | events.map(json.dumps)
    | updates.map(json.dumps)
)


@settings(deadline=None)
@given(st.lists(frames, max_size=6))
def test_any_frames(texts: list[str]) -> None:
    rig = Rig(opened=False)
    checker = OrderChecker()
    rig.protocol.open()
    for text in texts:
        parsed = parse_event(text)
        inbound = rig.protocol.receive(text)
        answers = rig.take()
        checks = [event for event in answers if event["type"] != "session.created"]
        assert len(checks) <= 1
        refused = any(event["type"] == "error" for event in answers)
        assert not (refused and inbound)
        assert refused or not isinstance(parsed, ProtocolError)
        for event in answers:
            checker.feed(event)
    inbound, answers = rig.receive({"type": "input_audio_buffer.commit"})
    assert inbound == [CommitAudio()]
    assert not [event for event in answers if event["type"] != "session.created"]


@settings(deadline=None)
@given(updates)
def test_an_update_is_applied_whole_or_not_at_all(update: dict[str, Any]) -> None:
    rig = Rig()
    before = rig.update()
    config = rig.protocol.config
    inbound, (answer,) = rig.receive(update)
    if answer["type"] == "error":
        assert inbound == []
        assert rig.protocol.config == config
        assert rig.update() == before
    else:
        assert rig.update() == answer["session"]


@settings(deadline=None)
@given(sessions)
def test_what_is_echoed_can_be_sent_back(session: dict[str, Any]) -> None:
    rig = Rig()
    rig.receive({"type": "session.update", "session": session})
    echo = rig.update()
    again = {key: value for key, value in echo.items() if key not in ("id", "object", "expires_at")}
    assert rig.update(**again) == echo
