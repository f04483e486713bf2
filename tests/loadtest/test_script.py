"""The caller's manners in virtual time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.script import (
    Action,
    Backchannel,
    HangUp,
    HoldLine,
    HoldOff,
    HoldOn,
    Interrupt,
    Line,
    Patience,
    Pause,
    Press,
    PressKeys,
    Repeat,
    Say,
    Speak,
    Step,
    Stepper,
    Vanish,
    WaitAgent,
    conversation,
)

QUICK = Patience(greeting_ms=300, answer_ms=1_000, pause_ms=100, stalled_ms=500, agent_turn_ms=2_000)

Spans = list[tuple[float, float]]


def line(text: str, ms: float = 200.0) -> Line:
    return Line(text, np.zeros(0, dtype=np.int16), ms)


def say(text: str, ms: float = 200.0) -> Say:
    return Say(line(text, ms))


def interrupt(text: str, after_ms: float, ms: float = 200.0) -> Interrupt:
    return Interrupt(line(text, ms), after_ms)


def name(action: Action) -> str:
    match action:
        case Speak(spoken, kind):
            return f"{kind} {spoken.text}"
        case PressKeys(keys, kind):
            return f"{kind} {keys}"
    return type(action).__name__


class Stage:
    """Runs steps against agent speech given as (from_ms, to_ms) and busy spans; notes when actions are due."""

    def __init__(self, *steps: Step, length_ms: float | None = None) -> None:
        self.stepper = Stepper(steps, QUICK, length_ms=length_ms)
        self.done: list[tuple[str, float]] = []
        self.finished_ms: float | None = None

    def run(self, voiced: Spans, busy: Spans | None = None, until_ms: int = 20_000) -> Stage:
        for now_ms in range(0, until_ms, 20):
            speaking = any(start <= now_ms < end for start, end in voiced)
            occupied = any(start <= now_ms < end for start, end in (voiced if busy is None else busy))
            action = self.stepper.tick(float(now_ms), voiced=speaking, busy=occupied)
            if action is not None:
                self.done.append((name(action), float(now_ms)))
            if self.stepper.finished:
                self.finished_ms = float(now_ms)
                break
        return self


def talk(*turns: Say | Press | Interrupt) -> Stage:
    return Stage(*conversation(turns))


def test_without_a_greeting_the_caller_begins_after_its_patience() -> None:
    assert talk(say("a")).run([]).done == [("say a", 300.0)]


def test_a_greeting_is_heard_out_before_the_first_turn() -> None:
    stage = talk(say("a")).run([(100, 1_000)])
    assert stage.done == [("say a", 1_080.0)]  # the last voiced tick is 980


def test_a_response_in_progress_is_waited_for_longer_than_a_greeting_that_may_not_come() -> None:
    stage = talk(say("a")).run([(800, 900)], busy=[(20, 900)])
    assert stage.done == [("say a", 980.0)]


def test_the_next_turn_waits_for_the_answer_and_a_pause() -> None:
    stage = talk(say("a"), say("b")).run([(1_000, 2_000), (2_600, 3_000)])
    assert stage.done == [("say a", 300.0), ("say b", 2_080.0)]
    assert stage.finished_ms == 3_080.0


def test_a_pause_inside_a_response_is_not_its_end() -> None:
    stage = talk(say("a"), say("b")).run([(1_000, 1_500), (1_900, 2_000)], busy=[(900, 2_000)])
    assert stage.done[1] == ("say b", 2_080.0)


def test_a_response_that_never_ends_is_given_up_on() -> None:
    stage = talk(say("a"), say("b")).run([(1_000, 1_500)], busy=[(900, 90_000)])
    assert stage.done[1] == ("say b", 1_980.0)


def test_an_agent_that_never_stops_is_talked_over() -> None:
    stage = talk(say("a"), say("b")).run([(1_000, 90_000)])
    assert stage.done[1] == ("say b", 3_000.0)


def test_no_answer_is_waited_for_no_longer_than_the_bound() -> None:
    stage = talk(say("a"), say("b")).run([])
    assert stage.done == [("say a", 300.0), ("say b", 1_500.0)]
    assert stage.finished_ms == 2_700.0


def test_a_wait_may_have_a_bound_of_its_own() -> None:
    stage = Stage(say("a"), WaitAgent(400), say("b"), WaitAgent()).run([])
    assert stage.done == [("say a", 0.0), ("say b", 600.0)]
    assert stage.finished_ms == 1_800.0


def test_an_interruption_is_timed_from_the_first_sound_of_the_answer() -> None:
    stage = talk(say("a"), interrupt("stop", 400)).run([(1_000, 1_600), (2_000, 2_400)])
    assert stage.done == [("say a", 300.0), ("interrupt stop", 1_400.0)]
    assert stage.finished_ms == 2_480.0


def test_the_tail_of_the_interrupted_reply_is_no_answer() -> None:
    stage = talk(say("a"), interrupt("stop", 400, ms=100)).run([(1_000, 1_700)])
    assert stage.finished_ms == 1_500.0 + 1_000.0


def test_an_interruption_first_cuts_the_greeting() -> None:
    assert talk(interrupt("stop", 400)).run([(100, 3_000)]).done == [("interrupt stop", 500.0)]


def test_keys_interrupt_too() -> None:
    stage = talk(Interrupt(Press("1#"), 400)).run([(100, 3_000)])
    assert stage.done == [("interrupt 1#", 500.0)]


def test_an_agent_that_is_not_heard_is_interrupted_all_the_same() -> None:
    stage = talk(say("a"), interrupt("stop", 400)).run([])
    assert stage.done == [("say a", 300.0), ("interrupt stop", 1_500.0)]


def test_an_answer_that_begins_under_the_callers_last_word_counts() -> None:
    stage = talk(say("a", 400)).run([(600, 1_000)])
    assert stage.finished_ms == 1_080.0


def test_a_backchannel_leaves_the_turn_with_the_agent() -> None:
    steps = (say("a"), Backchannel(line("mm-hm"), 300), WaitAgent(), say("b"))
    stage = Stage(*steps).run([(500, 2_000)])
    assert stage.done == [("say a", 0.0), ("backchannel mm-hm", 800.0), ("say b", 2_080.0)]
    assert stage.stepper.turn == 2


@pytest.mark.parametrize("voiced", [[], [(500.0, 600.0)]])
def test_nobody_murmurs_into_silence(voiced: Spans) -> None:
    stage = Stage(say("a"), Backchannel(line("mm-hm"), 700), say("b")).run(voiced)
    assert [what for what, _ in stage.done] == ["say a", "say b"]


def test_keys_take_their_time() -> None:
    stage = Stage(Press("1 2#"), say("a")).run([])
    assert stage.done == [("press 12#", 0.0), ("say a", 600.0)]


@pytest.mark.parametrize("keys", ["", " ", "12x"])
def test_what_is_on_no_keypad_is_not_pressed(keys: str) -> None:
    with pytest.raises(ValueError, match="keys are"):
        Press(keys)


def test_a_pause_begins_when_the_caller_has_spoken() -> None:
    assert Stage(say("a"), Pause(1_000), say("b")).run([]).done == [("say a", 0.0), ("say b", 1_200.0)]


def test_the_line_is_held_and_taken_back() -> None:
    stage = Stage(say("a"), HoldLine(400), say("b")).run([])
    assert stage.done == [("say a", 0.0), ("HoldOn", 200.0), ("HoldOff", 600.0), ("say b", 620.0)]


@pytest.mark.parametrize("last", [Vanish(), HangUp()])
def test_leaving_ends_the_script_at_once(last: Vanish | HangUp) -> None:
    stage = Stage(say("a"), Pause(100), last, say("never")).run([])
    assert stage.done == [("say a", 0.0), (type(last).__name__, 300.0)]
    assert stage.finished_ms == 300.0


def test_steps_are_repeated_so_many_times() -> None:
    stage = Stage(Repeat((say("a"), Repeat((say("b"),), 2)), 2)).run([])
    assert [what for what, _ in stage.done] == ["say a", "say b", "say b"] * 2
    assert stage.finished_ms == 1_200.0


def test_what_was_said_before_the_planned_end_is_still_answered() -> None:
    steps = (Repeat((say("a"), WaitAgent(), Pause(200))), say("bye"))
    stage = Stage(*steps, length_ms=1_000).run([(400, 600), (1_300, 1_500)])
    # The second "a" is said at 880, and its answer is heard out to 1,480, after the planned end.
    assert stage.done == [("say a", 0.0), ("say a", 880.0), ("say bye", 1_580.0)]


def test_a_long_pause_ends_with_the_call() -> None:
    stage = Stage(Repeat((Pause(60_000),)), say("bye"), length_ms=1_000).run([])
    assert stage.done == [("say bye", 1_000.0)]


def test_an_endless_script_needs_a_length() -> None:
    with pytest.raises(ValueError, match="length"):
        Stage(Repeat((Repeat((say("a"),)),), 2))


def test_repeating_nothing_or_never_is_an_error() -> None:
    with pytest.raises(ValueError, match="repeated"):
        Repeat(())
    with pytest.raises(ValueError, match="repeated"):
        Repeat((say("a"),), 0)


def test_a_pass_that_takes_no_time_costs_a_slot() -> None:
    stage = Stage(Repeat((Pause(0),)), say("bye"), length_ms=1_000).run([])
    assert stage.done == [("say bye", 1_000.0)]


def test_the_turn_is_that_last_begun() -> None:
    stage = talk(say("a"), say("b"))
    assert stage.stepper.turn == -1
    assert stage.run([]).stepper.turn == 1


def test_lines_are_told_apart_by_identity() -> None:
    first, second = line("a"), line("a")
    assert {first: 1, second: 2}[first] == 1
    assert dataclasses.replace(first) != first


_leaves = st.one_of(
    st.builds(lambda ms: say("x", ms), st.integers(0, 900)),
    st.builds(WaitAgent, st.none() | st.integers(0, 900)),
    st.builds(lambda ms: interrupt("x", ms), st.integers(0, 900)),
    st.builds(lambda ms: Backchannel(line("x"), ms), st.integers(0, 900)),
    st.builds(Pause, st.integers(0, 900)),
    st.builds(HoldLine, st.integers(0, 900)),
    st.just(Press("1")),
)
_steps = st.recursive(
    _leaves,
    lambda inner: st.builds(
        lambda steps, times: Repeat(tuple(steps), times),
        st.lists(inner, min_size=1, max_size=3),
        st.none() | st.integers(1, 3),
    ),
    max_leaves=6,
)


@given(st.lists(_steps, max_size=4), st.lists(st.booleans(), max_size=50), st.booleans())
def test_every_script_ends_and_holds_are_taken_back(steps: list[Step], voices: list[bool], busy: bool) -> None:
    stepper = Stepper(steps, QUICK, length_ms=5_000)
    held = 0
    for slot in range(20_000):
        voiced = bool(voices) and voices[slot % len(voices)]
        action = stepper.tick(slot * 20.0, voiced=voiced, busy=busy)
        held += isinstance(action, HoldOn) - isinstance(action, HoldOff)
        if stepper.finished:
            break
    assert stepper.finished
    assert held == 0
