"""The caller's manners in virtual time."""

from __future__ import annotations

import numpy as np

from loadtest.script import CallScript, Patience, Turn

QUICK = Patience(greeting_ms=300, answer_ms=1_000, pause_ms=100, stalled_ms=500, agent_turn_ms=2_000)


def turn(text: str, ms: float = 200.0, barge_in_after_ms: float | None = None) -> Turn:
    return Turn(text, np.zeros(0, dtype=np.int16), ms, barge_in_after_ms)


class Stage:
    """Runs a script against agent speech given as (from_ms, to_ms) and busy spans; notes when turns begin."""

    def __init__(self, *turns: Turn) -> None:
        self.script = CallScript(turns, QUICK)
        self.begun: list[tuple[str | None, float]] = []
        self.finished_ms: float | None = None

    def run(
        self, voiced: list[tuple[float, float]], busy: list[tuple[float, float]] | None = None, until_ms: int = 20_000
    ) -> Stage:
        for now_ms in range(0, until_ms, 20):
            speaking = any(start <= now_ms < end for start, end in voiced)
            occupied = any(start <= now_ms < end for start, end in (voiced if busy is None else busy))
            begun = self.script.tick(float(now_ms), voiced=speaking, busy=occupied)
            if begun is not None:
                self.begun.append((begun.text, float(now_ms)))
            if self.script.finished:
                self.finished_ms = float(now_ms)
                break
        return self


def test_without_a_greeting_the_caller_begins_after_its_patience() -> None:
    assert Stage(turn("a")).run([]).begun == [("a", 300.0)]


def test_a_greeting_is_heard_out_before_the_first_turn() -> None:
    stage = Stage(turn("a")).run([(100, 1_000)])
    assert stage.begun == [("a", 1_080.0)]  # the last voiced tick is 980


def test_a_response_in_progress_is_waited_for_longer_than_a_greeting_that_may_not_come() -> None:
    stage = Stage(turn("a")).run([(800, 900)], busy=[(20, 900)])
    assert stage.begun == [("a", 980.0)]


def test_the_next_turn_waits_for_the_answer_and_a_pause() -> None:
    stage = Stage(turn("a"), turn("b")).run([(1_000, 2_000), (2_600, 3_000)])
    assert stage.begun == [("a", 300.0), ("b", 2_080.0)]
    assert stage.finished_ms == 3_080.0


def test_a_pause_inside_a_response_is_not_its_end() -> None:
    stage = Stage(turn("a"), turn("b")).run([(1_000, 1_500), (1_900, 2_000)], busy=[(900, 2_000)])
    assert stage.begun[1] == ("b", 2_080.0)


def test_a_response_that_never_ends_is_given_up_on() -> None:
    stage = Stage(turn("a"), turn("b")).run([(1_000, 1_500)], busy=[(900, 90_000)])
    assert stage.begun[1] == ("b", 1_980.0)


def test_an_agent_that_never_stops_is_talked_over() -> None:
    stage = Stage(turn("a"), turn("b")).run([(1_000, 90_000)])
    assert stage.begun[1] == ("b", 3_000.0)


def test_no_answer_is_waited_for_no_longer_than_the_bound() -> None:
    stage = Stage(turn("a"), turn("b")).run([])
    assert stage.begun == [("a", 300.0), ("b", 1_500.0)]
    assert stage.finished_ms == 2_700.0


def test_a_barge_in_is_timed_from_the_first_sound_of_the_answer() -> None:
    stage = Stage(turn("a"), turn("stop", 200, 400.0)).run([(1_000, 1_600), (2_000, 2_400)])
    assert stage.begun == [("a", 300.0), ("stop", 1_400.0)]
    assert stage.finished_ms == 2_480.0


def test_the_tail_of_the_interrupted_reply_is_no_answer() -> None:
    stage = Stage(turn("a"), turn("stop", 100, 400.0)).run([(1_000, 1_700)])
    assert stage.finished_ms == 1_500.0 + 1_000.0


def test_a_barge_in_first_cuts_the_greeting() -> None:
    assert Stage(turn("stop", 200, 400.0)).run([(100, 3_000)]).begun == [("stop", 500.0)]


def test_an_answer_that_begins_under_the_callers_last_word_counts() -> None:
    stage = Stage(turn("a", 400)).run([(600, 1_000)])
    assert stage.finished_ms == 1_080.0


def test_turn_index_follows() -> None:
    stage = Stage(turn("a"), turn("b"))
    assert stage.script.turn == -1
    assert stage.run([]).script.turn == 1
