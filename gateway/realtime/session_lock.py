"""What a locked session lets its client do: take part in the call, and nothing of what the agent is.

How the caller takes part is the page's (turn detection, formats, text or speech, transcripts, what is told); who
answers, with what words and at what length, is the operator's. A field is refused by its name, also where it repeats
what is in force: the answer must not tell whether a guess was right. Null where it keeps a value is no change.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.realtime import client_events as client
from gateway.realtime.client_events import ClientItem, ParsedEvent
from gateway.realtime.errors import Rejected
from gateway.realtime.session_patch import AudioPatch, InputPatch, OutputPatch, SessionPatch, TranscriptionPatch

CODE = "session_locked"

MAX_MESSAGE_CHARS = 4_000
"""Of a text message in a locked session: what a person types, not a document to work through."""

SESSION_FIELDS = frozenset({"type", "model", "output_modalities", "include", "audio"})
INPUT_FIELDS = frozenset({"format", "turn_detection", "transcription", "noise_reduction"})
OUTPUT_FIELDS = frozenset({"format"})
TRANSCRIPTION_FIELDS = frozenset({"model"})
"""Its ``language`` is also the one the agent speaks."""
RESPONSE_FIELDS = frozenset({"conversation", "output_modalities", "metadata", "audio"})

HIDDEN = frozenset({"instructions", "tools", "tool_choice", "tracing", "prompt"})
"""Of the session as it is shown."""


def refuse_event(event: ParsedEvent) -> None:
    """Raises :class:`Rejected` for an event that a locked session does not take."""
    match event:
        case client.SessionUpdate():
            _refuse_patch(event.session)
        case client.ItemCreate():
            if event.previous_item_id is not None:
                raise _locked("what was said keeps its order", "previous_item_id")
            _refuse_item(event.item)
        case client.ItemDelete():
            raise _locked("what was said stays", "type")
        case client.ResponseCreate(response) if response is not None:
            _only(response, RESPONSE_FIELDS, "response")
        case _:
            pass


def show_locked(session: dict[str, Any]) -> dict[str, Any]:
    """A session as it is shown, without what the caller is not to know."""
    shown = {name: value for name, value in session.items() if name not in HIDDEN}
    heard = shown["audio"]["input"]
    if heard["transcription"] is not None:
        transcription = {name: getattr(heard["transcription"], name) for name in ("model", "language")}
        shown["audio"] = {**shown["audio"], "input": {**heard, "transcription": transcription}}
    return shown


def _refuse_patch(patch: SessionPatch) -> None:
    audio = patch.audio or AudioPatch()
    hears, speaks = audio.input or InputPatch(), audio.output or OutputPatch()
    _only(patch, SESSION_FIELDS, "session")
    _only(hears, INPUT_FIELDS, "session.audio.input")
    _only(speaks, OUTPUT_FIELDS, "session.audio.output")
    if isinstance(hears.transcription, TranscriptionPatch):
        _only(hears.transcription, TRANSCRIPTION_FIELDS, "session.audio.input.transcription")


def _refuse_item(item: ClientItem) -> None:
    if item.type != "message":
        raise _locked("an item is a message of the caller", "item.type")
    if item.role not in (None, "user"):
        raise _locked("a message is one of the caller", "item.role")
    if sum(len(part.text or "") + len(part.transcript or "") for part in item.content or ()) > MAX_MESSAGE_CHARS:
        message = f"a message holds at most {MAX_MESSAGE_CHARS} characters here"
        raise Rejected("item_too_long", message, "item.content")


def _only(given: msgspec.Struct, allowed: frozenset[str], path: str) -> None:
    """A field whose default is None keeps its value where the client writes null."""
    for field in msgspec.structs.fields(given):
        if field.name not in allowed and getattr(given, field.name) is not field.default:
            raise _locked("this is fixed for the call", f"{path}.{field.name}")


def _locked(message: str, param: str) -> Rejected:
    return Rejected(CODE, message, param)
