from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.capacity import MAX_LEVELS, Climb, Held, held


def climb(capacity: int, *, start: int = 1, most: int = 10_000, void_from: int = 1_000_000) -> tuple[Climb, list[int]]:
    """Of a server that holds so many, measured by generators that are late from ``void_from`` calls on."""
    found, levels = Climb(start, most), []
    while (level := found.next_level()) is not None:
        levels.append(level)
        found.note(Held.VOID if level >= void_from else Held.HELD if level <= capacity else Held.MISSED)
    return found, levels


def test_levels_double_and_then_close_in() -> None:
    found, levels = climb(100, start=10)
    assert levels == [10, 20, 40, 80, 160, 120, 100, 110]
    assert (found.best, found.broke) == (100, 110)
    assert found.stopped_by() == "110 calls were not held"
    assert found.stopped_by({"slow_answer": 7, "refused": 2}) == "110 calls were not held: slow answer 7, refused 2"


@given(st.integers(1, 9_000), st.integers(1, 500))
def test_the_knee_is_found_to_a_tenth(capacity: int, start: int) -> None:
    found, levels = climb(capacity, start=start)
    assert found.best is not None
    assert found.best <= capacity
    assert capacity - found.best <= max(1, found.best * 0.1)
    assert len(levels) <= MAX_LEVELS


def test_a_start_that_is_too_high_comes_down() -> None:
    found, levels = climb(3, start=64)
    assert levels[:4] == [64, 32, 16, 8]
    assert found.best == 3


def test_a_server_that_holds_nothing() -> None:
    found, levels = climb(0, start=4)
    assert levels == [4, 2, 1]
    assert (found.best, found.broke) == (None, 1)


def test_the_most_asked_for_is_the_end() -> None:
    found, levels = climb(1_000, start=30, most=100)
    assert levels == [30, 60, 100]
    assert found.best == 100
    assert found.stopped_by() == "100 calls were held, and more were not asked for"


def test_a_void_level_is_tried_again_twice_and_then_stayed_below() -> None:
    found, levels = climb(1_000, start=50, void_from=170)
    assert levels[:5] == [50, 100, 200, 200, 200]
    assert found.best is not None
    assert 150 <= found.best < 170
    assert found.broke is None
    assert "the load test itself was late" in found.stopped_by()


def test_a_level_that_is_void_once_counts_when_it_is_not() -> None:
    found = Climb(8)
    found.note(Held.VOID)
    assert (found.next_level(), found.tries) == (8, 1)
    found.note(Held.HELD)
    assert (found.best, found.next_level(), found.tries) == (8, 16, 0)
    assert found.stopped_by() == "it was interrupted"


def test_what_a_level_is_judged_by() -> None:
    judge = partial(held, goodput=1.0, late_share=0.0, late_limit=0.001, foreign=0, void=False)
    assert judge(goodput=0.99, late_share=0.0009) is Held.HELD
    assert judge(goodput=0.989) is Held.MISSED
    assert judge(late_share=0.001) is Held.MISSED
    assert judge(late_share=0.02, late_limit=0.03) is Held.HELD, "a scenario on a bad network allows more"
    assert judge(late_share=0.5, late_limit=None) is Held.HELD
    assert judge(goodput=0.995, foreign=1) is Held.MISSED, "one word of another caller's is one too many"
    assert judge(void=True) is Held.VOID


def test_misuse() -> None:
    with pytest.raises(ValueError, match="begins"):
        Climb(0)
    found = Climb(1, 1)
    found.note(Held.HELD)
    with pytest.raises(ValueError, match="no level"):
        found.note(Held.HELD)
