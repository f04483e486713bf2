"""What a server told the caller beside sound: of a Realtime (GA) server, folded from its events. Sans-IO.

Only documented fields are read, and unknown events are ignored, as the protocol asks of clients (the types of the
``openai`` package's ``types/realtime`` folder), whatever their fields are.
"""

from __future__ import annotations

import msgspec

MAX_ERRORS = 100
MAX_ERROR_CHARACTERS = 1_000
MAX_TEXT_CHARACTERS = 200_000
"""Of what an agent says in one item: hours."""

SEND_S = 5.0
"""A server that reads nothing for so long has stalled."""


class EventError(msgspec.Struct, frozen=True):
    code: str | None = None
    type: str | None = None
    message: str | None = None


class Identified(msgspec.Struct, frozen=True):
    id: str | None = None


class ServerEvent(msgspec.Struct, frozen=True):
    """The union of the fields that a caller reads; absent ones are None."""

    type: str
    item_id: str | None = None
    response_id: str | None = None
    delta: str | None = None
    transcript: str | None = None
    session: Identified | None = None
    response: Identified | None = None
    error: EventError | None = None


KNOWN_EVENTS = frozenset(
    {
        "conversation.item.input_audio_transcription.completed",
        "conversation.item.input_audio_transcription.failed",
        "error",
        "input_audio_buffer.committed",
        "input_audio_buffer.speech_started",
        "output_audio_buffer.cleared",
        "output_audio_buffer.started",
        "output_audio_buffer.stopped",
        "response.created",
        "response.done",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.done",
        "session.created",
        "session.updated",
    }
)
"""Whose fields are what the protocol says, or the server is wrong."""


class _AnyEvent(msgspec.Struct, frozen=True):
    type: str


_decoder = msgspec.json.Decoder(ServerEvent)
_any_decoder = msgspec.json.Decoder(_AnyEvent)


def decode_event(message: str | bytes) -> ServerEvent:
    """Raises :class:`msgspec.DecodeError` for what is no event."""
    try:
        return _decoder.decode(message)
    except msgspec.ValidationError:
        kind = _any_decoder.decode(message).type
        if kind in KNOWN_EVENTS:
            raise
        return ServerEvent(kind)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


class CallLog:
    """What is known of a call beside its sound. Of a wire that carries nothing else: its id, and what went wrong."""

    def __init__(self, call_id: str | None = None) -> None:
        self.call_id = call_id
        """The wire's id of the call."""
        self.errors: list[str] = []
        self.keys_heard = ""
        """What the agent pressed."""
        self.transferred_to: str | None = None
        """Where the agent handed the caller over to."""
        self.malformed = 0
        """Messages that the wire does not allow."""

    @property
    def ready(self) -> bool:
        """The caller may begin."""
        return True

    @property
    def responding(self) -> bool:
        """The agent has said that it is about to speak, or still speaks."""
        return False

    @property
    def transcripts_due(self) -> bool:
        """A text of what the caller said is to come."""
        return False

    def heard_text(self, turn: int) -> str | None:
        """The server's transcript of what the caller said in a turn; None if the wire had none."""
        return None

    def agent_transcript(self, turn: int) -> str | None:
        """The server's text of what the agent says in a turn, whole even where it was cut; None if there was none."""
        return None

    def note_error(self, description: str) -> None:
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(description[:MAX_ERROR_CHARACTERS])

    def note_malformed(self, description: str) -> None:
        """The server said what nobody can make sense of."""
        self.malformed += 1
        self.note_error(description)


class WireLog(CallLog):
    """What a Realtime server tells: texts and states by turn. ``turn`` is the index of the caller's turn last begun, -1
    before the first: what is heard of an item belongs to the turn in which it began, whenever its text comes."""

    def __init__(self) -> None:
        super().__init__()
        self._configured = self._is_beta = False
        self._utterance_turn: dict[str, int] = {}
        self._heard: dict[str, str | None] = {}
        self._response_turn: dict[str, int] = {}
        self._open_responses: set[str] = set()
        self._playing: set[str] = set()
        self._said: dict[str, tuple[int, str]] = {}
        self._said_done: set[str] = set()
        self._response_items: dict[str, list[str]] = {}

    @property
    def ready(self) -> bool:
        """The session is as the caller wants it, or won't be."""
        return self._configured or bool(self.errors)

    @property
    def responding(self) -> bool:
        """A response has begun and is not done, or (where the server owns the output buffer) not yet played."""
        return bool(self._open_responses or self._playing)

    @property
    def transcripts_due(self) -> bool:
        """An utterance of the caller was noticed and its transcript has not come."""
        return any(item_id not in self._heard for item_id in self._utterance_turn)

    def note(self, event: ServerEvent, turn: int) -> None:
        item_id = event.item_id or ""
        match event.type:
            case "session.created":
                self.call_id = event.session.id if event.session else None
            case "session.updated":
                self._configured = True
            case "error":
                self.note_error(describe_error(event.error or EventError()))
            case "input_audio_buffer.speech_started" | "input_audio_buffer.committed":
                self._utterance_turn.setdefault(item_id, turn)
            case "conversation.item.input_audio_transcription.completed":
                self._utterance_turn.setdefault(item_id, turn)
                self._heard[item_id] = event.transcript or ""
            case "conversation.item.input_audio_transcription.failed":
                self._utterance_turn.setdefault(item_id, turn)
                self._heard[item_id] = None
            case "response.created" if event.response and event.response.id:
                self._response_turn[event.response.id] = turn
                self._open_responses.add(event.response.id)
            case "response.done" if event.response and event.response.id:
                self._open_responses.discard(event.response.id)
            case "output_audio_buffer.started":
                self._playing.add(event.response_id or "")
            case "output_audio_buffer.stopped" | "output_audio_buffer.cleared":
                self._playing.discard(event.response_id or "")
            case "response.output_audio.delta":
                items = self._response_items.setdefault(event.response_id or "", [])
                if item_id not in items:
                    items.append(item_id)
            case "response.output_audio_transcript.delta":
                self._say(event, turn, done=False)
            case "response.output_audio_transcript.done":
                self._say(event, turn, done=True)
            case "response.audio.delta" if not self._is_beta:
                self._is_beta = True
                self.note_error("the server speaks the beta protocol (response.audio.delta): only GA's is understood")

    def items_of(self, response_id: str) -> list[str]:
        """The items of a response that audio came for."""
        return self._response_items.get(response_id, [])

    def heard_text(self, turn: int) -> str | None:
        texts = [self._heard.get(item) for item, of_turn in self._utterance_turn.items() if of_turn == turn]
        known = [text.strip() for text in texts if text is not None]
        return " ".join(text for text in known if text) if known else None

    def agent_transcript(self, turn: int) -> str | None:
        texts = [text.strip() for of_turn, text in self._said.values() if of_turn == turn]
        return " ".join(texts) if texts else None

    def _say(self, event: ServerEvent, turn: int, *, done: bool) -> None:
        item_id = event.item_id or ""
        turn = self._response_turn.get(event.response_id or "", turn)
        _, text = self._said.get(item_id, (turn, ""))
        if done:
            self._said_done.add(item_id)
            self._said[item_id] = (turn, event.transcript or text)
        elif item_id not in self._said_done and len(text) < MAX_TEXT_CHARACTERS:
            self._said[item_id] = (turn, text + (event.delta or ""))


def describe_error(error: EventError) -> str:
    return f"{error.code or error.type or 'error'}: {error.message or ''}".rstrip(": ")
