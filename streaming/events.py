"""Everything that can happen to a session: what engines answer, what the leg and the client do, time passing."""

from __future__ import annotations

import msgspec

from streaming.config import ResponseOptions, SessionConfig
from streaming.conversation import Item
from streaming.jobs import EndOfTurnScored, Generation, SynthesisFailed, Transcript, WordEnd

# --- the leg --------------------------------------------------------------------------------------------------


class Answered(msgspec.Struct, frozen=True):
    """Media flows: a greeting may be spoken now."""


class VoiceScored(msgspec.Struct, frozen=True):
    """One voice activity window: the probability of speech up to ``end_samples`` (16 kHz, since the call began)."""

    probability: float
    end_samples: int


class AudioQueued(msgspec.Struct, frozen=True):
    """Audio of a segment is ready to play: ``samples`` at the leg's rate. The call keeps the samples themselves."""

    epoch: int
    segment: int
    samples: int
    last: bool
    words: tuple[WordEnd, ...] = ()


class AudioSent(msgspec.Struct, frozen=True):
    """The leg took audio of this epoch up to the position, counted at the leg's rate from the reply's beginning."""

    epoch: int
    sent_samples: int


class MarkSent(msgspec.Struct, frozen=True):
    """A mark follows this epoch's audio up to the position (as of ``AudioSent``, which comes after it): the far end
    returns it once it has played that, and nothing beyond it was heard until then."""

    epoch: int
    mark: int
    sent_samples: int


class MarkReturned(msgspec.Struct, frozen=True):
    """The far end has played all before the mark, or (``cleared``) dropped what was left of it."""

    epoch: int
    mark: int
    cleared: bool = False


class LineHeld(msgspec.Struct, frozen=True):
    """The far end has put us on hold, or took us back: nobody listens meanwhile, and nobody is silent."""

    on: bool


class PlayoutResumed(msgspec.Struct, frozen=True):
    """A held reply goes on from this position (the dip in energy the pacer chose)."""

    epoch: int
    from_samples: int


class LoadChanged(msgspec.Struct, frozen=True):
    """How busy the engines are, for the replies that begin from now on: whether to begin any for a turn that may not
    have ended, and whether to cut the first clause short."""

    speculate: bool = True
    short_clauses: bool = False


class ControlDone(msgspec.Struct, frozen=True):
    """What the line made of a control effect. ``code`` is None when it was done; else it could not be, and
    ``message`` says why, in words for the model."""

    tool_call: str
    code: str | None = None
    message: str = ""


class HungUp(msgspec.Struct, frozen=True):
    """The leg is gone."""

    cause: str


class TimerFired(msgspec.Struct, frozen=True):
    """The timer set by :class:`streaming.effects.SetTimer` came due."""


class Drain(msgspec.Struct, frozen=True):
    """The server is stopping: say so when there is a farewell, then end the call."""

    farewell: str


# --- the client (Realtime client events, already checked) -----------------------------------------------------


class Configure(msgspec.Struct, frozen=True):
    config: SessionConfig


class CommitInput(msgspec.Struct, frozen=True):
    """The client says that its turn is over; its audio reaches up to ``end_samples``."""

    end_samples: int
    event_id: str | None = None


class ClearInput(msgspec.Struct, frozen=True):
    end_samples: int
    event_id: str | None = None


class InputAppended(msgspec.Struct, frozen=True):
    """Manual mode only: caller audio is in the buffer up to this position."""

    end_samples: int


class CreateItem(msgspec.Struct, frozen=True):
    item: Item
    previous_item_id: str | None = None
    event_id: str | None = None


class RetrieveItem(msgspec.Struct, frozen=True):
    item_id: str
    event_id: str | None = None


class DeleteItem(msgspec.Struct, frozen=True):
    item_id: str
    event_id: str | None = None


class TruncateItem(msgspec.Struct, frozen=True):
    item_id: str
    content_index: int
    audio_end_ms: int
    event_id: str | None = None


class CreateResponse(msgspec.Struct, frozen=True):
    options: ResponseOptions = ResponseOptions()
    event_id: str | None = None


class ClearOutput(msgspec.Struct, frozen=True):
    """Silence the reply that plays; its item keeps what was heard of it."""

    event_id: str | None = None


class Dtmf(msgspec.Struct, frozen=True):
    """The caller pressed a key of the keypad: one of ``0-9*#A-D``."""

    digit: str


class CancelResponse(msgspec.Struct, frozen=True):
    response_id: str | None = None
    event_id: str | None = None


Command = (
    Configure
    | CommitInput
    | ClearInput
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
    | ClearOutput
    | Dtmf
)

Event = (
    Answered
    | VoiceScored
    | InputAppended
    | AudioQueued
    | AudioSent
    | MarkSent
    | MarkReturned
    | LineHeld
    | PlayoutResumed
    | LoadChanged
    | ControlDone
    | HungUp
    | TimerFired
    | Drain
    | Transcript
    | EndOfTurnScored
    | Generation
    | SynthesisFailed
    | Command
)
