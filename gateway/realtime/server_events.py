"""The server events of the Realtime protocol: a notice of the session as the events it stands for, in order.

Events are plain dicts without ``event_id``; :func:`stamp` makes the JSON text with one.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from gateway.realtime.errors import ErrorType, ProtocolError
from gateway.realtime.items import show_item
from gateway.realtime.responses import show_response
from gateway.realtime.session_object import Session
from gateway.realtime.session_patch import EXTENSIONS
from gateway.records.call_record import turn_view
from streaming import notices
from streaming.conversation import Item, PartKind

Event = dict[str, Any]

_json = msgspec.json.Encoder()

ResponseNotice = (
    notices.ResponseCreated
    | notices.OutputStarted
    | notices.OutputTranscriptDelta
    | notices.OutputTextDelta
    | notices.OutputEnded
    | notices.ResponseDone
)
_PLAYBACK = {
    notices.PlaybackStarted: "output_audio_buffer.started",
    notices.PlaybackStopped: "output_audio_buffer.stopped",
    notices.PlaybackCleared: "output_audio_buffer.cleared",
}


def stamp(event: Event, event_id: str) -> str:
    """The JSON text of an event."""
    return _json.encode({"type": event["type"], "event_id": event_id, **event}).decode()


def audio_delta(response_id: str, item_id: str, audio: bytes, event_id: str) -> str:
    """``response.output_audio.delta``, put together by hand: there are 50 a second a call, mostly base64."""
    delta = binascii.b2a_base64(audio, newline=False).decode("ascii")
    ids = f'"event_id":{_quote(event_id)},"response_id":{_quote(response_id)},"item_id":{_quote(item_id)}'
    return f'{{"type":"response.output_audio.delta",{ids},"output_index":0,"content_index":0,"delta":"{delta}"}}'


def _quote(text: str) -> str:
    return _json.encode(text).decode()


def error(fault: ProtocolError) -> Event:
    body = {
        "type": fault.type,
        "code": fault.code,
        "message": fault.message,
        "param": fault.param,
        "event_id": fault.event_id,
    }
    return {"type": "error", "error": body}


def events_of(
    notice: notices.Notice, session: Session, conversation_id: str, now_s: Callable[[], float]
) -> list[Event]:
    """The server events of one notice, in the order the protocol promises. ``now_s`` is Unix time."""
    match notice:
        case notices.SpeechStarted(item_id, start_ms):
            return [_input_buffer("speech_started", audio_start_ms=start_ms, item_id=item_id)]
        case notices.SpeechStopped(item_id, end_ms):
            return [_input_buffer("speech_stopped", audio_end_ms=end_ms, item_id=item_id)]
        case notices.InputCommitted(item_id, previous_item_id):
            return [_input_buffer("committed", previous_item_id=previous_item_id, item_id=item_id)]
        case notices.InputCleared():
            return [_input_buffer("cleared")]
        case notices.IdleTimeout(item_id, start_ms, end_ms):
            return [_input_buffer("timeout_triggered", audio_start_ms=start_ms, audio_end_ms=end_ms, item_id=item_id)]
        case notices.ItemAdded(item, previous_item_id, done):
            names = ("added", "done") if done else ("added",)
            shown = show_item(item, session.transcription is not None)
            return [_item(name, previous_item_id=previous_item_id, item=shown) for name in names]
        case notices.ItemRetrieved(item):
            return [_item("retrieved", item=show_item(item, session.transcription is not None))]
        case notices.ItemDeleted(item_id):
            return [_item("deleted", item_id=item_id)]
        case notices.ItemTruncated(item_id, content_index, end_ms, text):
            heard = {"transcript": text} if EXTENSIONS in session.include else {}
            return [_item("truncated", item_id=item_id, content_index=content_index, audio_end_ms=end_ms, **heard)]
        case notices.TranscriptDelta(item_id, delta):
            return [_transcription("delta", item_id, delta=delta)]
        case notices.TranscriptCompleted(item_id, transcript, audio_ms):
            usage = {"type": "duration", "seconds": audio_ms / 1_000}
            return [_transcription("completed", item_id, transcript=transcript, usage=usage)]
        case notices.TranscriptFailed(item_id, code, message):
            fault = {"type": "transcription_error", "code": code, "message": message, "param": None}
            return [_transcription("failed", item_id, error=fault)]
        case notices.DtmfReceived(digit):
            return [_input_buffer("dtmf_event_received", event=digit, received_at=int(now_s()))]
        case notices.PlaybackStarted() | notices.PlaybackStopped() | notices.PlaybackCleared():
            return [{"type": _PLAYBACK[type(notice)], "response_id": notice.response_id}]
        case notices.TurnRecorded(times):
            return [{"type": "offhook.turn", "turn": turn_view(times)}]
        case notices.CallEnded(cause):
            return [{"type": "offhook.call_ended", "cause": cause}]
        case notices.CommandFailed(code, message, param, event_id, fault):
            kind: ErrorType = "server_error" if fault == "server" else "invalid_request_error"
            return [error(ProtocolError(code, message, param, event_id, kind))]
        case _:
            return _response_events(notice, session, conversation_id)


def _response_events(notice: ResponseNotice, session: Session, conversation_id: str) -> list[Event]:
    match notice:
        case notices.ResponseCreated(response):
            return [{"type": "response.created", "response": show_response(response, session, conversation_id)}]
        case notices.OutputStarted(response_id, item, previous_item_id):
            return _output_started(response_id, item, previous_item_id)
        case notices.OutputTranscriptDelta(response_id, item_id, delta):
            return [
                {"type": "response.output_audio_transcript.delta", **_content(response_id, item_id), "delta": delta}
            ]
        case notices.OutputTextDelta(response_id, item_id, delta):
            return [{"type": "response.output_text.delta", **_content(response_id, item_id), "delta": delta}]
        case notices.OutputEnded(response_id, item, previous_item_id, text):
            return _output_ended(response_id, item, previous_item_id, text)
        case notices.ResponseDone(response):
            return [{"type": "response.done", "response": show_response(response, session, conversation_id)}]
        case _:
            assert_never(notice)


def _output_started(response_id: str, item: Item, previous_item_id: str | None) -> list[Event]:
    shown = {**show_item(item), "status": "in_progress", "content": []}
    return [
        {"type": "response.output_item.added", "response_id": response_id, "output_index": 0, "item": shown},
        _item("added", previous_item_id=previous_item_id, item=shown),
        {"type": "response.content_part.added", **_content(response_id, item.id), "part": _part(item.kind, "")},
    ]


def _output_ended(response_id: str, item: Item, previous_item_id: str | None, text: str) -> list[Event]:
    content = _content(response_id, item.id)
    if item.kind is PartKind.OUTPUT_AUDIO:
        ends: list[Event] = [
            {"type": "response.output_audio.done", **content},
            {"type": "response.output_audio_transcript.done", **content, "transcript": text},
        ]
    else:
        ends = [{"type": "response.output_text.done", **content, "text": text}]
    shown = show_item(item)
    return [
        *ends,
        {"type": "response.content_part.done", **content, "part": _part(item.kind, text)},
        {"type": "response.output_item.done", "response_id": response_id, "output_index": 0, "item": shown},
        _item("done", previous_item_id=previous_item_id, item=shown),
    ]


def _part(kind: PartKind, text: str) -> dict[str, str]:
    """Parts of ``response.content_part.*`` are named ``audio`` and ``text``, unlike those of items."""
    return {"type": "audio", "transcript": text} if kind is PartKind.OUTPUT_AUDIO else {"type": "text", "text": text}


def _content(response_id: str, item_id: str) -> dict[str, Any]:
    return {"response_id": response_id, "item_id": item_id, "output_index": 0, "content_index": 0}


def _input_buffer(name: str, **fields: Any) -> Event:
    return {"type": f"input_audio_buffer.{name}", **fields}


def _item(name: str, **fields: Any) -> Event:
    return {"type": f"conversation.item.{name}", **fields}


def _transcription(name: str, item_id: str, **fields: Any) -> Event:
    kind = f"conversation.item.input_audio_transcription.{name}"
    return {"type": kind, "item_id": item_id, "content_index": 0, **fields}
