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
    """The latency record of one turn. ``since`` is the time that it counts from, on the session's clock."""

    times: TurnTimes
    since: float


class Count(msgspec.Struct, frozen=True):
    """Something was dropped, came late, or was decided: add one to the counter of this name."""

    name: str


class Transfer(msgspec.Struct, frozen=True):
    """Hand the caller over to an address that the agent's owner allowed. This and the other two are answered by one
    ``ControlDone`` with the same ``tool_call``; only one of them is ever under way."""

    tool_call: str
    target: str


class SendDtmf(msgspec.Struct, frozen=True):
    """Press keys (``0-9*#A-D``, at most 32) on the caller's line."""

    tool_call: str
    digits: str


class HoldCaller(msgspec.Struct, frozen=True):
    """Put the caller on hold, or take them back. Until they are back nothing is spoken."""

    tool_call: str
    on: bool


Control = Transfer | SendDtmf | HoldCaller
"""What a session asks of its line, each at most once for one tool call (of a hold: once on, and off until it
is)."""


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
    | Control
    | EndCall
)
