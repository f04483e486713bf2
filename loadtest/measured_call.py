"""From the tape of a call to what became of it, and whether that is good. Pure, but slow: run it in a worker thread."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from loadtest.call import SLOT_MS, CallTape, EndCause, Transport
from loadtest.cross_talk import HeardCode, heard_codes
from loadtest.ear import HeardMedia
from loadtest.emodel import G711, LINEAR, OPUS, mos, r_factor
from loadtest.measure import HELD_MS, Span, TurnTiming, measure_turns, voiced_spans
from loadtest.outcome import CallOutcome, Fate, Fault, TurnOutcome, was_cut

TALKED_ON_MS = 100.0
"""Less after the silence is a breath, or a fade."""

MAX_ERRORS = 5
MAX_SAID_CHARACTERS = 200

LONG_REPLY = "tell me more"
"""What scripted engines answer with a reply that is long enough to be interrupted (``--preset null``)."""

_CODECS = {Transport.WEBSOCKET: LINEAR, Transport.AUDIOSOCKET: LINEAR, Transport.WEBRTC: OPUS}
_BUFFER_MS = {Transport.WEBSOCKET: 60.0}
_OTHER_BUFFER_MS = 40.0
_DISTURBED_MS = 400.0
"""Around a stop: a code word that was being said then need not be whole."""


class Expectations(Protocol):
    """What a scenario holds a server to; None: nothing."""

    @property
    def answer_within_ms(self) -> float | None: ...

    @property
    def stop_within_ms(self) -> float | None: ...

    @property
    def setup_within_ms(self) -> float | None: ...

    @property
    def max_late_share(self) -> float | None:
        """Of late frames in what was due; the same bound is for lost ones."""

    @property
    def codes(self) -> bool:
        """A line's own code word must come back whole."""

    @property
    def refused_ok(self) -> bool:
        """A call may be refused, if it is within :attr:`setup_within_ms`."""

    @property
    def agent_ends(self) -> bool:
        """The agent ends the call, not the caller."""


@dataclass(frozen=True, slots=True)
class OfferedCall:
    """What the run knows of a call; ``offered_s`` and ``ended_s`` are on the run's clock."""

    number: int
    transport: Transport
    offered_s: float
    ended_s: float
    codes: bool = False
    """Callers of this run say code words: others' are listened for, whether or not this one has said any."""


def measure_call(tape: CallTape, offered: OfferedCall, expect: Expectations) -> CallOutcome:
    """Raises nothing: a call that never came about has an outcome too."""
    up = tape.setup_ms is not None
    setup_ms = tape.setup_ms if tape.setup_ms is not None else (offered.ended_s - offered.offered_s) * 1000.0
    answered_s = offered.offered_s + setup_ms / 1000.0
    fate = fate_of(tape.end_cause, up=up, agent_may_end=expect.agent_ends)
    spans = voiced_spans(tape.agent, tape.rate_hz, noise_dbfs=tape.noise_dbfs)
    own = {mark.code for mark in tape.marks if mark.code is not None}
    codes = heard_codes(tape.agent, tape.rate_hz, spans) if own or offered.codes else []
    unended = _unended(tape, spans, codes)
    answered = [index for index in range(len(tape.marks)) if _was_answered(tape, index, unended)]
    timings = measure_turns(tape.caller, tape.agent, tape.rate_hz, tape.marks, answered, noise_dbfs=tape.noise_dbfs)
    turns = [_turn(tape, index, timing, codes, answered_s) for index, timing in enumerate(timings)]
    foreign = [code.word for code in codes if code.word is not None and code.word not in own]
    greeted = bool(spans) and (not tape.marks or spans[0].start < tape.marks[0].start)
    heard = tape.heard
    outcome = CallOutcome(
        number=offered.number,
        transport=str(offered.transport),
        fate=fate,
        offered_s=offered.offered_s,
        answered_s=answered_s if up else None,
        ended_s=offered.ended_s,
        setup_ms=setup_ms if up or fate is Fate.REFUSED else None,
        end_cause=str(tape.end_cause),
        problem=tape.problem,
        errors=tuple(dict.fromkeys(error[:MAX_SAID_CHARACTERS] for error in tape.log.errors))[:MAX_ERRORS],
        malformed=tape.log.malformed,
        call_id=None if tape.log.call_id is None else tape.log.call_id[:MAX_SAID_CHARACTERS],
        turns=tuple(turns),
        false_stops=_false_stops(turns, unended),
        replies=greeted + sum(turn.voice_to_voice_ms is not None for turn in turns),
        frames_due=heard.frames_due,
        frames_late=heard.frames_late,
        frames_lost=heard.frames_lost,
        underruns=heard.underruns,
        slow=heard.slow,
        gaps=heard.gaps,
        longest_gap_ms=heard.longest_gap_ms,
        mos=_mos(heard, offered.transport),
        noise_dbfs=tape.noise_dbfs,
        foreign_codes=tuple(dict.fromkeys(foreign)),
        damaged_codes=sum(not code.whole and not _disturbed(code.span, tape, timings) for code in codes),
        caller_lag_ms=tape.caller_lag_ms,
    )
    return msgspec.structs.replace(outcome, faults=tuple(dict.fromkeys(map(str, _faults(outcome, expect, tape)))))


def fate_of(cause: EndCause, *, up: bool, agent_may_end: bool) -> Fate:
    """What the end of a call means to who offered it."""
    if cause is EndCause.ABANDONED:
        return Fate.ABANDONED
    if not up:
        return Fate.REFUSED if cause is EndCause.BUSY else Fate.FAILED
    match cause:
        case EndCause.HANGUP:
            return Fate.COMPLETED
        case EndCause.VANISHED:
            return Fate.LEFT
        case EndCause.TIME_LIMIT:
            return Fate.ABANDONED
        case EndCause.AGENT_HANGUP if agent_may_end:
            return Fate.COMPLETED
        case _:
            return Fate.DROPPED


def badness(outcome: CallOutcome) -> float:
    """By this the worst calls are chosen; higher is worse, and only the order means anything. What must never happen
    comes first, then what a caller notices most."""
    waits = [turn.voice_to_voice_ms or 0.0 for turn in outcome.turns]
    stops = [(turn.stop_ms or 0.0) + (turn.talked_on_ms or 0.0) for turn in outcome.turns]
    unanswered = sum(turn.answer_expected and turn.voice_to_voice_ms is None for turn in outcome.turns)
    return (
        1e6 * len(outcome.foreign_codes)
        + 1e5 * (outcome.fate is Fate.DROPPED)
        + 5e4 * (outcome.fate is Fate.FAILED)
        + 1e4 * (unanswered + outcome.damaged_codes + outcome.false_stops)
        + 1e3 * len(outcome.faults)
        + 20.0 * (outcome.frames_late + outcome.frames_lost)
        + max(waits, default=0.0)
        + 2.0 * max(stops, default=0.0)
    )


def _turn(tape: CallTape, index: int, timing: TurnTiming, codes: Sequence[HeardCode], answered_s: float) -> TurnOutcome:
    mark, ms = tape.marks[index], 1000.0 / tape.rate_hz
    until = tape.marks[index + 1].start if index + 1 < len(tape.marks) else len(tape.agent)
    slot = tape.rate_hz * SLOT_MS // 1000
    stop_ms = timing.stop_ms
    if mark.kind == "backchannel" and stop_ms is not None and _was_over(tape, index, stop_ms, codes):
        stop_ms = None
    return TurnOutcome(
        kind=mark.kind,
        at_s=answered_s + mark.start * ms / 1000.0,
        in_call_ms=mark.start * ms,
        text=mark.text,
        code=mark.code,
        heard_codes=tuple(c.word for c in codes if c.word is not None and mark.start <= c.span.start < until),
        answer_expected=mark.answer_expected and mark.kind != "backchannel",
        voice_to_voice_ms=timing.voice_to_voice_ms,
        stop_ms=stop_ms,
        talked_on_ms=timing.talked_on_ms,
        cut_ins=timing.cut_ins,
        cut_in_ms=timing.cut_in_ms,
        late_frames=sum(mark.start <= late * slot < until for late in tape.late_slots),
    )


def _was_answered(tape: CallTape, index: int, unended: Collection[int]) -> bool:
    """A backchannel that the agent took for a turn: the server began a new response, where the wire tells, or the long
    reply before it lacks its end."""
    if tape.marks[index].kind != "backchannel":
        return False
    return tape.log.agent_transcript(index) is not None or _asked(tape, index) in unended


def _asked(tape: CallTape, index: int) -> int | None:
    """The turn in whose answer a backchannel came."""
    return next((i for i in reversed(range(index)) if tape.marks[i].kind != "backchannel"), None)


def _unended(tape: CallTape, spans: Sequence[Span], codes: Sequence[HeardCode]) -> set[int]:
    """Turns whose long reply lacks the code word that ends it, though the caller heard it out: the agent broke off, for
    a backchannel, noise or an echo."""
    near = int(_DISTURBED_MS * tape.rate_hz / 1000)
    found: set[int] = set()
    turns = [index for index, mark in enumerate(tape.marks) if mark.kind != "backchannel"]
    for index, after in itertools.zip_longest(turns, turns[1:]):
        mark = tape.marks[index]
        until = len(tape.agent) if after is None else tape.marks[after].start
        cut = after is not None and tape.marks[after].kind == "interrupt"
        if mark.code is None or not _is_long(mark.text) or cut or any(s.start < until < s.end + near for s in spans):
            continue
        if sum(code.word == mark.code and mark.start <= code.span.start < until for code in codes) == 1:
            found.add(index)
    return found


def _was_over(tape: CallTape, index: int, stop_ms: float, codes: Sequence[HeardCode]) -> bool:
    """The agent fell silent with the code word that ends its reply: no backchannel stopped it."""
    asked = _asked(tape, index)
    if asked is None:
        return False
    mark, near = tape.marks[asked], int(_DISTURBED_MS * tape.rate_hz / 1000)
    stopped = tape.marks[index].start + int(stop_ms * tape.rate_hz / 1000)
    ends = [code.span.end for code in codes if mark.start <= code.span.start and code.span.end <= stopped + near]
    return len(ends) >= (2 if _is_long(mark.text) else 1) and stopped - ends[-1] <= near


def _is_long(text: str | None) -> bool:
    """The reply to this is long, with the caller's code word at its beginning and its end."""
    return text is not None and LONG_REPLY in text.lower()


def _false_stops(turns: Sequence[TurnOutcome], unended: Collection[int]) -> int:
    """Backchannels that stopped the agent, and replies that broke off without one."""
    stops = 0
    for index, turn in enumerate(turns):
        murmurs = itertools.takewhile(lambda later: later.kind == "backchannel", turns[index + 1 :])
        stops += turn.kind == "backchannel" and turn.stop_ms is not None
        stops += index in unended and all(murmur.stop_ms is None for murmur in murmurs)
    return stops


def _disturbed(code: Span, tape: CallTape, timings: Sequence[TurnTiming]) -> bool:
    """A word that the caller spoke into, or that the call's end cut, need not be whole."""
    near = int(_DISTURBED_MS * tape.rate_hz / 1000)
    if code.end > len(tape.agent) - near:
        return True
    for mark, timing in zip(tape.marks, timings, strict=True):
        stopped = mark.start + int((timing.stop_ms or 0.0) * tape.rate_hz / 1000)
        held = int(HELD_MS * tape.rate_hz / 1000) if mark.kind == "backchannel" else 0
        if code.end > mark.start and code.start < max(mark.end + held, stopped) + near:
            return True
    return False


def _mos(heard: HeardMedia, transport: Transport) -> float | None:
    if not heard.frames_due:
        return None
    delay_ms = SLOT_MS + _BUFFER_MS.get(transport, _OTHER_BUFFER_MS)
    concealed, silent = heard.frames_lost / heard.frames_due, heard.frames_late / heard.frames_due
    return mos(r_factor(_CODECS.get(transport, G711), delay_ms=delay_ms, concealed=concealed, silent=silent))


def _faults(outcome: CallOutcome, expect: Expectations, tape: CallTape) -> Iterator[Fault]:
    match outcome.fate:
        case Fate.REFUSED:
            if not expect.refused_ok:
                yield Fault.REFUSED
            if _over(outcome.setup_ms, expect.setup_within_ms):
                yield Fault.SLOW_REFUSAL
        case Fate.FAILED:
            yield Fault.FAILED
        case Fate.DROPPED:
            yield Fault.DROPPED
        case Fate.COMPLETED if expect.agent_ends and tape.end_cause is not EndCause.AGENT_HANGUP:
            yield Fault.AGENT_STAYED
        case Fate.ABANDONED if tape.end_cause is EndCause.TIME_LIMIT:
            yield Fault.OVERSTAYED
    if outcome.answered_s is None:
        return
    if _over(outcome.setup_ms, expect.setup_within_ms):
        yield Fault.SLOW_SETUP
    for index in range(len(outcome.turns)):
        yield from _turn_faults(outcome, index, expect, tape)
    if outcome.false_stops:
        yield Fault.FALSE_STOP
    if expect.max_late_share is not None:
        if outcome.frames_late > expect.max_late_share * outcome.frames_due:
            yield Fault.LATE_FRAMES
        if outcome.frames_lost > expect.max_late_share * outcome.frames_due:
            yield Fault.LOST_FRAMES
    if outcome.foreign_codes:
        yield Fault.FOREIGN_CODE
    if expect.codes and outcome.damaged_codes:
        yield Fault.DAMAGED
    if outcome.malformed:
        yield Fault.GARBLED


def _turn_faults(outcome: CallOutcome, index: int, expect: Expectations, tape: CallTape) -> Iterator[Fault]:
    turn, last = outcome.turns[index], index == len(outcome.turns) - 1
    cut_short = last and outcome.fate in (Fate.DROPPED, Fate.ABANDONED, Fate.LEFT)
    if turn.answer_expected and turn.voice_to_voice_ms is None and not turn.cut_ins:
        waited_ms = (len(tape.agent) - tape.marks[index].end) * 1000.0 / tape.rate_hz
        if not cut_short or _over(waited_ms, expect.answer_within_ms):
            yield Fault.NO_ANSWER
    elif turn.answer_expected and turn.voice_to_voice_ms is not None:
        if _over(turn.voice_to_voice_ms, expect.answer_within_ms):
            yield Fault.SLOW_ANSWER
        missing = expect.codes and turn.code is not None and turn.code not in turn.heard_codes
        if missing and not cut_short and not was_cut(outcome.turns, index):
            yield Fault.LOST_CODE
    if turn.kind == "interrupt":
        if _over(turn.stop_ms, expect.stop_within_ms):
            yield Fault.SLOW_STOP
        if _over(turn.talked_on_ms, TALKED_ON_MS):
            yield Fault.TALKED_ON
    if turn.cut_ins:
        yield Fault.CUT_IN


def _over(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value > limit
