"""What a session wants done. The call performs these in order; nothing else touches engines, clock or leg."""

from __future__ import annotations

import msgspec

from streaming.jobs import FinalizeTranscription, Generate, OpenTranscription, ScoreEndOfTurn, Synthesize
from streaming.notices import Notice
from streaming.turn_times import TurnTimes


class CloseTranscription(msgspec.Struct, frozen=True):
    utterance: int


class Promote(msgspec.Struct, frozen=True):
    """A speculative epoch became the reply: its waiting audio may be played, its jobs are live ones."""

    epoch: int


class CancelEpoch(msgspec.Struct, frozen=True):
    """Stop every job of the epoch, drop its unplayed audio, and clear what the leg has buffered of it."""

    epoch: int


class CancelJobs(msgspec.Struct, frozen=True):
    """Stop every job of the epoch; what is queued of its audio still plays."""

    epoch: int


class CancelGeneration(msgspec.Struct, frozen=True):
    """Stop only the language model: what it has said is still spoken."""

    epoch: int


class OpenPlayout(msgspec.Struct, frozen=True):
    """Audio of this epoch goes to the leg from now on, tagged with these ids on a Realtime wire."""

    epoch: int
    response_id: str
    item_id: str


class HoldPlayout(msgspec.Struct, frozen=True):
    """Send nothing more; clear the leg's buffer; keep everything after ``heard_samples``."""

    epoch: int
    heard_samples: int


class ReleasePlayout(msgspec.Struct, frozen=True):
    """Go on from the dip nearest before where it was held; answered by ``PlayoutResumed``."""

    epoch: int


class ClosePlayout(msgspec.Struct, frozen=True):
    """All of the epoch's audio was sent: its samples may be forgotten once heard."""

    epoch: int


class Notify(msgspec.Struct, frozen=True):
    notice: Notice


class SetTimer(msgspec.Struct, frozen=True):
    """Feed ``TimerFired`` at this time. A session has one timer: this replaces it."""

    at: float


class CancelTimer(msgspec.Struct, frozen=True):
    """No more ``TimerFired``."""


class RecordTurn(msgspec.Struct, frozen=True):
    """The latency record of one turn."""

    times: TurnTimes


class Count(msgspec.Struct, frozen=True):
    """Something was dropped, came late, or was decided: add one to the counter of this name."""

    name: str


class EndCall(msgspec.Struct, frozen=True):
    cause: str


Effect = (
    OpenTranscription
    | FinalizeTranscription
    | CloseTranscription
    | ScoreEndOfTurn
    | Generate
    | Synthesize
    | Promote
    | CancelEpoch
    | CancelJobs
    | CancelGeneration
    | OpenPlayout
    | HoldPlayout
    | ReleasePlayout
    | ClosePlayout
    | Notify
    | SetTimer
    | CancelTimer
    | RecordTurn
    | Count
    | EndCall
)
