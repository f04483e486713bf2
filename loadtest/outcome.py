"""What became of one call of a load test: all that the report knows of it. Sent from the generators' processes as JSON.

Times named ``_s`` are seconds of the run's own clock (0: its first moment); those named ``_ms`` are of the recording,
as a person would have heard it behind the wire's model of a playout buffer.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec


class Fate(enum.StrEnum):
    """What happened to an offered call; the values are part of the JSON document."""

    COMPLETED = "completed"
    """It was up until its script was over, or the agent said goodbye as the script wants it."""
    REFUSED = "refused"
    """Said no at once, in its wire's words (1013, 429, 486, 503)."""
    FAILED = "failed"
    """Never came about, and nobody said no: a timeout, an error, another status."""
    DROPPED = "dropped"
    """Was up, and ended by the server or the network before its script was over."""
    ABANDONED = "abandoned"
    """Cut short by the load test itself: Ctrl-C, the end of the run."""
    LEFT = "left"
    """The caller left without a word, as its script wants it (``vanish``)."""


class Fault(enum.StrEnum):
    """Why a call is not good; the values are part of the JSON document. Limits are the scenario's."""

    REFUSED = "refused"
    """Where the scenario does not want that."""
    SLOW_REFUSAL = "slow_refusal"
    """It waited for its no for longer than a call may take to come up."""
    FAILED = "failed"
    DROPPED = "dropped"
    SLOW_SETUP = "slow_setup"
    NO_ANSWER = "no_answer"
    """A turn that wants an answer got none."""
    SLOW_ANSWER = "slow_answer"
    CUT_IN = "cut_in"
    """The agent began to speak into the caller's line."""
    SLOW_STOP = "slow_stop"
    """An interrupted agent went on for too long, or never stopped."""
    TALKED_ON = "talked_on"
    """An interrupted agent fell silent, and then said more of what had been cut."""
    FALSE_STOP = "false_stop"
    """The agent broke off though nobody interrupted it."""
    LATE_FRAMES = "late_frames"
    LOST_FRAMES = "lost_frames"
    FOREIGN_CODE = "foreign_code"
    """Another caller's code word was heard."""
    LOST_CODE = "lost_code"
    """The caller's own code word did not come back."""
    DAMAGED = "damaged"
    """Samples are missing in a code word, or it was mixed with another."""
    AGENT_STAYED = "agent_stayed"
    """The agent should have ended the call, and did not."""
    OVERSTAYED = "overstayed"
    """The script was not over at the call's time limit."""
    GARBLED = "garbled"
    """The server said what its wire does not allow."""


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One thing the caller did, and what came of it. None: there was nothing to measure."""

    kind: str
    """``say``, ``press``, ``interrupt`` or ``backchannel``."""
    at_s: float
    """When the caller began, in the run."""
    in_call_ms: float
    """The same in the recording."""
    text: str | None = None
    code: str | None = None
    """The code word that was said (:mod:`streaming.audio.code_words`)."""
    heard_codes: tuple[str, ...] = ()
    """Those the agent said before the caller's next turn."""
    answer_expected: bool = True
    voice_to_voice_ms: float | None = None
    """Last voiced sample of the caller to first voiced sample of the agent's answer."""
    stop_ms: float | None = None
    """Interruptions and backchannels: onset of the caller's voice to the agent's last voiced sample before 200 ms of
    silence. Of a backchannel it should be None."""
    talked_on_ms: float | None = None
    """Interruptions: what the agent said after its first silence of 200 ms that belongs to the reply that was cut."""
    cut_ins: int = 0
    """How often the agent began to speak while the caller spoke its line."""
    cut_in_ms: float | None = None
    """How long it talked over the caller then, in all."""
    late_frames: int = 0


def was_cut(turns: Sequence[TurnOutcome], index: int) -> bool:
    """The caller itself interrupted the answer to this turn."""
    after = next((turn for turn in turns[index + 1 :] if turn.kind != "backchannel"), None)
    return after is not None and after.kind == "interrupt"


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One offered call."""

    number: int
    transport: str
    fate: Fate
    offered_s: float
    answered_s: float | None = None
    ended_s: float
    setup_ms: float | None = None
    """Until it was up, or refused."""
    end_cause: str
    """Of :class:`loadtest.call.EndCause`."""
    problem: str | None = None
    errors: tuple[str, ...] = ()
    """What else went wrong on the wire, or was complained of there: the first few, each once."""
    malformed: int = 0
    """Messages of the server's that its wire does not allow."""
    call_id: str | None = None
    turns: tuple[TurnOutcome, ...] = ()
    false_stops: int = 0
    """The agent broke off in a sentence though nobody interrupted it: noise, echo, a backchannel."""
    replies: int = 0
    """What the agent was heard to say: the greeting, and an answer a turn."""
    frames_due: int = 0
    """Slots of 20 ms in which the agent should have been heard: heard ones and late ones."""
    frames_late: int = 0
    frames_lost: int = 0
    """RTP: not there at their time, and concealed."""
    underruns: int = 0
    """How often the buffer ran dry in speech; each is one or more late frames."""
    slow: int = 0
    """Waits of more than 20 ms for more of the same speech when nothing was left of it, before any buffer."""
    gaps: int = 0
    """Such waits of more than 60 ms."""
    longest_gap_ms: float = 0.0
    """The longest such wait."""
    mos: float | None = None
    """Estimated (G.107), not an opinion of people."""
    noise_dbfs: float | None = None
    """Of the line, at its loudest: what is not well above it is no voice. Null: none that matters."""
    foreign_codes: tuple[str, ...] = ()
    """Code words of other callers that this one heard: the worst that can happen."""
    damaged_codes: int = 0
    """Sounds of a code word that is none: samples were lost or mixed."""
    caller_lag_ms: float = 0.0
    """Worst lateness of the load test's own ticker in this call."""
    faults: tuple[str, ...] = ()
    """Why the call is not good (:class:`Fault`); empty: it is good."""
    recording: str | None = None
    """A WAV beside the report's data (caller left, agent right), kept of the worst calls only."""

    @property
    def good(self) -> bool:
        return not self.faults
