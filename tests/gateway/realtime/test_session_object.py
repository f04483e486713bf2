from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from openai.types.realtime import RealtimeSessionCreateRequest

from gateway.realtime.session_object import STOCK_VOICES, SessionDefaults, WireFormat
from streaming.config import BargeIn, Eagerness, SessionConfig, TurnDetection, TurnMode
from streaming.events import Configure
from streaming.notices import Response, ResponseCreated, ResponseDone
from tests.gateway.realtime.rig import NOW_S, PLAIN, Rig

AGENT = SessionDefaults(
    config=SessionConfig(
        instructions="You sell bread.",
        voice="joe",
        greeting="Hello!",
        max_output_tokens=96,
        turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD),
    ),
    voices=("amy", "joe"),
    agent=True,
    transcription_model="tiny",
)


def audio(**fields: Any) -> dict[str, Any]:
    return {"audio": {"input": fields}}


def output(**fields: Any) -> dict[str, Any]:
    return {"audio": {"output": fields}}


def turn(**fields: Any) -> dict[str, Any]:
    return audio(turn_detection=fields)


def echoed_turn(session: dict[str, Any]) -> Any:
    return session["audio"]["input"]["turn_detection"]


def test_created_session_is_resolved() -> None:
    rig = Rig(opened=False)
    rig.protocol.open()
    (created,) = rig.take()
    assert created["type"] == "session.created"
    assert created["session"] == {
        "type": "realtime",
        "object": "realtime.session",
        "id": "call_1",
        "model": "offhook",
        "expires_at": int(NOW_S) + 3_600,
        "output_modalities": ["audio"],
        "instructions": "Be brief.",
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24_000},
                "turn_detection": {
                    "type": "server_vad",
                    "threshold": 0.5,
                    "prefix_padding_ms": 300,
                    "silence_duration_ms": 500,
                    "idle_timeout_ms": None,
                    "create_response": True,
                    "interrupt_response": True,
                },
                "transcription": None,
                "noise_reduction": None,
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "amy", "speed": 1.0},
        },
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": 256,
        "truncation": "auto",
        "tracing": None,
        "include": [],
        "prompt": None,
    }
    assert rig.protocol.config == replace(PLAIN.config, voice="amy")


def test_agent_session_shows_semantic_vad_and_transcription() -> None:
    rig = Rig(AGENT)
    session = rig.update()
    assert echoed_turn(session) == {
        "type": "semantic_vad",
        "eagerness": "auto",
        "create_response": True,
        "interrupt_response": True,
    }
    assert session["audio"]["input"]["transcription"] == {"model": "tiny", "language": "en", "prompt": ""}
    assert session["audio"]["output"]["voice"] == "joe"
    assert rig.protocol.config == AGENT.config


def test_agent_session_with_its_own_turn_detection_gets_the_plain_rule() -> None:
    rig = Rig(AGENT)
    rig.update(instructions="x")
    assert rig.protocol.config.turn == AGENT.config.turn
    rig.update(**turn(type="semantic_vad", eagerness="low"))
    expected = replace(AGENT.config.turn, eagerness=Eagerness.LOW, barge_in=BargeIn.ONSET)
    assert rig.protocol.config.turn == expected
    rig.update(**turn(interrupt_response=False))
    assert rig.protocol.config.turn == replace(expected, barge_in=BargeIn.IGNORE)


def test_update_answers_with_the_configuration() -> None:
    rig = Rig()
    inbound, events = rig.receive(
        {"type": "session.update", "session": {"type": "realtime", "instructions": "New.", "max_output_tokens": "inf"}}
    )
    assert inbound == [Configure(rig.protocol.config)]
    assert (rig.protocol.config.instructions, rig.protocol.config.max_output_tokens) == ("New.", 4_096)
    assert events[0]["session"]["max_output_tokens"] == "inf"
    assert events[0]["session"]["expires_at"] == int(NOW_S) + 3_600


def test_turn_detection_merges_within_a_type() -> None:
    rig = Rig()
    rig.update(**turn(type="server_vad", threshold=0.7))
    rig.update(**turn(silence_duration_ms=900, idle_timeout_ms=6_000, create_response=False))
    session = rig.update(**turn(type="server_vad", prefix_padding_ms=100))
    assert echoed_turn(session) == {
        "type": "server_vad",
        "threshold": 0.7,
        "prefix_padding_ms": 100,
        "silence_duration_ms": 900,
        "idle_timeout_ms": 6_000,
        "create_response": False,
        "interrupt_response": True,
    }
    assert rig.protocol.config.turn == TurnDetection(
        threshold=0.7,
        prefix_padding_ms=100,
        silence_duration_ms=900,
        idle_timeout_ms=6_000,
        create_response=False,
    )


def test_turn_detection_of_another_type_starts_from_its_defaults() -> None:
    defaults = replace(PLAIN, semantic_vad=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=200))
    rig = Rig(defaults)
    rig.update(**turn(threshold=0.9, interrupt_response=False))
    rig.update(**turn(type="semantic_vad", threshold=None))
    assert rig.protocol.config.turn == defaults.semantic_vad
    session = rig.update(**turn(type="server_vad", eagerness=None))
    assert echoed_turn(session)["threshold"] == 0.5
    assert echoed_turn(session)["interrupt_response"] is True


def test_null_turn_detection_is_manual_and_null_fields_restore_defaults() -> None:
    rig = Rig()
    rig.update(**turn(threshold=0.9, idle_timeout_ms=5_000, interrupt_response=False, create_response=False))
    session = rig.update(**turn(threshold=None, idle_timeout_ms=None, interrupt_response=None, create_response=None))
    assert echoed_turn(session) == echoed_turn(Rig().update())
    assert echoed_turn(rig.update(**audio(turn_detection=None))) is None
    assert rig.protocol.config.turn.mode is TurnMode.MANUAL
    code = rig.refuse_update(**turn(threshold=0.5))
    assert code == ("missing_required_parameter", "session.audio.input.turn_detection.type")
    assert echoed_turn(rig.update(**turn(type="semantic_vad", eagerness="high")))["eagerness"] == "high"
    assert echoed_turn(rig.update(**turn(eagerness=None)))["eagerness"] == "auto"


@pytest.mark.parametrize(
    ("fields", "code", "name"),
    [
        ({"type": "none"}, "invalid_value", "type"),
        ({"threshold": -0.1}, "invalid_value", "threshold"),
        ({"threshold": "high"}, "invalid_type", "threshold"),
        ({"prefix_padding_ms": 2_001}, "invalid_value", "prefix_padding_ms"),
        ({"silence_duration_ms": 99}, "invalid_value", "silence_duration_ms"),
        ({"silence_duration_ms": 500.5}, "invalid_type", "silence_duration_ms"),
        ({"idle_timeout_ms": 4_999}, "invalid_value", "idle_timeout_ms"),
        ({"idle_timeout_ms": 30_001}, "invalid_value", "idle_timeout_ms"),
        ({"create_response": 1}, "invalid_type", "create_response"),
        ({"eagerness": "low"}, "unknown_parameter", "eagerness"),
        ({"type": "semantic_vad", "eagerness": "slow"}, "invalid_value", "eagerness"),
        ({"type": "semantic_vad", "threshold": 0.4}, "unknown_parameter", "threshold"),
        ({"silence_ms": 400}, "unknown_parameter", "silence_ms"),
    ],
)
def test_bad_turn_detection(fields: dict[str, Any], code: str, name: str) -> None:
    assert Rig().refuse_update(**turn(**fields)) == (code, f"session.audio.input.turn_detection.{name}")


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"type": "transcription"}, "transcription_sessions_not_supported", "session.type"),
        ({"type": "chat"}, "invalid_value", "session.type"),
        ({"voice": "amy"}, "unknown_parameter", "session.voice"),
        ({"audio": {"input": {"rate": 1}}}, "unknown_parameter", "session.audio.input.rate"),
        ({"audio": []}, "invalid_type", "session.audio"),
        ({"output_modalities": ["audio", "text"]}, "invalid_value", "session.output_modalities"),
        ({"output_modalities": []}, "invalid_value", "session.output_modalities"),
        ({"output_modalities": ["video"]}, "invalid_value", "session.output_modalities[0]"),
        ({"instructions": 5}, "invalid_type", "session.instructions"),
        ({"instructions": "x" * 64_001}, "invalid_value", "session.instructions"),
        ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": 4_097}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": "lots"}, "invalid_value", "session.max_output_tokens"),
        ({"truncation": "always"}, "invalid_value", "session.truncation"),
        ({"tracing": "off"}, "invalid_value", "session.tracing"),
        ({"tracing": {"metadata": {"a": 1}}}, "invalid_type", "session.tracing.metadata[...]"),
        ({"include": ["everything"]}, "invalid_value", "session.include[0]"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools_not_supported", "session.tools"),
        ({"tool_choice": "required"}, "tools_not_supported", "session.tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tools_not_supported", "session.tool_choice"),
        ({"tool_choice": "any"}, "invalid_value", "session.tool_choice"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt_not_supported", "session.prompt"),
        (audio(noise_reduction={"type": "near_field"}),
         "noise_reduction_not_supported", "session.audio.input.noise_reduction"),
        (audio(format={"type": "audio/opus"}), "unsupported_audio_format", "session.audio.input.format.type"),
        (audio(format={"type": "audio/pcm", "rate": 16_000}),
         "unsupported_audio_format", "session.audio.input.format.rate"),
        (audio(format={"type": "audio/pcmu", "rate": 8_000}),
         "unsupported_audio_format", "session.audio.input.format.rate"),
        (audio(format="pcm16"), "invalid_type", "session.audio.input.format"),
        (audio(format={}), "missing_required_parameter", "session.audio.input.format.type"),
        (audio(transcription={"language": "english!"}), "invalid_value", "session.audio.input.transcription.language"),
        (audio(transcription={"language": "fr"}),
         "language_not_supported", "session.audio.input.transcription.language"),
        (audio(transcription={"delay": "low"}), "invalid_type", "session.audio.input.transcription.delay"),
        ({"reasoning": {"effort": "low"}}, "invalid_type", "session.reasoning"),
        (output(voice="nobody"), "unknown_voice", "session.audio.output.voice"),
        (output(voice={"id": "voice_1"}), "unknown_voice", "session.audio.output.voice"),
        (output(speed=1.6), "invalid_value", "session.audio.output.speed"),
        (output(speed=0.2), "invalid_value", "session.audio.output.speed"),
        ({"instructions": "kept out", **output(voice="nobody")}, "unknown_voice", "session.audio.output.voice"),
    ],
)  # fmt: skip
def test_bad_update_names_the_field_and_applies_nothing(session: dict[str, Any], code: str, param: str) -> None:
    assert Rig().refuse_update(**session) == (code, param)


def test_session_without_type_or_object() -> None:
    rig = Rig()
    body = rig.refuse({"type": "session.update", "session": {}})
    assert (body["code"], body["param"]) == ("missing_required_parameter", "session.type")
    body = rig.refuse({"type": "session.update"})
    assert (body["code"], body["param"]) == ("missing_required_parameter", "session")
    body = rig.refuse({"type": "session.update", "session": []})
    assert (body["code"], body["param"]) == ("invalid_type", "session")


def test_everything_that_has_no_effect_is_echoed() -> None:
    rig = Rig()
    before = rig.protocol.config
    session = rig.update(
        model="other",
        parallel_tool_calls=True,
        tools=[],
        tool_choice="none",
        truncation={"type": "retention_ratio", "retention_ratio": 0.8, "token_limits": {"post_instructions": 100}},
        tracing={"workflow_name": "w", "metadata": {"a": "b"}},
        include=["item.input_audio_transcription.logprobs"],
        prompt=None,
    )
    assert rig.protocol.config == before
    assert session["model"] == "offhook"
    assert session["tool_choice"] == "none"
    assert session["truncation"]["token_limits"] == {"post_instructions": 100}
    assert session["tracing"] == {"workflow_name": "w", "metadata": {"a": "b"}}
    assert session["include"] == ["item.input_audio_transcription.logprobs"]
    cleared = rig.update(tracing=None, include=None, truncation=None, tools=None, tool_choice=None, audio=None)
    assert (cleared["tracing"], cleared["include"], cleared["truncation"]) == (None, [], "auto")
    assert cleared["tool_choice"] == "none"
    assert rig.update(tracing="auto", include=[], truncation="disabled")["tracing"] == "auto"


def test_a_client_that_writes_out_every_field() -> None:
    request = RealtimeSessionCreateRequest.model_validate(
        {"type": "realtime", **audio(transcription={"model": "whisper-1"}, turn_detection={"type": "semantic_vad"})}
    )
    session = Rig().update(**request.model_dump(exclude={"type"}))
    assert session["audio"]["input"]["transcription"]["model"] == "whisper-1"
    assert echoed_turn(session)["type"] == "semantic_vad"


def test_null_and_empty_clear() -> None:
    rig = Rig()
    rig.update(output_modalities=["text"], max_output_tokens=7, instructions="x", **output(speed=1.5, voice="joe"))
    assert not rig.protocol.config.audio_output
    session = rig.update(
        output_modalities=None, max_output_tokens=None, instructions=None, **output(speed=None, voice=None, format=None)
    )
    assert session == {**Rig().update(), "instructions": ""}
    rig.update(instructions="y")
    assert rig.update(instructions="")["instructions"] == ""
    assert rig.protocol.config.instructions == ""


def test_transcription_merges_and_sets_the_language() -> None:
    rig = Rig()
    on = rig.update(**audio(transcription={}))["audio"]["input"]["transcription"]
    assert on == {"model": "default", "language": "en", "prompt": ""}
    on = rig.update(**audio(transcription={"model": "whisper-1", "language": "de-AT"}))["audio"]["input"][
        "transcription"
    ]
    assert on == {"model": "whisper-1", "language": "de-AT", "prompt": ""}
    assert rig.protocol.config.language == "de"
    on = rig.update(**audio(transcription={"prompt": "names", "language": None}))["audio"]["input"]["transcription"]
    assert on == {"model": "whisper-1", "language": "en", "prompt": "names"}
    assert rig.update(**audio(transcription=None))["audio"]["input"]["transcription"] is None
    assert rig.protocol.config.language == "en"


@pytest.mark.parametrize("voice", sorted(STOCK_VOICES))
def test_stock_voices_are_the_default_voice(voice: str) -> None:
    rig = Rig(AGENT)
    assert rig.update(**output(voice=voice))["audio"]["output"]["voice"] == voice
    assert rig.protocol.config.voice == "joe"


def test_voice_is_locked_once_the_call_has_spoken() -> None:
    rig = Rig()
    assert rig.update(**output(voice={"id": "joe"}))["audio"]["output"]["voice"] == "joe"
    rig.protocol.encode_audio("resp_1", "item_1", b"\0\0")
    rig.take()
    assert rig.refuse_update(**output(voice="amy")) == ("voice_locked", "session.audio.output.voice")
    assert rig.refuse_update(**output(voice=None)) == ("voice_locked", "session.audio.output.voice")
    assert rig.update(**output(voice="joe"))["audio"]["output"]["voice"] == "joe"


def test_formats_and_their_locks() -> None:
    rig = Rig()
    pcmu, pcma = {"type": "audio/pcmu"}, {"type": "audio/pcma"}
    session = rig.update(audio={"input": {"format": pcmu}, "output": {"format": pcma}})
    assert session["audio"]["input"]["format"] == pcmu
    assert session["audio"]["output"]["format"] == pcma
    assert (rig.protocol.input_format, rig.protocol.output_format) == (WireFormat.PCMU, WireFormat.PCMA)
    assert rig.protocol.config.output_rate_hz == 8_000
    assert (WireFormat.PCMU.rate_hz, WireFormat.PCMU.bytes_per_sample) == (8_000, 1)
    assert (WireFormat.PCM.rate_hz, WireFormat.PCM.bytes_per_sample) == (24_000, 2)

    rig.do({"type": "input_audio_buffer.append", "audio": "AAAA"})
    assert rig.refuse_update(**audio(format=pcma)) == ("audio_format_locked", "session.audio.input.format")
    rig.update(**audio(format=pcmu))
    rig.update(**output(format={"type": "audio/pcm", "rate": 24_000}))
    rig.protocol.encode_audio("resp_1", "item_1", b"\0\0")
    rig.take()
    assert rig.refuse_update(**output(format=pcmu)) == ("audio_format_locked", "session.audio.output.format")
    rig.update(**output(format={"type": "audio/pcm"}))


def test_speed_and_format_wait_for_the_response_to_end() -> None:
    rig = Rig()
    rig.encode(ResponseCreated(Response("resp_1", "in_progress", True)))
    assert rig.refuse_update(**output(speed=1.2)) == ("speed_locked", "session.audio.output.speed")
    assert rig.refuse_update(**output(format={"type": "audio/pcmu"}))[0] == "audio_format_locked"
    rig.update(**output(speed=1))
    rig.encode(ResponseDone(Response("resp_1", "completed", True)))
    rig.update(**output(speed=1.2))
    assert rig.protocol.config.speed == 1.2
