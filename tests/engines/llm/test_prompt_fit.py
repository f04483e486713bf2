"""Fitting a conversation into the context. One word is one token here, and a message costs one more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llm.history import ContextTooLongError
from engines.llm.prompt_fit import fit_history
from streaming.jobs import Message


def encode(messages: Sequence[Message]) -> list[int]:
    return [hash(token) for message in messages for token in [message.role, *message.content.split()]]


def talk(*lines: str) -> list[Message]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [Message(roles[line[0]], line[2:]) for line in lines]  # type: ignore[arg-type]


LONG = talk("s be kind", "a hello", "u one two three", "a four five six", "u seven eight", "a nine", "u ten")


def test_what_fits_is_whole() -> None:
    fitted = fit_history(LONG, encode, 100)
    assert (fitted.tokens, fitted.dropped) == (encode(LONG), 0)


def test_oldest_turns_go_and_the_rest_begins_with_the_caller() -> None:
    fitted = fit_history(LONG, encode, 14)
    assert fitted.tokens == encode([LONG[0], *LONG[4:]])
    assert fitted.dropped == 3


def test_a_cut_leaves_room_for_turns_to_come() -> None:
    whole = len(encode(LONG))
    fitted = fit_history(LONG, encode, whole - 1)
    assert len(fitted.tokens) <= 0.75 * whole


def test_the_last_cut_is_kept_while_it_fits() -> None:
    first = fit_history(LONG, encode, 14)
    longer = [*LONG, *talk("a sure", "u go")]
    again = fit_history(longer, encode, 14, first.dropped)
    assert again.dropped == first.dropped
    assert again.tokens[: len(first.tokens)] == first.tokens


@pytest.mark.parametrize("before", [1, 99])
def test_a_cut_that_no_longer_fits_the_list_is_not_used(before: int) -> None:
    assert fit_history(LONG, encode, 14, before).dropped == 3


def test_a_history_that_became_short_is_whole_again() -> None:
    assert fit_history(LONG[:3], encode, 14, 4).dropped == 0


@pytest.mark.parametrize(
    "messages",
    [
        talk("s " + "x " * 20, "u hi"),
        talk("s hi", "u " + "x " * 20),
        talk("s hi", "a " + "x " * 20),
        talk("s " + "x " * 20),
        talk("s " + "x" * 321, "u hi"),
    ],
)
def test_what_may_not_go_and_is_too_long_fails(messages: list[Message]) -> None:
    with pytest.raises(ContextTooLongError):
        fit_history(messages, encode, 10)


def test_huge_text_is_dropped_without_being_tokenised() -> None:
    seen: list[int] = []

    def spy(messages: Sequence[Message]) -> list[int]:
        seen.append(sum(len(message.content) for message in messages))
        return encode(messages)

    fitted = fit_history(talk("s a", "u " + "y" * 10_000_000, "a ok", "u hi"), spy, 10)
    assert fitted.dropped == 2
    assert max(seen) <= 320


words = st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=6).map(" ".join)


@given(
    system=words,
    turns=st.lists(st.tuples(words, words), max_size=8),
    last=words,
    limit=st.integers(6, 60),
    before=st.integers(0, 20),
)
def test_system_and_last_words_stay_and_the_budget_holds(
    system: str, turns: list[tuple[str, str]], last: str, limit: int, before: int
) -> None:
    middle = [message for user, reply in turns for message in (Message("user", user), Message("assistant", reply))]
    messages = [Message("system", system), *middle, Message("user", last)]
    must = [messages[0], messages[-1]]
    try:
        fitted = fit_history(messages, encode, limit, before)
    except ContextTooLongError:
        assert len(encode(must)) > limit
        return
    assert len(fitted.tokens) <= limit
    assert fitted.tokens == encode([messages[0], *messages[1 + fitted.dropped :]])
    assert messages[1 + fitted.dropped].role == "user"
