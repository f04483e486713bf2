"""The executor's choice of the next quantum: an example of each rule."""

from __future__ import annotations

import math

import pytest

from engines.executor.costs import Costs
from engines.executor.policy import ALONE_S, LATEST_S, OVERTAKEN_S, RENEWED_S, Agenda, Choice, Key, Kind
from streaming.jobs import Priority

START = Kind("llm", "start", opens_stream=True)
PREFILL = Kind("llm", "prefill", max_batch=4, max_units=1024)
DECODE = Kind("llm", "decode", max_batch=64)
OTHERS_DECODE = Kind("other", "decode", max_batch=64)
ENCODE = Kind("stt", "encode")
SPEAK = Kind("tts", "speak", max_batch=4, alike=True)
CHUNK = Kind("tts", "chunk", pool="voices")

FIRST, LIVE, LATER = Priority.FIRST_AUDIO, Priority.DECODE, Priority.PLAYOUT
IDLE = Priority.SPECULATIVE


def key(epoch: int, owner: str = "llm", call: str = "c") -> Key:
    return Key(owner, call, epoch)


def agenda(*jobs: tuple[int, Kind, Priority, float], costs: Costs | None = None) -> Agenda:
    made = Agenda(costs)
    for epoch, kind, priority, deadline in jobs:
        made.add(key(epoch, kind.owner), kind, priority, deadline, 0.0)
    return made


def priced(*prices: tuple[Kind, int, int, float]) -> Costs:
    costs = Costs()
    for kind, batch, length, seconds in prices:
        costs.seed(kind, batch, length, seconds)
    return costs


def chosen(choice: Choice | None) -> list[int]:
    assert choice is not None
    return [k.epoch for k in choice.keys]


def test_nothing_to_do() -> None:
    assert Agenda().choose(0.0) is None


def test_the_earliest_deadline_goes_first_whatever_the_class() -> None:
    a = agenda((1, START, Priority.FINAL, 0.4), (2, ENCODE, LATER, 0.2), (3, START, FIRST, 0.3))
    order = []
    while (choice := a.choose(0.0)) is not None:
        order.extend(chosen(choice))
        a.drop(choice.keys[0])
    assert order == [2, 3, 1]


def test_a_live_job_is_due_by_its_class_at_the_latest_and_never_before_it_came() -> None:
    a = agenda((1, START, LATER, math.inf))
    a.add(key(2), START, FIRST, 0.0, LATEST_S[LATER] + 0.1)
    assert chosen(a.choose(5.0)) == [1]
    a.drop(key(1))
    assert chosen(a.choose(5.0)) == [2]


def test_a_deadline_that_is_no_number_or_out_of_reach_is_ordered_like_any_other() -> None:
    a = agenda((1, ENCODE, FIRST, math.inf), (2, ENCODE, LATER, 0.3), (3, ENCODE, LATER, math.nan))
    a.add(key(4, "stt"), ENCODE, LATER, -math.inf, 0.1)
    order = []
    while (choice := a.choose(0.1)) is not None:
        order.extend(chosen(choice))
        a.drop(choice.keys[0])
    assert order == [3, 4, 2, 1]


def test_a_decode_step_serves_every_row_of_its_owner_and_no_other() -> None:
    a = agenda((1, DECODE, LIVE, 2.0), (2, DECODE, IDLE, 2.0), (3, PREFILL, IDLE, 2.0), (4, OTHERS_DECODE, LIVE, 2.0))
    assert a.choose(0.0) == Choice(DECODE, (key(1), key(2)))


def test_a_quantum_is_not_widened_over_the_slack_of_what_is_due_earlier() -> None:
    costs = priced((SPEAK, 1, 1, 0.1), (SPEAK, 2, 1, 0.15), (DECODE, 1, 1, 0.05))
    tight = agenda((1, SPEAK, FIRST, 0.16), (2, DECODE, LIVE, 0.17), (3, SPEAK, LATER, 0.9), costs=costs)
    assert chosen(tight.choose(0.0)) == [1]
    loose = agenda((1, SPEAK, FIRST, 0.16), (2, DECODE, LIVE, 0.21), (3, SPEAK, LATER, 0.9), costs=costs)
    assert chosen(loose.choose(0.0)) == [1, 3]


def test_the_head_itself_is_not_made_late_by_riders() -> None:
    costs = priced((SPEAK, 1, 1, 0.1), (SPEAK, 2, 1, 0.15))
    assert chosen(agenda((1, SPEAK, FIRST, 0.12), (2, SPEAK, LATER, 0.9), costs=costs).choose(0.0)) == [1]


def test_what_is_late_anyway_does_not_hold_riders_off() -> None:
    costs = priced((SPEAK, 1, 1, 0.1), (SPEAK, 2, 1, 0.15))
    assert chosen(agenda((1, SPEAK, FIRST, 0.05), (2, SPEAK, LATER, 0.9), costs=costs).choose(0.0)) == [1, 2]


def test_speculation_rides_along_only_while_the_slack_allows() -> None:
    costs = priced((DECODE, 1, 1, 0.1), (DECODE, 2, 1, 0.15))
    tight = agenda((1, DECODE, LIVE, 0.12), (2, DECODE, IDLE, 0.0), costs=costs)
    assert chosen(tight.choose(0.0)) == [1]
    loose = agenda((1, DECODE, LIVE, 0.16), (2, DECODE, IDLE, 0.0), costs=costs)
    assert chosen(loose.choose(0.0)) == [1, 2]


def test_rows_share_their_steps_in_the_demand_test() -> None:
    """Two rows of ten steps need ten steps, not twenty: what comes later can still share them all."""
    costs = priced((DECODE, 1, 1, 0.01), (DECODE, 2, 1, 0.01), (ENCODE, 1, 1, 0.05), (SPEAK, 1, 1, 0.1))
    a = Agenda(costs)
    a.add(key(1), DECODE, LIVE, 0.11, 0.0, remaining=10)
    a.add(key(2), DECODE, LIVE, 0.12, 0.0, remaining=10)
    a.add(key(3, "stt"), ENCODE, LIVE, 0.2, 0.0)
    assert chosen(a.choose(0.0)) == [1, 2]
    a.overload(1.0)
    assert a.overload(100.0) == 0  # nobody will be late


def test_a_batch_that_is_cheaper_than_one_job_takes_nothing_off_what_is_needed() -> None:
    costs = priced((DECODE, 1, 1, 0.012), (DECODE, 2, 1, 0.010), (ENCODE, 1, 1, 0.05))
    a = Agenda(costs)
    for epoch in (1, 2):
        a.add(key(epoch), DECODE, LIVE, 0.12, 0.0, remaining=10)
    a.add(key(3, "stt"), ENCODE, LIVE, 0.17, 0.0)
    assert chosen(a.choose(0.0)) == [1, 2]


def test_only_jobs_of_one_bucket_share_a_padded_quantum_and_no_more_than_fit() -> None:
    a = Agenda()
    for epoch, bucket in enumerate((64, 128, 64, 64, 64, 64)):
        a.add(key(epoch, "tts"), SPEAK, FIRST, 0.1 + epoch / 100, 0.0, bucket=bucket)
    assert chosen(a.choose(0.0)) == [0, 2, 3, 4]


def test_prompts_share_a_quantum_up_to_its_units() -> None:
    a = Agenda()
    for epoch, units in enumerate((600, 500, 400, 24, 1)):
        a.add(key(epoch), PREFILL, LIVE, 0.1 + epoch / 100, 0.0, units=units)
    assert chosen(a.choose(0.0)) == [0, 2, 3]


def test_a_prompt_on_its_way_goes_before_the_rows_it_will_share_steps_with_if_they_can_wait() -> None:
    costs = priced((DECODE, 1, 1, 0.01), (START, 1, 1, 0.04), (ENCODE, 1, 1, 0.01))
    a = Agenda(costs)
    a.add(key(1), DECODE, LIVE, 0.2, 0.0, remaining=12)
    a.add(key(2), START, LIVE, 0.4, 0.0)
    assert chosen(a.choose(0.0)) == [2]
    a.move(key(1), 0.0, deadline=0.15)
    assert chosen(a.choose(0.0)) == [1]


def test_a_batch_waits_for_work_that_shares_no_quanta_if_all_that_is_due_earlier_can() -> None:
    costs = priced((SPEAK, 1, 1, 0.1), (ENCODE, 1, 1, 0.04), (DECODE, 1, 1, 0.01))
    a = Agenda(costs)
    a.add(key(1, "tts"), SPEAK, FIRST, 0.2, 0.0)
    a.add(key(2), DECODE, LIVE, 0.3, 0.0)
    a.add(key(3, "stt"), ENCODE, Priority.FINAL, 0.4, 0.0)
    assert chosen(a.choose(0.0)) == [3]
    a.move(key(2), 0.0, deadline=0.04)
    assert chosen(a.choose(0.0)) == [2]
    a.move(key(3, "stt"), 0.0, priority=IDLE)
    assert chosen(a.choose(0.0)) == [1]


def test_a_batch_that_is_late_enough_is_overtaken_no_more() -> None:
    costs = priced((SPEAK, 1, 1, 0.1), (ENCODE, 1, 1, 0.04))
    a = Agenda(costs)
    a.add(key(1, "tts"), SPEAK, FIRST, 0.0, 0.0)
    a.add(key(2, "stt"), ENCODE, Priority.FINAL, 0.4, 0.0)
    assert chosen(a.choose(OVERTAKEN_S)) == [2]
    assert chosen(a.choose(OVERTAKEN_S + 0.01)) == [1]


def test_a_long_reply_does_not_stay_first() -> None:
    """A reply of 500 tokens whose deadline has passed: another call's prompt waits for the step in flight alone."""
    a = agenda((1, DECODE, LIVE, 0.0))
    now = 0.0
    for _ in range(100):
        assert chosen(a.choose(now)) == [1]
        now += 0.01
    a.add(key(2), START, LIVE, now + 0.25, now)
    assert chosen(a.choose(now)) == [2]


def test_a_clause_is_one_deadline_over_its_steps_then_the_next_follows() -> None:
    a = Agenda()
    a.add(key(1), DECODE, LIVE, 0.0, 0.0, remaining=3)
    a.add(key(2, "stt"), ENCODE, LIVE, 0.1, 0.0)
    assert [chosen(a.choose(0.2)) for _ in range(3)] == [[1], [1], [1]]
    assert chosen(a.choose(0.2)) == [2]
    a.drop(key(2, "stt"))
    a.add(key(3, "stt"), ENCODE, LIVE, 0.2 + RENEWED_S[LIVE] - 0.01, 0.2)
    assert chosen(a.choose(0.2)) == [3]


def test_a_deadline_is_kept_from_stage_to_stage_and_while_quanta_are_owed() -> None:
    a = Agenda()
    a.add(key(1), START, LIVE, 0.5, 0.0)
    a.add(key(2, "stt"), ENCODE, LIVE, 0.55, 0.0)
    assert chosen(a.choose(0.1)) == [1]
    a.advance(key(1), DECODE, remaining=2)
    assert [chosen(a.choose(0.1)) for _ in range(3)] == [[1], [1], [2]]


def test_a_batch_that_grows_dear_is_not_waited_for() -> None:
    costs = priced((SPEAK, 1, 1, 0.1), (SPEAK, 2, 1, 0.19), (ENCODE, 1, 1, 0.04))
    a = agenda((1, SPEAK, FIRST, 0.5), (2, ENCODE, Priority.FINAL, 0.5), costs=costs)
    assert chosen(a.choose(0.0)) == [1]


def test_speculation_has_idle_time_only() -> None:
    a = agenda((1, DECODE, IDLE, 0.0), (2, START, FIRST, 0.7))
    assert chosen(a.choose(0.5)) == [2]
    assert chosen(a.choose(0.5)) == [2]
    a.drop(key(2))
    assert chosen(a.choose(0.5)) == [1]


def test_a_promoted_speculation_is_due_by_the_deadline_it_named() -> None:
    a = agenda((1, START, IDLE, 0.1), (2, ENCODE, LATER, 0.6))
    a.move(key(1), 0.5, priority=FIRST)
    assert chosen(a.choose(0.5)) == [1]


def test_held_starts_wait_while_opened_streams_go_on() -> None:
    a = agenda((1, START, Priority.FINAL, 0.0), (2, PREFILL, LATER, 9.0))
    assert chosen(a.choose(1.0, hold_streams=True)) == [2]
    a.drop(key(2))
    assert a.choose(1.0, hold_streams=True) is None
    assert chosen(a.choose(1.0)) == [1]


def test_a_held_start_keeps_its_claim_on_time() -> None:
    costs = priced((SPEAK, 1, 1, 0.1), (SPEAK, 2, 1, 0.15), (START, 1, 1, 0.1))
    a = agenda((1, START, LIVE, 0.21), (2, SPEAK, FIRST, 0.3), (3, SPEAK, LATER, 0.9), costs=costs)
    assert chosen(a.choose(0.0, hold_streams=True)) == [2]


def test_an_instance_is_held_from_the_first_quantum_until_the_job_is_dropped() -> None:
    a = Agenda()
    a.set_pool("voices", 1)
    a.add(key(1, "tts"), CHUNK, FIRST, 0.5, 0.0)
    assert chosen(a.choose(0.0)) == [1]
    a.add(key(2, "tts"), CHUNK, FIRST, 0.1, 0.0)
    assert chosen(a.choose(0.0)) == [1]
    assert a.held() == {"voices": 1}
    a.drop(key(1, "tts"))
    assert a.held() == {"voices": 0}
    assert chosen(a.choose(0.0)) == [2]


def test_a_larger_pool_serves_more_and_its_holders_stay() -> None:
    shared = Kind("tts", "chunk", max_batch=8, pool="voices")
    a = Agenda()
    a.set_pool("voices", 1)
    for epoch in range(4):
        a.add(key(epoch, "tts"), shared, FIRST, 0.1 + epoch / 100, 0.0)
    assert chosen(a.choose(0.0)) == [0]
    a.set_pool("voices", 3)
    for _ in range(2):
        assert sorted(chosen(a.choose(0.0))) == [0, 1, 2]
    assert a.held() == {"voices": 3}


def test_speculation_that_holds_what_a_live_job_waits_for_goes_on_in_its_place() -> None:
    a = Agenda()
    a.set_pool("voices", 1)
    a.add(key(1, "tts"), CHUNK, IDLE, 0.0, 0.0)
    assert chosen(a.choose(0.0)) == [1]
    a.add(key(2, "tts"), CHUNK, FIRST, 0.1, 0.0)
    a.add(key(3, "stt"), ENCODE, LIVE, 0.3, 0.0)
    assert chosen(a.choose(0.0)) == [1]
    a.drop(key(1, "tts"))
    assert chosen(a.choose(0.0)) == [2]


def test_an_idle_lane_prefills_in_big_quanta_and_a_busy_one_in_small() -> None:
    costs = priced((PREFILL, 1, 64, 0.02), (PREFILL, 1, 1024, 0.26), (ENCODE, 1, 1, 0.01))
    a = Agenda(costs)
    a.add(key(1), PREFILL, LIVE, 0.5, 0.0, units=1000)
    alone = a.choose(0.0)
    assert alone is not None
    assert alone.max_units is not None
    assert costs.estimate(PREFILL, 1, alone.max_units) <= ALONE_S
    a.add(key(2, "stt"), ENCODE, LIVE, 0.6, 0.0)
    shared = a.choose(0.0)
    assert shared is not None
    assert shared.max_units is not None
    assert (alone.max_units, shared.max_units) == (256, 128)
    a.move(key(1), 0.0, priority=IDLE)
    a.drop(key(2, "stt"))
    speculative = a.choose(0.0)
    assert speculative is not None
    assert speculative.max_units == 128


def test_a_prompt_that_is_cheap_is_not_cut() -> None:
    a = Agenda(priced((PREFILL, 1, 1024, 0.01)))
    a.add(key(1), PREFILL, LIVE, 0.5, 0.0, units=5000)
    choice = a.choose(0.0)
    assert choice is not None
    assert (choice.max_units, choice.length) == (1024, 1024)


def test_costs_are_learned_from_what_was_chosen() -> None:
    a = Agenda()
    a.add(key(1, "tts"), SPEAK, FIRST, 0.1, 0.0, units=50, bucket=64)
    choice = a.choose(0.0)
    assert choice is not None
    assert choice.owner == "tts"
    a.observe(choice, 0.2)
    assert a.costs.estimate(SPEAK, 1, 64) == 0.2


def test_a_full_agenda_drops_what_matters_least_and_says_so() -> None:
    a = Agenda(max_jobs=2)
    a.add(key(1), START, FIRST, 0.1, 0.0)
    a.add(key(2), START, IDLE, 0.1, 0.0)
    a.add(key(3), START, Priority.PARTIAL, 0.1, 0.0)
    assert a.take_evicted() == [(key(2), START)]
    a.add(key(4), ENCODE, LATER, 0.1, 0.0)
    a.add(key(5), DECODE, LATER, 0.2, 0.0)
    assert a.take_evicted() == [(key(3), START), (key(5), DECODE)]
    assert a.take_evicted() == []
    assert len(a) == 2


def test_keys_that_are_gone_are_ignored_and_a_second_of_one_is_a_defect() -> None:
    a = agenda((1, START, Priority.FINAL, 0.0))
    a.move(key(9), 0.0, priority=Priority.FINAL)
    a.drop(key(9))
    assert key(1) in a
    assert key(9) not in a
    with pytest.raises(ValueError, match="already on the agenda"):
        a.add(key(1), START, Priority.FINAL, 0.0, 0.0)


def test_groups_of_models_that_are_gone_are_forgotten() -> None:
    a = agenda((0, START, FIRST, 0.1))
    for number in range(1000):
        a.add(key(number, f"m{number}"), Kind(f"m{number}", "start"), FIRST, 0.2, 0.0)
        a.drop(key(number, f"m{number}"))
    assert len(a._groups) <= 256
    assert chosen(a.choose(0.0)) == [0]
