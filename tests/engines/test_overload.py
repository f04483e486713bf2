from __future__ import annotations

import pytest

from engines.api import Overload
from engines.overload import LEAST_ANSWERS, WINDOW_S, Lateness


def after(*took_s: float) -> Lateness:
    """Answers that all came at second 100."""
    lateness = Lateness()
    for number, seconds in enumerate(took_s):
        lateness.asked(number, 100.0 - seconds)
        lateness.answered(number, 100.0)
    return lateness


@pytest.mark.parametrize(
    ("took_s", "level"),
    [
        (0.3, Overload.NONE),
        (0.9, Overload.NO_SPECULATION),
        (1.3, Overload.SHORT_CLAUSES),
        (5.0, Overload.REFUSE_CALLS),
    ],
)
def test_the_level_follows_what_an_urgent_answer_typically_takes(took_s: float, level: Overload) -> None:
    assert after(*[took_s] * LEAST_ANSWERS).level(100.0) is level
    assert after(*[took_s] * (LEAST_ANSWERS - 1)).level(100.0) is Overload.NONE
    assert after(*[9.0] * (LEAST_ANSWERS // 2 - 1), *[0.1] * LEAST_ANSWERS).level(100.0) is Overload.NONE


def test_it_is_over_when_the_slow_answers_are_long_ago() -> None:
    lateness = after(*[5.0] * LEAST_ANSWERS)
    assert lateness.level(100.0 + WINDOW_S) is Overload.REFUSE_CALLS
    assert lateness.level(100.1 + WINDOW_S) is Overload.NONE


def test_answers_that_do_not_come_count_and_those_nobody_wants_do_not() -> None:
    lateness = Lateness()
    for number in range(LEAST_ANSWERS):
        lateness.asked(number, 100.0)
    assert lateness.level(100.5) is Overload.NONE
    assert lateness.level(103.0) is Overload.REFUSE_CALLS
    lateness.dropped(0)
    assert lateness.level(103.0) is Overload.NONE
    lateness.answered("never asked", 103.0)
    for number in range(1, LEAST_ANSWERS):
        lateness.answered(number, 103.0)
        lateness.answered(number, 104.0)
    assert lateness.level(104.0) is Overload.NONE


def test_a_level_does_not_come_and_go_with_every_answer() -> None:
    lateness = Lateness()

    def typically(took_s: float, now: float) -> Overload:
        for number in range(2 * LEAST_ANSWERS):
            lateness.asked(number, now - took_s)
            lateness.answered(number, now)
        return lateness.level(now)

    assert typically(1.3, 100.0) is Overload.SHORT_CLAUSES
    assert typically(1.1, 120.0) is Overload.SHORT_CLAUSES
    assert typically(0.75, 140.0) is Overload.SHORT_CLAUSES
    assert typically(0.7, 160.0) is Overload.NO_SPECULATION
    assert typically(0.75, 180.0) is Overload.NO_SPECULATION
    assert typically(0.4, 200.0) is Overload.NONE
