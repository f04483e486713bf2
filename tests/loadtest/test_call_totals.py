from __future__ import annotations

import pytest

from loadtest.call_totals import (
    call_counts,
    cross_talk,
    faultless,
    goodput,
    latencies,
    media_totals,
    mos_of,
    problems_of,
    selectivity,
    spoilt_by_callers,
    turn_taking,
)
from loadtest.outcome import CallOutcome, Fate, TurnOutcome
from loadtest.run_report import CrossTalk, Mos, Percentiles, TurnTaking
from tests.loadtest.recordings import outcome

REFUSED = {"fate": Fate.REFUSED, "answered_s": None, "mos": None}


def turn(kind: str = "say", **known: object) -> TurnOutcome:
    return TurnOutcome(kind=kind, at_s=1.0, in_call_ms=500.0, **known)  # type: ignore[arg-type]


def test_goodput_is_of_offered_calls_and_a_refusal_is_never_good() -> None:
    calls = [outcome(0), outcome(1, faults=("no_answer",)), outcome(2, **REFUSED), outcome(3, fate=Fate.LEFT)]
    assert goodput(calls) == 0.5
    assert faultless(calls) == 0.75, "this scenario lets calls be refused"
    assert goodput([]) is None


def test_what_the_load_test_cut_short_counts_only_if_it_was_bad_by_then() -> None:
    cut = outcome(1, fate=Fate.ABANDONED)
    bad = outcome(2, fate=Fate.ABANDONED, faults=("slow_answer",))
    assert goodput([outcome(0), cut]) == 1.0
    assert goodput([outcome(0), cut, bad]) == 0.5
    assert goodput([cut]) is None


def test_every_offered_call_has_one_fate() -> None:
    calls = [outcome(number, fate=fate) for number, fate in enumerate(Fate)] + [outcome(9, **REFUSED)]
    counts = call_counts(calls, most_up=4)
    fates = (counts.completed, counts.refused, counts.failed, counts.dropped, counts.abandoned, counts.left)
    assert fates == (1, 2, 1, 1, 1, 1)
    assert counts.offered == sum(fates)
    assert (counts.accepted, counts.most_up) == (6, 4)


def test_latencies_are_kept_apart() -> None:
    calls = [
        outcome(
            0,
            setup_ms=80.0,
            turns=(
                turn(voice_to_voice_ms=700.0),
                turn("interrupt", voice_to_voice_ms=900.0, stop_ms=300.0, talked_on_ms=20.0),
                turn("backchannel", stop_ms=5_000.0),
            ),
        ),
        outcome(1, setup_ms=4.0, **REFUSED),
    ]
    found = latencies(calls)
    assert (found.voice_to_voice.count, found.voice_to_voice.p50, found.voice_to_voice.max) == (2, 700, 900)
    assert (found.stop.count, found.stop.max, found.talked_on.max) == (1, 300, 20)
    assert (found.setup.max, found.refusal.max) == (80, 4)
    assert latencies([]).stop == Percentiles()


def test_media_is_summed_and_the_longest_gap_kept() -> None:
    calls = [
        outcome(0, frames_due=100, frames_late=2, frames_lost=1, underruns=1, slow=3, gaps=1, longest_gap_ms=80.0),
        outcome(1, frames_due=50, longest_gap_ms=10.0),
    ]
    found = media_totals(calls)
    assert (found.due, found.late, found.lost, found.underruns, found.slow, found.gaps) == (150, 2, 1, 1, 3, 1)
    assert found.longest_gap_ms == 80


def test_cross_talk_names_the_calls_that_heard_others() -> None:
    own = turn(code="mine", heard_codes=("mine",), voice_to_voice_ms=600.0)
    lost = turn(code="mine", heard_codes=("yours",), voice_to_voice_ms=600.0)
    cut = turn(code="mine", voice_to_voice_ms=600.0)
    unanswered = turn(code="mine")
    barge_in = turn("interrupt", code="mine", heard_codes=("mine",), voice_to_voice_ms=600.0)
    calls = [
        outcome(4, turns=(own, lost), foreign_codes=("yours",)),
        outcome(5, offered_s=100.0, turns=(own, cut, barge_in, unanswered), damaged_codes=2),
        outcome(6, turns=(turn(),)),
    ]
    assert cross_talk(calls) == CrossTalk(
        calls_checked=2,
        words=1,
        reused_after_s=100.0 - calls[0].ended_s,
        turns_checked=6,
        own=3,
        lost=1,
        foreign=1,
        damaged=2,
        calls=(4,),
    )
    assert cross_talk([]) == CrossTalk()


def test_words_that_are_said_again_are_told_apart_by_time() -> None:
    def call(number: int, offered_s: float, ended_s: float, word: str | None) -> CallOutcome:
        return outcome(number, offered_s=offered_s, ended_s=ended_s, turns=(turn(code=word), turn(code=word)))

    alone = [call(0, 0.0, 50.0, "a"), call(1, 0.0, 50.0, "b"), call(2, 51.0, 52.0, None)]
    again = [call(5, 95.0, 99.0, "a"), call(4, 90.0, 95.0, "b"), call(3, 82.0, 85.0, "a")]
    assert (cross_talk(alone).words, cross_talk(alone).reused_after_s) == (2, None)
    assert (cross_talk(again + alone).words, cross_talk(again + alone).reused_after_s) == (2, 10.0)
    at_once = [*alone, call(3, 20.0, 30.0, "a"), call(4, 45.0, 60.0, "a")]
    assert cross_talk(at_once).reused_after_s == -30.0


def test_selectivity_is_of_backchannels_alone() -> None:
    calls = [
        outcome(0, turns=(turn("backchannel"), turn("backchannel", stop_ms=300.0), turn("interrupt", stop_ms=1.0)))
    ]
    found = selectivity(calls)
    assert (found.ratio, found.went_on, found.of) == (0.5, 1, 2)
    assert selectivity([outcome(0)]).ratio is None


def test_turn_taking_scores_every_turn_that_wants_an_answer() -> None:
    turns = (
        turn(voice_to_voice_ms=1_000.0),  # 1
        turn(voice_to_voice_ms=100.0),  # 0.6
        turn(voice_to_voice_ms=800.0, cut_ins=1, cut_in_ms=1_000.0),  # 0.25
        turn("interrupt", voice_to_voice_ms=2_750.0, stop_ms=400.0),  # 0.8
        turn(answer_expected=False),
        turn(),  # 0
    )
    found = turn_taking([outcome(0, turns=turns)])
    assert found.score == pytest.approx(2.65 / 5)
    assert (found.turns, found.early, found.on_time, found.late, found.silent, found.cut_in) == (5, 1, 2, 1, 1, 1)


def test_a_dropped_calls_last_turn_is_no_silence_of_the_agents() -> None:
    turns = (turn(), turn())
    assert turn_taking([outcome(0, fate=Fate.DROPPED, turns=turns)]).silent == 1
    assert turn_taking([outcome(0, turns=turns)]).silent == 2
    assert turn_taking([outcome(0, **REFUSED)]) == TurnTaking()


def test_quality_is_told_from_its_low_end() -> None:
    found = mos_of([outcome(number, mos=1.0 + number / 100) for number in range(100)])
    assert (found.count, found.p50, found.p10, found.p5, found.min) == (100, 1.49, 1.09, 1.04, 1.0)
    assert found.estimated
    assert mos_of([outcome(0, mos=None)]) == Mos()


def test_problems_are_counted_and_bounded() -> None:
    calls = [outcome(n, problem="busy " * 100 if n < 3 else f"other {n}") for n in range(60)] + [outcome(99)]
    found = problems_of(calls)
    first = next(iter(found))
    assert found[first] == 3
    assert len(first) == 200
    assert len(found) == 20


def test_faults_of_callers_that_stood_still_are_held_against_nobody() -> None:
    """Three seconds of a suspended generator in a run of ten minutes: half a percent of its ticks."""
    fine = [outcome(number) for number in range(90)]
    stalled = [outcome(number, faults=("lost_code",), caller_lag_ms=3_000.0) for number in range(90, 100)]
    bad = [outcome(number, faults=("no_answer",)) for number in range(100, 110)]
    late = [outcome(1, frames_due=100, frames_late=99, caller_lag_ms=200.0, faults=("late_frames",))]
    foreign = [outcome(1, faults=("foreign_code",), foreign_codes=("babebi",), caller_lag_ms=3_000.0)]
    told = "the callers of 10 calls with faults stood still themselves, for up to 3000 ms"
    assert spoilt_by_callers([*fine, *stalled], 100.0, 0.99, 0.001) == told
    assert spoilt_by_callers([*fine, *stalled, *bad], 100.0, 0.99, 0.001) is None, "the server is bad without them too"
    assert spoilt_by_callers([*fine, *stalled], 5_000.0, 0.99, 0.001) is None
    assert spoilt_by_callers([*fine, *(outcome(9, caller_lag_ms=900.0) for _ in range(9))], 100.0, 0.99, 0.001) is None
    assert spoilt_by_callers([*fine, *late], 100.0, 0.5, 0.001) is not None
    assert spoilt_by_callers(foreign, 100.0, 0.99, 0.001) is None, "nobody hears another caller for standing still"
    assert spoilt_by_callers([], 100.0, 0.99, 0.001) is None
