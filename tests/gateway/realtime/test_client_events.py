from __future__ import annotations

import base64
import binascii
import concurrent.futures
import json
from typing import Any

import pytest

from gateway.realtime.client_events import MAX_APPEND_BYTES, PORTION_CHARS, ParsedAppend, parse_event
from gateway.realtime.errors import MAX_MESSAGE_CHARS, ProtocolError
from gateway.realtime.protocol import AppendAudio, ClearAudio, CommitAudio
from streaming.config import ResponseOptions
from streaming.conversation import Item, PartKind
from streaming.events import CancelResponse, CreateItem, CreateResponse, DeleteItem, RetrieveItem, TruncateItem
from tests.gateway.realtime.rig import Rig


def message(role: str, *content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(content), **fields}


def create(item: object, **fields: Any) -> dict[str, Any]:
    return {"type": "conversation.item.create", "item": item, **fields}


def respond(**response: Any) -> dict[str, Any]:
    return {"type": "response.create", "event_id": "evt_c", "response": response}


TEXT = {"type": "input_text", "text": "hello"}


# --- each of the 11 events ------------------------------------------------------------------------------------


def test_append_is_decoded_audio() -> None:
    assert Rig().do({"type": "input_audio_buffer.append", "audio": "AAECAw=="}) == [AppendAudio(b"\0\1\2\3")]


@pytest.mark.parametrize("size", range(1, 9))
def test_append_of_any_length(size: int) -> None:
    audio = bytes(range(size))
    text = json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(audio).decode()})
    assert parse_event(text) == ParsedAppend(audio, None)


def test_empty_append_is_nothing_to_do() -> None:
    assert Rig().do({"type": "input_audio_buffer.append", "audio": ""}) == []


def test_buffer_commands() -> None:
    rig = Rig()
    assert rig.do({"type": "input_audio_buffer.commit", "event_id": "a"}) == [CommitAudio("a")]
    assert rig.do({"type": "input_audio_buffer.clear", "event_id": None}) == [ClearAudio(None)]


def test_output_buffer_is_not_here() -> None:
    body = Rig().refuse({"type": "output_audio_buffer.clear", "event_id": "a"})
    assert (body["code"], body["event_id"]) == ("not_supported_on_this_transport", "a")


def test_item_commands() -> None:
    rig = Rig()
    assert rig.do({"type": "conversation.item.retrieve", "item_id": "i"}) == [RetrieveItem("i")]
    assert rig.do({"type": "conversation.item.delete", "item_id": "i", "event_id": "e"}) == [DeleteItem("i", "e")]
    cut = {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 1_500}
    assert rig.do(cut) == [TruncateItem("i", 0, 1_500)]


def test_response_commands() -> None:
    rig = Rig()
    assert rig.do({"type": "response.cancel"}) == [CancelResponse()]
    assert rig.do({"type": "response.cancel", "response_id": "r", "event_id": "e"}) == [CancelResponse("r", "e")]
    assert rig.do({"type": "response.create"}) == [CreateResponse()]
    assert rig.do({"type": "response.create", "response": None}) == [CreateResponse()]


def test_unknown_fields_are_ignored() -> None:
    assert Rig().do({"type": "input_audio_buffer.commit", "new": {"in": [2027]}}) == [CommitAudio()]


# --- items ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "item"),
    [
        (message("user", TEXT, id="mine"), Item("mine", "user", PartKind.INPUT_TEXT, "hello")),
        (message("user", TEXT, {"type": "input_text", "text": "you"}, id="i"),
         Item("i", "user", PartKind.INPUT_TEXT, "hello\nyou")),
        (message("user", {"type": "input_audio", "transcript": "hi", "audio": None}, id="i"),
         Item("i", "user", PartKind.INPUT_AUDIO, "hi")),
        (message("user", {"type": "input_audio", "transcript": "hi"}, TEXT, id="i"),
         Item("i", "user", PartKind.INPUT_TEXT, "hi\nhello")),
        (message("system", TEXT, id="i", status="incomplete"), Item("i", "system", PartKind.INPUT_TEXT, "hello")),
        (message("assistant", {"type": "output_text", "text": "yes"}, id="i"),
         Item("i", "assistant", PartKind.OUTPUT_TEXT, "yes")),
        (message("assistant", {"type": "output_audio", "transcript": "yes"}, id="i"),
         Item("i", "assistant", PartKind.OUTPUT_TEXT, "yes")),
    ],
)  # fmt: skip
def test_messages(wire: dict[str, Any], item: Item) -> None:
    assert Rig().do(create(wire, previous_item_id="root", event_id="e")) == [CreateItem(item, "root", "e")]


def test_a_message_without_id_is_given_one() -> None:
    (created,) = Rig().do(create(message("user", TEXT)))
    assert isinstance(created, CreateItem)
    assert created.item.id.startswith("item_")


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        ({"type": "function_call_output", "call_id": "c", "output": "{}"}, "tools_not_supported", "item.type"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "tools_not_supported", "item.type"),
        ({"type": "item_reference", "id": "i"}, "item_reference_not_supported", "item.type"),
        ({"type": "letter"}, "invalid_event", "item.type"),
        ({"role": "user"}, "invalid_event", "item.type"),
        ([], "invalid_event", "item"),
        ({"type": "message", "content": [TEXT]}, "invalid_event", "item.role"),
        (message("developer", TEXT), "invalid_event", "item.role"),
        ({"type": "message", "role": "user"}, "invalid_event", "item.content"),
        (message("user"), "invalid_event", "item.content"),
        (message("user", *[TEXT] * 65), "invalid_event", "item.content"),
        (message("user", TEXT, id=""), "invalid_event", "item.id"),
        (message("user", TEXT, id="x" * 129), "invalid_event", "item.id"),
        (message("user", {"type": "input_text"}), "invalid_event", "item.content[0].text"),
        (message("user", TEXT, {"type": "input_audio"}), "invalid_event", "item.content[1].transcript"),
        (message("user", {"type": "input_audio", "audio": "AAAA", "transcript": "x"}),
         "audio_item_not_supported", "item.content[0].audio"),
        (message("user", {"type": "input_image", "image_url": "data:"}),
         "content_type_not_supported", "item.content[0].type"),
        (message("assistant", TEXT), "content_type_not_supported", "item.content[0].type"),
        (message("system", {"type": "input_audio", "transcript": "x"}),
         "content_type_not_supported", "item.content[0].type"),
    ],
)  # fmt: skip
def test_bad_items(item: object, code: str, param: str) -> None:
    body = Rig().refuse(create(item, event_id="e"))
    assert (body["code"], body["param"], body["event_id"]) == (code, param, "e")


# --- response.create ------------------------------------------------------------------------------------------


def test_response_options() -> None:
    inbound = Rig().do(
        respond(
            conversation="auto",
            instructions="Short.",
            output_modalities=["text"],
            max_output_tokens=20,
            metadata={"k": "v"},
            input=[message("user", TEXT), message("assistant", {"type": "output_text", "text": "yes"})],
            tools=[],
            tool_choice="auto",
            audio={"output": {"voice": "amy", "format": {"type": "audio/pcm"}}},
        )
    )
    options = ResponseOptions("Short.", False, 20, (("user", "hello"), ("assistant", "yes")), {"k": "v"})
    assert inbound == [CreateResponse(options, "evt_c")]


def test_response_options_that_say_little() -> None:
    rig = Rig()
    nothing = respond(input=[], max_output_tokens="inf", output_modalities=["audio"], audio={})
    assert rig.do(nothing) == [CreateResponse(ResponseOptions(None, True, 4_096, ()), "evt_c")]
    same_voice = respond(audio={"output": {"voice": {"id": "amy"}}})
    assert rig.do(same_voice) == [CreateResponse(ResponseOptions(), "evt_c")]


@pytest.mark.parametrize(
    ("response", "code", "param"),
    [
        ({"conversation": "none"}, "out_of_band_response_not_supported", "response.conversation"),
        ({"conversation": "conv_9"}, "invalid_event", "response.conversation"),
        ({"tools": [{"type": "function"}]}, "tools_not_supported", "response.tools"),
        ({"tool_choice": "required"}, "tools_not_supported", "response.tool_choice"),
        ({"prompt": {"id": "p"}}, "prompt_not_supported", "response.prompt"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "invalid_event", "response.metadata"),
        ({"metadata": {"k" * 65: "v"}}, "invalid_event", "response.metadata"),
        ({"metadata": {"k": "v" * 513}}, "invalid_event", "response.metadata[...]"),
        ({"max_output_tokens": 0}, "invalid_event", "response.max_output_tokens"),
        ({"output_modalities": ["audio", "text"]}, "invalid_event", "response.output_modalities"),
        ({"audio": {"output": {"voice": "joe"}}}, "response_audio_not_supported", "response.audio.output.voice"),
        ({"audio": {"output": {"format": {"type": "audio/pcmu"}}}},
         "response_audio_not_supported", "response.audio.output.format"),
        ({"audio": {"output": {"format": {"type": "mp3"}}}},
         "unsupported_audio_format", "response.audio.output.format.type"),
        ({"input": [message("user", {"type": "input_text"})]}, "invalid_event", "response.input[0].content[0].text"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "item_reference_not_supported", "response.input[0].type"),
        ({"input": [message("user", TEXT)] * 257}, "invalid_event", "response.input"),
    ],
)  # fmt: skip
def test_bad_responses(response: dict[str, Any], code: str, param: str) -> None:
    body = Rig().refuse(respond(**response))
    assert (body["code"], body["param"], body["event_id"]) == (code, param, "evt_c")


def test_metadata_at_its_limits() -> None:
    metadata = {f"{i:064}": "v" * 512 for i in range(16)}
    assert Rig().do(respond(metadata=metadata)) == [CreateResponse(ResponseOptions(metadata=metadata), "evt_c")]


# --- frames that are no events --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ProtocolError("invalid_json", "the frame is not valid JSON")),
        ("{", ProtocolError("invalid_json", "the frame is not valid JSON")),
        ('{"type": "response.cancel"} x', ProtocolError("invalid_json", "the frame is not valid JSON")),
        ('{"type": NaN}', ProtocolError("invalid_json", "the frame is not valid JSON")),
        ("\ud800", ProtocolError("invalid_json", "the frame is not valid JSON")),
        ('{"event_id": "\\ud800"}', ProtocolError("invalid_json", "the frame is not valid JSON")),
        ('{"type": ' + "[" * 100_000 + "]" * 100_000 + "}",
         ProtocolError("invalid_json", "the frame is not valid JSON")),
        ("[]", ProtocolError("invalid_event", "an event is a JSON object")),
        ('"text"', ProtocolError("invalid_event", "an event is a JSON object")),
        ("null", ProtocolError("invalid_event", "an event is a JSON object")),
        ("{}", ProtocolError("invalid_event", "an event has a type, a string", "type")),
        ('{"event_id": "e"}', ProtocolError("invalid_event", "an event has a type, a string", "type", "e")),
        ('{"type": 5, "event_id": 5}', ProtocolError("invalid_event", "an event has a type, a string", "type")),
        ('{"type": "x.y", "event_id": "e"}',
         ProtocolError("unknown_event_type", "no client event is named x.y", "type", "e")),
        ('{"type": "conversation.item.delete", "event_id": "e"}',
         ProtocolError("invalid_event", "Object missing required field `item_id`", "item_id", "e")),
        ('{"type": "conversation.item.delete", "item_id": 5, "event_id": "e"}',
         ProtocolError("invalid_event", "Expected `str`, got `int`", "item_id", "e")),
        ('{"type": "response.cancel", "event_id": 5}',
         ProtocolError("invalid_event", "Expected `str | null`, got `int`", "event_id")),
        ('{"type": "response.cancel", "event_id": "' + "e" * 513 + '"}',
         ProtocolError("invalid_event", "Expected `str` of length <= 512", "event_id")),
        ('{"type": "input_audio_buffer.append", "audio": 5, "event_id": "e"}',
         ProtocolError("invalid_event", "Expected `str`, got `int`", "audio", "e")),
    ],
)  # fmt: skip
def test_frames_that_are_no_events(text: str, error: ProtocolError) -> None:
    assert parse_event(text) == error


@pytest.mark.parametrize(
    "field", [{"content_index": -1}, {"audio_end_ms": -1}, {"audio_end_ms": 2**31 + 1}, {"audio_end_ms": 1.5}]
)
def test_truncate_takes_whole_numbers(field: dict[str, Any]) -> None:
    cut = {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 0, **field}
    body = Rig().refuse(cut)
    assert (body["code"], body["param"]) == ("invalid_event", next(iter(field)))


def test_long_names_are_not_echoed_whole() -> None:
    body = Rig().refuse({"type": "x" * 100_000})
    assert len(body["message"]) == MAX_MESSAGE_CHARS
    body = Rig().refuse({"type": "session.update", "session": {"type": "realtime", "y" * 100_000: 1}})
    assert body["code"] == "unknown_parameter"
    assert max(len(body["message"]), len(body["param"])) == MAX_MESSAGE_CHARS


# --- audio ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["A", "AAA", "AAAA=", "AAAA==", "AAAA====", "AA==AAAA", "AA AA", "AAAA\n", "é", "-_-_", "===="]
)
def test_bad_base64(text: str) -> None:
    body = Rig().refuse({"type": "input_audio_buffer.append", "audio": text, "event_id": "e"})
    assert (body["code"], body["param"], body["event_id"]) == ("invalid_audio", "audio", "e")


def test_pcm_has_whole_samples_and_g711_any_number() -> None:
    rig = Rig()
    odd = {"type": "input_audio_buffer.append", "audio": "AAAA", "event_id": "e"}
    body = rig.refuse(odd)
    assert (body["code"], body["param"], body["event_id"]) == ("invalid_audio_length", "audio", "e")
    rig.update(audio={"input": {"format": {"type": "audio/pcma"}}})
    assert rig.do(odd) == [AppendAudio(b"\0\0\0")]


def test_append_of_15_mib_and_one_byte_more() -> None:
    largest = base64.b64encode(bytes(MAX_APPEND_BYTES)).decode()
    parsed = parse_event(json.dumps({"type": "input_audio_buffer.append", "audio": largest}))
    assert isinstance(parsed, ParsedAppend)
    assert len(parsed.audio) == MAX_APPEND_BYTES
    text = json.dumps({"type": "input_audio_buffer.append", "audio": largest + "AAAA", "event_id": "e"})
    error = parse_event(text)
    assert isinstance(error, ProtocolError)
    assert (error.code, error.param, error.event_id) == ("audio_too_large", "audio", "e")


def test_long_audio_is_decoded_in_portions_and_none_of_them_may_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it at once would hold the event loop up from any thread."""
    portions: list[int] = []

    def counted(text: str, *, strict_mode: bool) -> bytes:
        portions.append(len(text))
        return a2b_base64(text, strict_mode=strict_mode)

    a2b_base64 = binascii.a2b_base64
    monkeypatch.setattr(binascii, "a2b_base64", counted)
    audio = bytes(range(256)) * 600
    text = base64.b64encode(audio).decode()
    parsed = parse_event(json.dumps({"type": "input_audio_buffer.append", "audio": text}))
    assert parsed == ParsedAppend(audio, None)
    assert max(portions) == PORTION_CHARS
    assert sum(portions) == len(text)
    padded = text[: PORTION_CHARS - 2] + "==" + text[PORTION_CHARS:]
    refused = Rig().refuse({"type": "input_audio_buffer.append", "audio": padded, "event_id": "e"})
    assert refused["code"] == "invalid_audio"


def test_frames_may_be_parsed_in_threads() -> None:
    texts = [json.dumps(respond(metadata={"n": str(n)})) for n in range(200)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        parsed = list(pool.map(parse_event, texts))
    assert parsed == [parse_event(text) for text in texts]
    rig = Rig()
    assert rig.protocol.apply(parsed[7]) == [CreateResponse(ResponseOptions(metadata={"n": "7"}), "evt_c")]
