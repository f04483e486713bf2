"""The tests' own measure of what an ear heard: it forgives spelling, and nothing that was not said."""

from __future__ import annotations

import pytest

from tests.models.heard import was_heard

pytestmark = pytest.mark.models

HOURS = "We're open from eight to six."
FRANCE = "The capital of France is Paris."


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (HOURS, "We're open from 8 to 6."),
        (HOURS, "We're open for mate to six."),
        (HOURS, "We're open for 8-6."),
        (FRANCE, "the capital of Francis Paris."),
        ("A large chocolate cake costs twelve dollars.", "A large chocolate cake cost $12."),
        ("Water boils at one hundred degrees.", "water boils at 100 degrees"),
        ("It's on the twenty-first of May.", "Its on the 21st of may"),
    ],
)
def test_the_same_sounds_in_other_words_were_heard(said: str, heard: str) -> None:
    assert was_heard(said, heard)


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (HOURS, None),
        (HOURS, ""),
        ("", HOURS),
        (HOURS, "We're open"),
        (HOURS, "from eight to six."),
        (HOURS, HOURS + " " + HOURS),
        (HOURS, "We're closed on Sundays."),
        (HOURS, FRANCE),
        (FRANCE, "The capital of France."),
        (FRANCE, "The capital of Spain is Madrid."),
        (FRANCE, "The capital of France is Paris, and it is a city of two million people."),
    ],
)
def test_what_is_missing_or_other_was_not_heard(said: str, heard: str | None) -> None:
    assert not was_heard(said, heard)


def test_of_a_cut_reply_only_its_beginning_is_compared() -> None:
    assert was_heard(HOURS, HOURS + " " + FRANCE, cut=True)
    assert was_heard("", HOURS, cut=True)
    assert was_heard("Once upon a time", "once upon a time there", cut=True)
    assert not was_heard(HOURS, "We're open", cut=True)
    assert not was_heard(HOURS, FRANCE, cut=True)
    assert not was_heard(HOURS, "", cut=True)
    assert not was_heard("One day,", "Once upon a time", cut=True)
