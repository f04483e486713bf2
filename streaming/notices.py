"""What a session tells whoever is at the other end. The Realtime encoder turns each into its server events."""

from __future__ import annotations

from typing import Literal

import msgspec

from streaming.conversation import Item
from streaming.jobs import Usage
from streaming.turn_times import TurnTimes

Status = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]
Reason = Literal["turn_detected", "client_cancelled", "max_output_tokens", "error"]


class SpeechStarted(msgspec.Struct, frozen=True):
    item_id: str
    audio_start_ms: int


class SpeechStopped(msgspec.Struct, frozen=True):
    item_id: str
    audio_end_ms: int


class InputCommitted(msgspec.Struct, frozen=True):
    item_id: str
    previous_item_id: str | None


class InputCleared(msgspec.Struct, frozen=True):
    """The client cleared the buffer, or what was heard in it held no words."""


class IdleTimeout(msgspec.Struct, frozen=True):
    item_id: str
    audio_start_ms: int
    audio_end_ms: int


class ItemAdded(msgspec.Struct, frozen=True):
    """``conversation.item.added``, and ``.done`` with it where ``done`` is set."""

    item: Item
    previous_item_id: str | None
    done: bool


class ItemRetrieved(msgspec.Struct, frozen=True):
    item: Item


class ItemDeleted(msgspec.Struct, frozen=True):
    item_id: str


class ItemTruncated(msgspec.Struct, frozen=True):
    """``text`` is what the context keeps of it, the words that were heard; None while it may yet go on."""

    item_id: str
    content_index: int
    audio_end_ms: int
    text: str | None = None


class TranscriptDelta(msgspec.Struct, frozen=True):
    item_id: str
    delta: str


class TranscriptCompleted(msgspec.Struct, frozen=True):
    item_id: str
    transcript: str
    audio_ms: int


class TranscriptFailed(msgspec.Struct, frozen=True):
    item_id: str
    code: str
    message: str


class Response(msgspec.Struct, frozen=True):
    """A snapshot. ``item`` is the assistant message, None before it was added."""

    id: str
    status: Status
    audio_output: bool
    item: Item | None = None
    reason: Reason | None = None
    error_code: str | None = None
    error_message: str | None = None
    usage: Usage = Usage()
    output_ms: int = 0
    metadata: dict[str, str] | None = None


class ResponseCreated(msgspec.Struct, frozen=True):
    response: Response


class OutputStarted(msgspec.Struct, frozen=True):
    """``response.output_item.added``, ``conversation.item.added``, ``response.content_part.added``."""

    response_id: str
    item: Item
    previous_item_id: str | None


class OutputTranscriptDelta(msgspec.Struct, frozen=True):
    response_id: str
    item_id: str
    delta: str


class OutputTextDelta(msgspec.Struct, frozen=True):
    response_id: str
    item_id: str
    delta: str


class OutputEnded(msgspec.Struct, frozen=True):
    """``output_audio.done``, ``output_audio_transcript.done`` (or ``output_text.done``), ``content_part.done``,
    ``output_item.done``, ``conversation.item.done``. ``text`` is every delta joined."""

    response_id: str
    item: Item
    previous_item_id: str | None
    text: str


class ResponseDone(msgspec.Struct, frozen=True):
    response: Response


class PlaybackStarted(msgspec.Struct, frozen=True):
    """The first frame of a reply left. Told, as its two ends are, only where the output buffer is ours."""

    response_id: str


class PlaybackStopped(msgspec.Struct, frozen=True):
    """The last of a reply was heard."""

    response_id: str


class PlaybackCleared(msgspec.Struct, frozen=True):
    """A reply was silenced before its end."""

    response_id: str


class DtmfReceived(msgspec.Struct, frozen=True):
    """The caller pressed a key of the keypad: one of ``0-9*#A-D``."""

    digit: str


class TurnRecorded(msgspec.Struct, frozen=True):
    """How long a turn took. Told by the call, as it files the record."""

    times: TurnTimes


class CallEnded(msgspec.Struct, frozen=True):
    """The last notice of a call, told by the call itself: why it ended."""

    cause: str


class CommandFailed(msgspec.Struct, frozen=True):
    """One ``error`` event; the call goes on."""

    code: str
    message: str
    param: str | None = None
    event_id: str | None = None
    fault: Literal["client", "server"] = "client"


Notice = (
    SpeechStarted
    | SpeechStopped
    | InputCommitted
    | InputCleared
    | IdleTimeout
    | ItemAdded
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | TranscriptDelta
    | TranscriptCompleted
    | TranscriptFailed
    | ResponseCreated
    | OutputStarted
    | OutputTranscriptDelta
    | OutputTextDelta
    | OutputEnded
    | ResponseDone
    | PlaybackStarted
    | PlaybackStopped
    | PlaybackCleared
    | DtmfReceived
    | TurnRecorded
    | CallEnded
    | CommandFailed
)
