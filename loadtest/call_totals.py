"""The measures of a run that come from its calls alone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from loadtest.outcome import CallOutcome, Fate, TurnOutcome, was_cut
from loadtest.percentiles import nearest_rank, percentiles_of
from loadtest.run_report import CallCounts, CrossTalk, Latencies, MediaTotals, Mos, Selectivity, TurnTaking
from loadtest.turn_taking import EARLY_MS, LATE_MS, turn_score

MAX_NUMBERS = 100
MAX_PROBLEMS = 20
_PROBLEM_CHARACTERS = 200


def is_offered(outcome: CallOutcome) -> bool:
    """It counts: a call that the load test cut short itself, and that was good until then, says nothing."""
    return outcome.fate is not Fate.ABANDONED or not outcome.good


def goodput(outcomes: Sequence[CallOutcome]) -> float | None:
    """Good calls over offered ones; a refused call is not good, whoever allows it."""
    offered = [outcome for outcome in outcomes if is_offered(outcome)]
    good = sum(outcome.good and outcome.fate is not Fate.REFUSED for outcome in offered)
    return good / len(offered) if offered else None


def faultless(outcomes: Sequence[CallOutcome]) -> float | None:
    """As :func:`goodput`, but with the refusals that the scenario allows."""
    offered = [outcome for outcome in outcomes if is_offered(outcome)]
    return sum(outcome.good for outcome in offered) / len(offered) if offered else None


def spoilt_by_callers(outcomes: Sequence[CallOutcome], limit_ms: float, least: float, late_most: float) -> str | None:
    """Why nothing bad can be held against the server: there would be fewer faulty calls than ``1 - least`` and fewer
    late frames than ``late_most`` but for calls whose own caller stood still for longer than ``limit_ms``. A stall of
    seconds in a long run is not in the p99 of the generators' lateness, but in the faults of all calls then up."""
    sure = [o for o in outcomes if o.caller_lag_ms <= limit_ms or o.good or o.foreign_codes]
    count = len(outcomes) - len(sure)
    if not count:
        return None

    def is_bad(some: Sequence[CallOutcome]) -> bool:
        share, media = faultless(some), media_totals(some)
        return (share is not None and share < least) or (media.due > 0 and media.late / media.due >= late_most)

    if not is_bad(outcomes) or is_bad(sure):
        return None
    longest_ms = max(outcome.caller_lag_ms for outcome in outcomes if not outcome.good)
    return f"the callers of {count} calls with faults stood still themselves, for up to {longest_ms:.0f} ms"


def call_counts(outcomes: Sequence[CallOutcome], most_up: int) -> CallCounts:
    fates = Counter(outcome.fate for outcome in outcomes)
    return CallCounts(
        offered=len(outcomes),
        accepted=sum(outcome.answered_s is not None for outcome in outcomes),
        completed=fates[Fate.COMPLETED],
        refused=fates[Fate.REFUSED],
        failed=fates[Fate.FAILED],
        dropped=fates[Fate.DROPPED],
        abandoned=fates[Fate.ABANDONED],
        left=fates[Fate.LEFT],
        good=sum(outcome.good and outcome.fate not in (Fate.REFUSED, Fate.ABANDONED) for outcome in outcomes),
        most_up=most_up,
    )


def latencies(outcomes: Sequence[CallOutcome]) -> Latencies:
    turns = list(_turns(outcomes))
    cut = [turn for turn in turns if turn.kind == "interrupt"]
    return Latencies(
        voice_to_voice=percentiles_of(turn.voice_to_voice_ms for turn in turns if turn.voice_to_voice_ms is not None),
        stop=percentiles_of(turn.stop_ms for turn in cut if turn.stop_ms is not None),
        talked_on=percentiles_of(turn.talked_on_ms for turn in cut if turn.talked_on_ms is not None),
        setup=percentiles_of(
            outcome.setup_ms for outcome in outcomes if outcome.answered_s is not None and outcome.setup_ms is not None
        ),
        refusal=percentiles_of(
            outcome.setup_ms for outcome in outcomes if outcome.fate is Fate.REFUSED and outcome.setup_ms is not None
        ),
    )


def media_totals(outcomes: Sequence[CallOutcome]) -> MediaTotals:
    return MediaTotals(
        due=sum(outcome.frames_due for outcome in outcomes),
        late=sum(outcome.frames_late for outcome in outcomes),
        lost=sum(outcome.frames_lost for outcome in outcomes),
        underruns=sum(outcome.underruns for outcome in outcomes),
        slow=sum(outcome.slow for outcome in outcomes),
        gaps=sum(outcome.gaps for outcome in outcomes),
        longest_gap_ms=max((outcome.longest_gap_ms for outcome in outcomes), default=0.0),
    )


def cross_talk(outcomes: Sequence[CallOutcome]) -> CrossTalk:
    """An answer that the caller cut, or that did not come at all, need not hold its word."""
    coded = [(o, i) for o in outcomes for i, turn in enumerate(o.turns) if turn.code and turn.answer_expected]
    own = sum(_own_came(o, i) for o, i in coded)
    free = sum(o.turns[i].voice_to_voice_ms is None or was_cut(o.turns, i) for o, i in coded if not _own_came(o, i))
    return CrossTalk(
        calls_checked=len({outcome.number for outcome, _ in coded}),
        words=len({turn.code for turn in _turns(outcomes) if turn.code}),
        reused_after_s=_reused_after_s(outcomes),
        turns_checked=len(coded),
        own=own,
        lost=len(coded) - own - free,
        foreign=sum(len(outcome.foreign_codes) for outcome in outcomes),
        damaged=sum(outcome.damaged_codes for outcome in outcomes),
        calls=tuple(outcome.number for outcome in outcomes if outcome.foreign_codes)[:MAX_NUMBERS],
    )


def selectivity(outcomes: Sequence[CallOutcome]) -> Selectivity:
    murmurs = [turn for turn in _turns(outcomes) if turn.kind == "backchannel"]
    went_on = sum(turn.stop_ms is None for turn in murmurs)
    return Selectivity(ratio=went_on / len(murmurs) if murmurs else None, went_on=went_on, of=len(murmurs))


def turn_taking(outcomes: Sequence[CallOutcome]) -> TurnTaking:
    turns = [turn for outcome in outcomes if outcome.answered_s is not None for turn in _wanting_answer(outcome)]
    if not turns:
        return TurnTaking()
    heard = [turn.voice_to_voice_ms for turn in turns if turn.voice_to_voice_ms is not None]
    return TurnTaking(
        score=sum(turn_score(turn) for turn in turns) / len(turns),
        turns=len(turns),
        early=sum(wait < EARLY_MS for wait in heard),
        on_time=sum(EARLY_MS <= wait < LATE_MS for wait in heard),
        late=sum(wait >= LATE_MS for wait in heard),
        silent=len(turns) - len(heard),
        cut_in=sum(turn.cut_ins > 0 for turn in turns),
    )


def mos_of(outcomes: Sequence[CallOutcome]) -> Mos:
    ordered = sorted(outcome.mos for outcome in outcomes if outcome.mos is not None)
    if not ordered:
        return Mos()
    return Mos(
        count=len(ordered),
        p50=nearest_rank(ordered, 0.5),
        p10=nearest_rank(ordered, 0.1),
        p5=nearest_rank(ordered, 0.05),
        min=ordered[0],
    )


def problems_of(outcomes: Sequence[CallOutcome]) -> dict[str, int]:
    """Calls by what went wrong in them, the most frequent first; ends of long ones are cut off."""
    counted = Counter(
        problem[:_PROBLEM_CHARACTERS]
        for outcome in outcomes
        for problem in dict.fromkeys((outcome.problem, *outcome.errors))
        if problem
    )
    return dict(counted.most_common(MAX_PROBLEMS))


def _reused_after_s(outcomes: Sequence[CallOutcome]) -> float | None:
    """Less than nothing where two who had the same word were up at one time."""
    ended_s: dict[str, float] = {}
    between: list[float] = []
    for outcome in sorted(outcomes, key=lambda outcome: outcome.offered_s):
        for word in {turn.code for turn in outcome.turns if turn.code}:
            if word in ended_s:
                between.append(outcome.offered_s - ended_s[word])
            ended_s[word] = max(outcome.ended_s, ended_s.get(word, 0.0))
    return min(between, default=None)


def _own_came(outcome: CallOutcome, index: int) -> bool:
    return outcome.turns[index].code in outcome.turns[index].heard_codes


def _turns(outcomes: Sequence[CallOutcome]) -> Iterator[TurnOutcome]:
    for outcome in outcomes:
        yield from outcome.turns


def _wanting_answer(outcome: CallOutcome) -> Iterator[TurnOutcome]:
    """Turns that want an answer, but for the last one of a call that was cut before it could come."""
    cut_short = outcome.fate in (Fate.DROPPED, Fate.ABANDONED, Fate.LEFT)
    for index, turn in enumerate(outcome.turns):
        last = index == len(outcome.turns) - 1
        if turn.answer_expected and not (last and cut_short and turn.voice_to_voice_ms is None):
            yield turn
