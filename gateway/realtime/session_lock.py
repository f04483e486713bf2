"""What a locked session lets its client do: take part in the call, and nothing of what the agent is.

How the caller takes part is the page's (turn detection, formats, text or speech, transcripts, what is told); who
answers, with what words and at what length, is the operator's. Stock clients open with updates that carry both, so an
update is taken for what is the page's, and ignored for the rest, also where it repeats what is in force: the answer
must not tell whether a guess was right. Null where it keeps a value is no change.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from gateway.realtime import client_events as client
from gateway.realtime.client_events import ClientItem, ParsedEvent
from gateway.realtime.errors import Rejected
from gateway.realtime.session_patch import AudioPatch, InputPatch, OutputPatch, SessionPatch, TranscriptionPatch
from streaming.notices import ItemAdded, ItemRetrieved, Notice

CODE = "session_locked"

IGNORED = "locked_fields_ignored"
"""What is counted for an update of which not all was taken."""

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


Patch = TypeVar("Patch", bound=msgspec.Struct)


def refuse_event(event: ParsedEvent) -> None:
    """Raises :class:`Rejected` for an event that a locked session does not take. Updates it does take, in part."""
    match event:
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


def open_fields(patch: SessionPatch) -> SessionPatch:
    """What of an update a locked session takes; equal to ``patch`` where that is all of it."""
    audio = patch.audio or AudioPatch()
    hears, speaks = audio.input, audio.output
    if hears is not None:
        hears = _without(hears, _fixed(hears, INPUT_FIELDS))
        if isinstance(hears.transcription, TranscriptionPatch):
            heard = _without(hears.transcription, _fixed(hears.transcription, TRANSCRIPTION_FIELDS))
            hears = replace(hears, transcription=heard)
    if speaks is not None:
        speaks = _without(speaks, _fixed(speaks, OUTPUT_FIELDS))
    taken = _without(patch, _fixed(patch, SESSION_FIELDS))
    return taken if taken.audio is None else replace(taken, audio=AudioPatch(hears, speaks))


def refuse_session(patch: SessionPatch) -> None:
    """Of a session that comes with an offer, where the answer can say no before there is a call. Raises
    :class:`Rejected`."""
    audio = patch.audio or AudioPatch()
    hears, speaks = audio.input or InputPatch(), audio.output or OutputPatch()
    _only(patch, SESSION_FIELDS, "session")
    _only(hears, INPUT_FIELDS, "session.audio.input")
    _only(speaks, OUTPUT_FIELDS, "session.audio.output")
    if isinstance(hears.transcription, TranscriptionPatch):
        _only(hears.transcription, TRANSCRIPTION_FIELDS, "session.audio.input.transcription")


def show_locked(session: dict[str, Any]) -> dict[str, Any]:
    """A session as it is shown, without what the caller is not to know."""
    shown = {name: value for name, value in session.items() if name not in HIDDEN}
    heard = shown["audio"]["input"]
    if heard["transcription"] is not None:
        transcription = {name: getattr(heard["transcription"], name) for name in ("model", "language")}
        shown["audio"] = {**shown["audio"], "input": {**heard, "transcription": transcription}}
    return shown


def hide_tools(notice: Notice) -> Notice:
    """A notice as it is told: that the agent did something is no secret, how it is told to is."""
    if isinstance(notice, ItemAdded | ItemRetrieved) and not notice.item.spoken:
        return replace(notice, item=replace(notice.item, text=""))
    return notice


def _refuse_item(item: ClientItem) -> None:
    if item.type != "message":
        raise _locked("an item is a message of the caller", "item.type")
    if item.role not in (None, "user"):
        raise _locked("a message is one of the caller", "item.role")
    if sum(len(part.text or "") + len(part.transcript or "") for part in item.content or ()) > MAX_MESSAGE_CHARS:
        message = f"a message holds at most {MAX_MESSAGE_CHARS} characters here"
        raise Rejected("item_too_long", message, "item.content")


def _only(given: msgspec.Struct, allowed: frozenset[str], path: str) -> None:
    for name in _fixed(given, allowed):
        raise _locked("this is fixed for the call", f"{path}.{name}")


def _fixed(given: msgspec.Struct, allowed: frozenset[str]) -> dict[str, Any]:
    """The fields that ask for what is fixed, with their defaults, which ask for nothing: a field whose default is None
    keeps its value where the client writes null."""
    return {
        field.name: field.default
        for field in msgspec.structs.fields(given)
        if field.name not in allowed and getattr(given, field.name) is not field.default
    }


def _without(given: Patch, fixed: dict[str, Any]) -> Patch:
    return replace(given, **fixed) if fixed else given


def _locked(message: str, param: str) -> Rejected:
    return Rejected(CODE, message, param)
