"""The executor's choice of the next quantum: examples of each rule, then random lives of jobs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engines.executor.policy import Agenda, Choice, Key, Kind
from streaming.jobs import Priority

PATIENCE_S = 2.0
START = Kind("llm", "start", opens_stream=True)
PREFILL = Kind("llm", "prefill")
DECODE = Kind("llm", "decode", max_batch=64)
OTHERS_DECODE = Kind("other", "decode", max_batch=64)
KINDS = (START, PREFILL, DECODE, OTHERS_DECODE)


def key(epoch: int, owner: str = "llm", call: str = "c") -> Key:
    return Key(owner, call, epoch)


def agenda(*jobs: tuple[int, Kind, Priority, float]) -> Agenda:
    made = Agenda(PATIENCE_S)
    for epoch, step, priority, deadline in jobs:
        made.add(key(epoch), step, priority, deadline, 0.0)
    return made


def chosen(choice: Choice | None) -> list[int]:
    assert choice is not None
    return [k.epoch for k in choice.keys]


def test_nothing_to_do() -> None:
    assert Agenda().choose(0.0) is None


def test_class_then_deadline_among_prompts_that_join() -> None:
    a = agenda(
        (1, START, Priority.PLAYOUT, 0.5),
        (2, START, Priority.FIRST_AUDIO, 1.5),
        (3, PREFILL, Priority.FIRST_AUDIO, 1.0),
    )
    order = []
    while len(a):
        (epoch,) = chosen(a.choose(0.1))
        order.append(epoch)
        a.drop(key(epoch))
    assert order == [3, 2, 1]


def test_a_job_that_waited_long_goes_before_a_higher_class() -> None:
    a = agenda((1, START, Priority.PLAYOUT, math.inf))
    a.add(key(2), START, Priority.FINAL, 99.0, PATIENCE_S)
    assert chosen(a.choose(PATIENCE_S)) == [1]


def test_a_joining_prompt_and_running_decodes_take_turns() -> None:
    a = agenda((1, DECODE, Priority.DECODE, 1.0), (2, START, Priority.FIRST_AUDIO, 1.0))
    steps = [choice.kind for _ in range(4) if (choice := a.choose(0.0)) is not None]
    assert steps == [START, DECODE, START, DECODE]


def test_a_decode_step_serves_every_row_of_its_owner_and_no_other() -> None:
    a = agenda(
        (1, DECODE, Priority.DECODE, 2.0),
        (2, DECODE, Priority.SPECULATIVE, 2.0),
        (3, PREFILL, Priority.SPECULATIVE, 2.0),
    )
    a.add(key(4, owner="other"), OTHERS_DECODE, Priority.DECODE, 3.0, 0.0)
    choice = a.choose(0.0)
    assert choice == Choice(DECODE, (key(1), key(2)))


def test_speculation_runs_only_in_idle_time() -> None:
    a = agenda((1, DECODE, Priority.SPECULATIVE, 0.0), (2, START, Priority.FIRST_AUDIO, 9.0))
    assert chosen(a.choose(5.0)) == [2]
    assert chosen(a.choose(5.0)) == [2]
    a.drop(key(2))
    assert chosen(a.choose(5.0)) == [1]


def test_a_promoted_speculation_is_live() -> None:
    a = agenda((1, START, Priority.SPECULATIVE, math.inf), (2, START, Priority.PLAYOUT, 1.0))
    a.move(key(1), 0.5, priority=Priority.FIRST_AUDIO)
    assert chosen(a.choose(0.5)) == [1]


def test_held_starts_wait_while_opened_streams_go_on() -> None:
    a = agenda((1, START, Priority.FINAL, 0.0), (2, PREFILL, Priority.PLAYOUT, 9.0))
    assert chosen(a.choose(1.0, hold_streams=True)) == [2]
    a.drop(key(2))
    assert a.choose(1.0, hold_streams=True) is None
    assert chosen(a.choose(1.0)) == [1]


def test_keys_that_are_gone_are_ignored_and_a_second_of_one_is_a_defect() -> None:
    a = agenda((1, START, Priority.FINAL, 0.0))
    a.move(key(9), 0.0, priority=Priority.FINAL)
    a.drop(key(9))
    assert key(1) in a
    assert key(9) not in a
    with pytest.raises(ValueError, match="already on the agenda"):
        a.add(key(1), START, Priority.FINAL, 0.0, 0.0)


@given(
    waiting=st.sampled_from([p for p in Priority if p is not Priority.SPECULATIVE]),
    newcomers=st.lists(st.tuples(st.sampled_from(Priority), st.sampled_from(KINDS)), min_size=60, max_size=60),
)
def test_no_live_job_starves_whatever_keeps_coming(waiting: Priority, newcomers: list[tuple[Priority, Kind]]) -> None:
    """A quantum takes 0.1 s here and each brings a newcomer due at once; the job without a deadline gets its turn
    soon after its patience ends: what is older is nothing, and the other two families take a turn each at most."""
    a = agenda((0, START, waiting, math.inf))
    now = 0.0
    for number, (priority, step) in enumerate(newcomers, start=1):
        a.add(key(number), step, priority, now, now)
        epochs = chosen(a.choose(now))
        if 0 in epochs:
            assert now <= PATIENCE_S + 0.35
            return
        for epoch in epochs:
            a.drop(key(epoch))
        now += 0.1
    raise AssertionError("the waiting job was never chosen")


class Lives(RuleBasedStateMachine):
    """Jobs come, advance, are promoted and cancelled in any order, between quanta."""

    @initialize()
    def begin(self) -> None:
        self.agenda = Agenda(PATIENCE_S)
        self.alive: dict[Key, tuple[Kind, Priority]] = {}
        self.dead: set[Key] = set()
        self.epochs = 0
        self.now = 0.0

    @rule(
        step=st.sampled_from(KINDS), priority=st.sampled_from(Priority), lead_s=st.floats(-1, 5), call=st.integers(0, 3)
    )
    def add(self, step: Kind, priority: Priority, lead_s: float, call: int) -> None:
        k = Key(step.owner, str(call), self.epochs)
        self.epochs += 1
        self.agenda.add(k, step, priority, self.now + lead_s, self.now)
        self.alive[k] = (step, priority)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        k = data.draw(st.sampled_from(sorted(self.alive, key=lambda k: k.epoch)))
        self.agenda.drop(k)
        del self.alive[k]
        self.dead.add(k)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), priority=st.sampled_from(Priority))
    def prioritize(self, data: st.DataObject, priority: Priority) -> None:
        k = data.draw(st.sampled_from(sorted(self.alive, key=lambda k: k.epoch)))
        self.agenda.move(k, self.now, priority=priority)
        self.alive[k] = (self.alive[k][0], priority)

    @rule(passed_s=st.floats(0, 1), hold=st.booleans())
    def quantum(self, passed_s: float, hold: bool) -> None:
        self.now += passed_s
        choice = self.agenda.choose(self.now, hold_streams=hold)
        ready = {k: job for k, job in self.alive.items() if not (hold and job[0] is START)}
        if choice is None:
            assert not ready
            return
        assert set(choice.keys) <= set(ready), "a quantum for a dead or held job"
        assert not set(choice.keys) & self.dead
        assert {ready[k][0] for k in choice.keys} == {choice.kind}
        assert {k.owner for k in choice.keys} == {choice.owner}
        live_waits = any(priority is not Priority.SPECULATIVE for _, priority in ready.values())
        live_served = any(ready[k][1] is not Priority.SPECULATIVE for k in choice.keys)
        assert live_served or not live_waits, "speculation ran while a live job waited"
        if choice.kind in (START, PREFILL):
            self.agenda.advance(choice.keys[0], DECODE)
            self.alive[choice.keys[0]] = (DECODE, self.alive[choice.keys[0]][1])

    @invariant()
    def counts(self) -> None:
        assert len(self.agenda) == len(self.alive)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
