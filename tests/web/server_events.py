"""Server events as the gateway sends them, for the page's tests."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

_TRANSCRIPTION = "conversation.item.input_audio_transcription"


def speech_started(item_id: str) -> Event:
    return {"type": "input_audio_buffer.speech_started", "item_id": item_id}


def heard_partly(item_id: str, text: str) -> Event:
    return {"type": f"{_TRANSCRIPTION}.delta", "item_id": item_id, "delta": text}


def heard(item_id: str, text: str) -> list[Event]:
    """The end of a turn that :func:`speech_started` began."""
    return [
        {"type": "input_audio_buffer.speech_stopped", "item_id": item_id},
        {"type": "input_audio_buffer.committed", "item_id": item_id},
        {"type": f"{_TRANSCRIPTION}.completed", "item_id": item_id, "transcript": text},
    ]


def said(item_id: str, text: str) -> list[Event]:
    return [speech_started(item_id), *heard(item_id, text)]


def answer_began(response_id: str, item_id: str, text: str) -> list[Event]:
    """Its text is all there, its sound has begun."""
    return [
        {"type": "response.created", "response": {"id": response_id, "status": "in_progress"}},
        {"type": "response.output_item.added", "response_id": response_id, "item": {"id": item_id}},
        {
            "type": "response.output_audio_transcript.delta",
            "response_id": response_id,
            "item_id": item_id,
            "delta": text,
        },
        {"type": "output_audio_buffer.started", "response_id": response_id},
    ]


def answer_ended(response_id: str, item_id: str, text: str, *, heard: str | None = None) -> list[Event]:
    """``text`` is all that was made; ``heard``: it was cut, and so much of it was heard."""

    def item(text: str) -> Event:
        status = "completed" if heard is None else "incomplete"
        return {
            "id": item_id,
            "role": "assistant",
            "status": status,
            "content": [{"type": "output_audio", "transcript": text}],
        }

    status = "completed" if heard is None else "cancelled"
    kept = item(text if heard is None else heard)
    events = [
        {"type": "response.output_item.done", "response_id": response_id, "item": item(text)},
        {"type": "response.done", "response": {"id": response_id, "status": status, "output": [kept]}},
    ]
    if heard is None:
        return [*events, {"type": "output_audio_buffer.stopped", "response_id": response_id}]
    return [
        *events,
        {"type": "output_audio_buffer.cleared", "response_id": response_id},
        {"type": "conversation.item.truncated", "item_id": item_id, "audio_end_ms": 400, "transcript": heard},
    ]


def answered(response_id: str, item_id: str, text: str) -> list[Event]:
    return [*answer_began(response_id, item_id, text), *answer_ended(response_id, item_id, text)]


def turn(response_id: str, utterance: int = 1, **times: Any) -> Event:
    known = {
        "speculative": True,
        "decision_ms": 420.0,
        "final_ms": 180.0,
        "first_token_ms": 260.0,
        "first_audio_ms": 410.0,
        "first_sent_ms": 440.0,
        "cut_to_silence_ms": None,
    }
    return {"type": "offhook.turn", "turn": {"response_id": response_id, "utterance": utterance, **known, **times}}


def call_ended(cause: str) -> Event:
    return {"type": "offhook.call_ended", "cause": cause}
