from __future__ import annotations

import pytest

from loadtest.capacity import Held
from loadtest.scenario import load_scenario
from scripts.call_cost.windows import TALKERS
from tests.scripts.call_cost.rig import window


def test_what_a_server_uses_without_calls_is_no_cost_of_calls() -> None:
    assert window(cpu_share=0.25).cpu_per_call == pytest.approx(0.02)
    assert window().bytes_per_call == 2**20


def test_where_turns_are_not_judged_a_good_call_is_one_that_stayed() -> None:
    assert window(calls=200, completed=199, goodput=None).held is Held.HELD
    assert window(calls=200, completed=197, goodput=None).held is Held.MISSED
    assert window(goodput=0.98).held is Held.MISSED
    assert window(completed=0, goodput=1.0).held is Held.HELD
    assert (window(goodput=None).turns, window(goodput=1.0).turns) == (None, 40)


def test_one_frame_in_a_thousand_is_too_late_and_late_callers_say_nothing() -> None:
    assert window(late=1, frames=2_000).held is Held.HELD
    assert window(late=1, frames=999).held is Held.MISSED
    assert window(late=500, void=True).held is Held.VOID


def test_a_line_says_what_is_wrong() -> None:
    assert "NOT HELD" in window(late=9).line()
    assert "VOID" in window(void=True).line()
    assert "(" not in window().line()
    assert "40 turns, voice to voice p50 500 ms" in window(goodput=1.0).line()


def test_talkers_are_held_to_nothing_but_to_be_there() -> None:
    expect = load_scenario(TALKERS).expect
    assert (expect.answer_within_ms, expect.max_late_share, expect.codes) == (None, None, False)
