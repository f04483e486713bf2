from __future__ import annotations

import base64
import json

import pytest

from gateway.realtime.protocol import MAX_PENDING_TRANSCRIPTS
from streaming import notices as n
from streaming.conversation import Item, PartKind
from streaming.jobs import Usage
from tests.gateway.realtime.checker import OrderChecker
from tests.gateway.realtime.rig import Event, Rig

USER = Item("item_u", "user", PartKind.INPUT_AUDIO, None)
SAID = Item("item_a", "assistant", PartKind.OUTPUT_AUDIO, "Hi there.")
WROTE = Item("item_a", "assistant", PartKind.OUTPUT_TEXT, "Hi there.")
CREATED = n.Response("resp_1", "in_progress", True)


def started(item: Item) -> n.OutputStarted:
    return n.OutputStarted("resp_1", Item(item.id, "assistant", item.kind, None, "in_progress"), "item_u")


def types(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def shown(item_id: str, *content: dict[str, object], status: str = "completed", role: str = "assistant") -> Event:
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": status,
        "role": role,
        "content": list(content),
    }


def done(rig: Rig, response: n.Response) -> Event:
    (event,) = rig.encode(n.ResponseDone(response))
    assert event["type"] == "response.done"
    body: Event = event["response"]
    return body


def test_a_spoken_turn_passes_the_checker() -> None:
    checker = OrderChecker()
    rig = Rig(opened=False)
    rig.protocol.open()
    rig.protocol.receive(
        json.dumps(
            {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"transcription": {}}}}}
        )
    )
    for notice in (
        n.SpeechStarted("item_u", 100),
        n.SpeechStopped("item_u", 900),
        n.InputCommitted("item_u", None),
        n.ItemAdded(USER, None, True),
        n.TranscriptDelta("item_u", "Hello?"),
        n.TranscriptCompleted("item_u", "Hello?", 800),
        n.ResponseCreated(CREATED),
        started(SAID),
        n.OutputTranscriptDelta("resp_1", "item_a", "Hi "),
    ):
        rig.protocol.encode(notice)
    rig.protocol.encode_audio("resp_1", "item_a", b"\1\0" * 480)
    rig.protocol.encode(n.OutputTranscriptDelta("resp_1", "item_a", "there."))
    rig.protocol.encode(n.OutputEnded("resp_1", SAID, "item_u", "Hi there."))
    rig.protocol.encode(n.ResponseDone(n.Response("resp_1", "completed", True, SAID)))
    events = rig.take()
    for event in events:
        checker.feed(event)
    checker.finish()
    assert types(events) == [
        "session.created",
        "session.updated",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    assert rig.protocol.take() == []


def test_input_buffer_events() -> None:
    events = Rig().encode(
        n.SpeechStarted("i", 10),
        n.SpeechStopped("i", 20),
        n.InputCommitted("i", "h"),
        n.InputCleared(),
        n.IdleTimeout("j", 30, 40),
    )
    for event in events:
        assert event.pop("event_id").startswith("event_")
    assert events == [
        {"type": "input_audio_buffer.speech_started", "audio_start_ms": 10, "item_id": "i"},
        {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 20, "item_id": "i"},
        {"type": "input_audio_buffer.committed", "previous_item_id": "h", "item_id": "i"},
        {"type": "input_audio_buffer.cleared"},
        {"type": "input_audio_buffer.timeout_triggered", "audio_start_ms": 30, "audio_end_ms": 40, "item_id": "j"},
    ]


def test_item_events() -> None:
    text = Item("i", "user", PartKind.INPUT_TEXT, "hello")
    added, finished, half, retrieved, deleted, truncated = Rig().encode(
        n.ItemAdded(text, None, True),
        n.ItemAdded(text, "h", False),
        n.ItemRetrieved(Item("a", "assistant", PartKind.OUTPUT_AUDIO, "Hi", "incomplete", True)),
        n.ItemDeleted("i"),
        n.ItemTruncated("a", 0, 350),
    )
    assert types([added, finished, half]) == [
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.added",
    ]
    assert added["item"] == finished["item"] == shown("i", {"type": "input_text", "text": "hello"}, role="user")
    assert (added["previous_item_id"], half["previous_item_id"]) == (None, "h")
    assert retrieved["item"] == shown("a", {"type": "output_audio", "transcript": "Hi"}, status="incomplete")
    assert (deleted["type"], deleted["item_id"]) == ("conversation.item.deleted", "i")
    assert truncated["type"] == "conversation.item.truncated"
    assert (truncated["item_id"], truncated["content_index"], truncated["audio_end_ms"]) == ("a", 0, 350)


def test_transcripts_are_told_only_when_transcription_is_on() -> None:
    rig = Rig()
    heard = Item("i", "user", PartKind.INPUT_AUDIO, "hello")
    rig.encode(n.InputCommitted("i", None))
    assert rig.encode(n.TranscriptDelta("i", "hello"), n.TranscriptCompleted("i", "hello", 500)) == []
    assert rig.encode(n.TranscriptFailed("i", "code", "message")) == []
    (retrieved,) = rig.encode(n.ItemRetrieved(heard))
    assert retrieved["item"]["content"] == [{"type": "input_audio", "transcript": None}]

    rig.update(audio={"input": {"transcription": {}}})
    (retrieved,) = rig.encode(n.ItemRetrieved(heard))
    assert retrieved["item"]["content"] == [{"type": "input_audio", "transcript": "hello"}]
    rig.encode(n.InputCommitted("j", None), n.InputCommitted("k", None))
    # What was committed with transcription on gets its one end, also when it is switched off meanwhile.
    rig.update(audio={"input": {"transcription": None}})
    delta, completed = rig.encode(n.TranscriptDelta("j", "yes"), n.TranscriptCompleted("j", "yes", 500))
    assert (delta["delta"], delta["content_index"]) == ("yes", 0)
    assert completed["transcript"] == "yes"
    assert completed["usage"] == {"type": "duration", "seconds": 0.5}
    (failed,) = rig.encode(n.TranscriptFailed("k", "stt_failed", "it broke"))
    assert (failed["error"]["code"], failed["error"]["message"]) == ("stt_failed", "it broke")
    assert rig.encode(n.TranscriptCompleted("k", "", 0)) == []


def test_pending_transcripts_are_bounded() -> None:
    rig = Rig()
    rig.update(audio={"input": {"transcription": {}}})
    for index in range(MAX_PENDING_TRANSCRIPTS + 1):
        rig.protocol.encode(n.InputCommitted(f"i{index}", None))
    rig.protocol.take()
    assert rig.encode(n.TranscriptCompleted("i0", "", 0)) == []
    assert len(rig.encode(n.TranscriptCompleted("i1", "", 0))) == 1


def test_a_response_begins_empty() -> None:
    rig = Rig()
    (event,) = rig.encode(n.ResponseCreated(n.Response("resp_1", "in_progress", True, SAID, metadata={"k": "v"})))
    assert event["response"] == {
        "object": "realtime.response",
        "id": "resp_1",
        "status": "in_progress",
        "status_details": None,
        "output": [],
        "conversation_id": "conv_1",
        "output_modalities": ["audio"],
        "audio": {"output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "amy"}},
        "metadata": {"k": "v"},
        "usage": None,
    }


def test_audio_output() -> None:
    rig = Rig()
    item_added, added, part_added = rig.encode(started(SAID))
    content = {"response_id": "resp_1", "item_id": "item_a", "output_index": 0, "content_index": 0}
    assert item_added["item"] == added["item"] == shown("item_a", status="in_progress")
    assert added["previous_item_id"] == "item_u"
    assert part_added["part"] == {"type": "audio", "transcript": ""}
    assert content.items() <= part_added.items()

    rig.protocol.encode_audio("resp_1", "item_a", b"\1\2\3\4")
    (delta,) = rig.take()
    assert delta["type"] == "response.output_audio.delta"
    assert content.items() <= delta.items()
    assert base64.b64decode(delta["delta"]) == b"\1\2\3\4"
    (delta,) = rig.encode(n.OutputTranscriptDelta("resp_1", "item_a", "Hi"))
    assert content.items() <= delta.items()
    assert (delta["type"], delta["delta"]) == ("response.output_audio_transcript.delta", "Hi")

    cut = Item("item_a", "assistant", PartKind.OUTPUT_AUDIO, "Hi", "incomplete", True)
    ended = rig.encode(n.OutputEnded("resp_1", cut, "item_u", "Hi there."))
    assert ended[0].keys() == {"type", "event_id", *content}
    assert ended[1]["transcript"] == "Hi there."
    assert ended[2]["part"] == {"type": "audio", "transcript": "Hi there."}
    expected = shown("item_a", {"type": "output_audio", "transcript": "Hi"}, status="incomplete")
    assert ended[3]["item"] == ended[4]["item"] == expected


def test_text_output() -> None:
    rig = Rig()
    events = rig.encode(
        started(WROTE),
        n.OutputTextDelta("resp_1", "item_a", "Hi there."),
        n.OutputEnded("resp_1", WROTE, "item_u", "Hi there."),
    )
    assert types(events) == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
    ]
    assert events[2]["part"] == {"type": "text", "text": ""}
    assert events[4]["text"] == "Hi there."
    assert events[5]["part"] == {"type": "text", "text": "Hi there."}
    assert events[6]["item"] == shown("item_a", {"type": "output_text", "text": "Hi there."})


def test_usage_counts_the_kept_cache_as_cached() -> None:
    response = n.Response("resp_1", "completed", True, SAID, usage=Usage(100, 30, 20))
    body = done(Rig(), response)
    assert body["status_details"] == {"type": "completed"}
    assert body["output"] == [shown("item_a", {"type": "output_audio", "transcript": "Hi there."})]
    assert body["usage"] == {
        "total_tokens": 120,
        "input_tokens": 100,
        "output_tokens": 20,
        "input_token_details": {
            "text_tokens": 100,
            "audio_tokens": 0,
            "cached_tokens": 70,
            "cached_tokens_details": {"text_tokens": 70, "audio_tokens": 0},
        },
        "output_token_details": {"text_tokens": 20, "audio_tokens": 0},
    }


@pytest.mark.parametrize(
    ("response", "details"),
    [
        (n.Response("r", "cancelled", True, reason="turn_detected"), {"type": "cancelled", "reason": "turn_detected"}),
        (n.Response("r", "cancelled", False, reason="client_cancelled"),
         {"type": "cancelled", "reason": "client_cancelled"}),
        (n.Response("r", "incomplete", True, reason="max_output_tokens"),
         {"type": "incomplete", "reason": "max_output_tokens"}),
        (n.Response("r", "failed", True, reason="error", error_code="llm_failed", error_message="it broke"),
         {"type": "failed", "error": {"type": "server_error", "code": "llm_failed", "message": "it broke"}}),
        (n.Response("r", "failed", True, reason="error"),
         {"type": "failed",
          "error": {"type": "server_error", "code": "internal_error", "message": "the response failed"}}),
    ],
)  # fmt: skip
def test_status_details(response: n.Response, details: Event) -> None:
    body = done(Rig(), response)
    assert body["status_details"] == details
    assert body["output"] == []
    assert body["output_modalities"] == (["audio"] if response.audio_output else ["text"])


def test_errors_of_the_session() -> None:
    (event,) = Rig().encode(n.CommandFailed("item_not_found", "no item has this id", "item_id", "evt_c"))
    assert event["error"] == {
        "type": "invalid_request_error",
        "code": "item_not_found",
        "message": "no item has this id",
        "param": "item_id",
        "event_id": "evt_c",
    }


def test_binary_frame() -> None:
    rig = Rig()
    rig.protocol.receive_binary()
    (event,) = rig.take()
    assert event["error"]["code"] == "unexpected_binary_frame"


def test_ids_that_need_escaping_stay_whole() -> None:
    rig = Rig()
    rig.protocol.encode_audio('r"1', "i\\\n", b"\0\0")
    (event,) = rig.take()
    assert (event["response_id"], event["item_id"]) == ('r"1', "i\\\n")


def test_every_event_id_is_new() -> None:
    rig = Rig()
    events = rig.encode(*[started(SAID)] * 3)
    rig.protocol.encode_audio("r", "i", b"\0\0")
    events += rig.take()
    assert len({event["event_id"] for event in events}) == len(events) == 10


def test_an_engines_failure_is_no_fault_of_the_clients() -> None:
    rig = Rig()
    rig.protocol.encode(n.CommandFailed("overloaded", "too much to do", fault="server"))
    error = json.loads(rig.protocol.take()[-1])["error"]
    assert (error["type"], error["code"]) == ("server_error", "overloaded")
