"""The 11 client events of the Realtime protocol, one of ours, and :func:`parse_event` that makes one of a text frame.

Parsing has no state and may run in any thread; 20 MiB take about 60 ms, which is why a large frame should not be
parsed on the event loop. Unknown fields are ignored, but for those of ``session``.
"""

from __future__ import annotations

import binascii
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw

from gateway.realtime.errors import MAX_MESSAGE_CHARS, ProtocolError, Rejected
from gateway.realtime.session_patch import (
    FormatPatch,
    Instructions,
    Metadata,
    Modalities,
    OutputTokens,
    SessionPatch,
    VoiceId,
)

MAX_APPEND_BYTES = 15 * 1024 * 1024
"""Audio in one ``input_audio_buffer.append``, decoded; OpenAI's limit."""

PORTION_CHARS = 64 * 1024
"""Of base64, decoded at a time; a multiple of 4. All of it at once would hold the interpreter, and with it the event
loop, for 45 ms in whatever thread it is."""

MAX_EVENT_ID_CHARS = 512
MAX_PARTS = 64
MAX_INPUT_ITEMS = 256

EventId = Annotated[str, Meta(max_length=MAX_EVENT_ID_CHARS)] | None
ItemId = Annotated[str, Meta(min_length=1, max_length=128)]
Index = Annotated[int, Meta(ge=0, le=2**31)]


class SessionUpdate(msgspec.Struct, frozen=True, tag="session.update"):
    session: SessionPatch
    event_id: EventId = None


class InputAppend(msgspec.Struct, frozen=True, tag="input_audio_buffer.append"):
    audio: str
    event_id: EventId = None


class ParsedAppend(msgspec.Struct, frozen=True):
    """An :class:`InputAppend` with its base64 undone."""

    audio: bytes
    event_id: str | None


class InputCommit(msgspec.Struct, frozen=True, tag="input_audio_buffer.commit"):
    event_id: EventId = None


class InputClear(msgspec.Struct, frozen=True, tag="input_audio_buffer.clear"):
    event_id: EventId = None


class OutputClear(msgspec.Struct, frozen=True, tag="output_audio_buffer.clear"):
    event_id: EventId = None


class DtmfPressed(msgspec.Struct, frozen=True, tag="offhook.dtmf"):
    """An extension: keys of a keypad on a page. The keys may be a PIN: no error quotes them, no log holds them."""

    digits: Annotated[str, Meta(pattern=r"^[0-9*#A-D]{1,32}\Z")]
    event_id: EventId = None


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message; which of the fields may be there depends on ``type``."""

    type: str
    text: str | None = None
    audio: str | None = None
    transcript: str | None = None


class ClientItem(msgspec.Struct, frozen=True):
    """An item as a client writes it. Anything but a ``message`` is refused later, with its own code."""

    type: str
    id: ItemId | None = None
    role: Literal["system", "user", "assistant"] | None = None
    content: Annotated[list[ContentPart], Meta(min_length=1, max_length=MAX_PARTS)] | None = None


class ItemCreate(msgspec.Struct, frozen=True, tag="conversation.item.create"):
    item: ClientItem
    previous_item_id: ItemId | None = None
    event_id: EventId = None


class ItemRetrieve(msgspec.Struct, frozen=True, tag="conversation.item.retrieve"):
    item_id: ItemId
    event_id: EventId = None


class ItemDelete(msgspec.Struct, frozen=True, tag="conversation.item.delete"):
    item_id: ItemId
    event_id: EventId = None


class ItemTruncate(msgspec.Struct, frozen=True, tag="conversation.item.truncate"):
    item_id: ItemId
    content_index: Index
    audio_end_ms: Index
    event_id: EventId = None


class ResponseOutput(msgspec.Struct, frozen=True):
    format: FormatPatch | None = None
    voice: str | VoiceId | None = None


class ResponseAudio(msgspec.Struct, frozen=True):
    output: ResponseOutput | None = None


class ResponseParams(msgspec.Struct, frozen=True):
    """The ``response`` of a ``response.create``."""

    conversation: Literal["auto", "none"] | None = None
    input: Annotated[list[ClientItem], Meta(max_length=MAX_INPUT_ITEMS)] | None = None
    instructions: Instructions | None = None
    output_modalities: Modalities | None = None
    max_output_tokens: OutputTokens | None = None
    audio: ResponseAudio | None = None
    metadata: Metadata | None = None
    tools: list[Raw] | None = None
    tool_choice: str | dict[str, Raw] | None = None
    prompt: dict[str, Raw] | None = None


class ResponseCreate(msgspec.Struct, frozen=True, tag="response.create"):
    response: ResponseParams | None = None
    event_id: EventId = None


class ResponseCancel(msgspec.Struct, frozen=True, tag="response.cancel"):
    response_id: str | None = None
    event_id: EventId = None


_Plain = (
    SessionUpdate
    | InputCommit
    | InputClear
    | OutputClear
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
    | DtmfPressed
)
ParsedEvent = _Plain | ParsedAppend

_TYPES = frozenset(
    str(kind.__struct_config__.tag)
    for kind in (
        SessionUpdate,
        InputAppend,
        InputCommit,
        InputClear,
        OutputClear,
        ItemCreate,
        ItemRetrieve,
        ItemDelete,
        ItemTruncate,
        ResponseCreate,
        ResponseCancel,
        DtmfPressed,
    )
)


class _Envelope(msgspec.Struct):
    """What can be read of an event that is otherwise wrong."""

    type: Any = UNSET
    event_id: Any = None


_events: msgspec.json.Decoder[_Plain | InputAppend] = msgspec.json.Decoder(_Plain | InputAppend)
_envelopes = msgspec.json.Decoder(_Envelope)


def parse_event(text: str) -> ParsedEvent | ProtocolError:
    """One text frame, decoded and checked as far as that needs no state. Never raises."""
    try:
        event = _events.decode(text)
    except (ValueError, RecursionError) as fault:
        return _explain(text, fault)
    if not isinstance(event, InputAppend):
        return event
    try:
        return ParsedAppend(_decode_audio(event.audio), event.event_id)
    except Rejected as refusal:
        return refusal.error(event.event_id)


def _decode_audio(text: str) -> bytes:
    """Strict base64: no white space, padded, nothing after the padding."""
    if len(text) > -(-MAX_APPEND_BYTES // 3) * 4:
        raise Rejected("audio_too_large", "an append holds at most 15 MiB of audio", "audio")
    portions = range(0, len(text), PORTION_CHARS)
    try:
        audio = b"".join([binascii.a2b_base64(text[at : at + PORTION_CHARS], strict_mode=True) for at in portions])
    except ValueError:
        audio = None
    # CPython's strict mode lets padding follow a complete group, or end a portion; the length tells.
    if audio is None or len(audio) * 4 != len(text) * 3 - text[-2:].count("=") * 4:
        raise Rejected("invalid_audio", "audio is not valid base64", "audio")
    return audio


# --- telling what is wrong ------------------------------------------------------------------------------------


def _explain(text: str, fault: Exception) -> ProtocolError:
    """The error of a frame that is no event, with the client's event_id where it can be read."""
    try:
        envelope = _envelopes.decode(text)
    except msgspec.ValidationError:
        return ProtocolError("invalid_event", "an event is a JSON object")
    except (ValueError, RecursionError):
        return ProtocolError("invalid_json", "the frame is not valid JSON")
    event_id = envelope.event_id
    if not isinstance(event_id, str) or len(event_id) > MAX_EVENT_ID_CHARS:
        event_id = None
    if not isinstance(envelope.type, str):
        return ProtocolError("invalid_event", "an event has a type, a string", "type", event_id)
    if envelope.type not in _TYPES:
        return ProtocolError("unknown_event_type", _cut(f"no client event is named {envelope.type}"), "type", event_id)
    message, param = _split_path(str(fault))
    if param == "session" or param.startswith("session."):
        return _explain_session(message, param, event_id)
    return ProtocolError("invalid_event", _cut(message), param or None, event_id)


_MISSING = re.compile(r"^Object missing required field `(\w+)`")
_UNKNOWN = re.compile(r"^Object contains unknown field `([^`]*)`")
_WRONG_TYPE = re.compile(r"^Expected `[^`]*`, got `")
_PATH = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`$")


def _split_path(fault: str) -> tuple[str, str]:
    """msgspec's ``Expected `int`, got `str` - at `$.a.b[0]``` as a message and ``a.b[0]``; a missing field is
    named itself."""
    path = _PATH.search(fault)
    message, param = (fault[: path.start()], path[1]) if path else (fault, "")
    if missing := _MISSING.match(message):
        param = f"{param}.{missing[1]}" if param else missing[1]
    return message, param


def _explain_session(message: str, param: str, event_id: str | None) -> ProtocolError:
    """The finer codes OpenAI uses for session parameters."""
    code = "invalid_value"
    if _MISSING.match(message):
        code = "missing_required_parameter"
    elif unknown := _UNKNOWN.match(message):
        code, param = "unknown_parameter", f"{param}.{unknown[1]}"
    elif _WRONG_TYPE.match(message):
        code = "invalid_type"
    return ProtocolError(code, _cut(message), _cut(param), event_id)


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"
