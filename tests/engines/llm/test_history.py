from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llm.history import ContextTooLongError, bounded
from streaming.jobs import Message


def words(message: Message) -> int:
    return len(message.content.split())


def talk(*said: str) -> list[Message]:
    """``s:``, ``u:`` or ``a:`` and the number of words."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [
        Message(roles[kind], " ".join(["w"] * int(count)))  # type: ignore[arg-type]
        for kind, count in (item.split(":") for item in said)
    ]


def kept(messages: list[Message], history: int, most: int) -> list[Message]:
    return bounded(messages, words, history_tokens=history, max_tokens=most)


def test_what_fits_is_kept_whole() -> None:
    messages = talk("s:5", "a:3", "u:5", "a:5", "u:2")
    assert kept(messages, 20, 30) == messages


def test_the_oldest_turns_go_first_and_whole() -> None:
    messages = talk("s:5", "a:3", "u:5", "a:5", "u:4", "a:4", "a:1", "u:2")
    assert kept(messages, 16, 30) == [messages[0], *messages[4:]]
    assert kept(messages, 15, 30) == [messages[0], messages[-1]]


def test_instructions_and_last_words_stay_beyond_the_history_budget() -> None:
    messages = talk("s:20", "u:1", "a:1", "u:5")
    assert kept(messages, 10, 30) == [messages[0], messages[-1]]


@pytest.mark.parametrize("messages", [talk("s:31", "u:1"), talk("s:31"), talk("s:5", "u:26"), talk("u:31")])
def test_more_than_the_model_may_read_is_an_error(messages: list[Message]) -> None:
    with pytest.raises(ContextTooLongError):
        kept(messages, 10, 30)


def test_a_novel_is_refused_without_being_counted() -> None:
    counted: list[str] = []

    def count(message: Message) -> int:
        counted.append(message.content)
        return words(message)

    with pytest.raises(ContextTooLongError):
        bounded([Message("user", "w" * 1_000_000)], count, history_tokens=10, max_tokens=30)
    assert counted == []


def test_old_messages_are_not_counted_once_the_budget_is_spent() -> None:
    counted = 0

    def count(message: Message) -> int:
        nonlocal counted
        counted += 1
        return words(message)

    bounded(talk("s:1", *["u:5", "a:5"] * 500), count, history_tokens=40, max_tokens=60)
    assert counted < 15


@given(
    st.lists(st.sampled_from(["u:1", "u:4", "a:1", "a:6", "s:2"]), max_size=30), st.integers(0, 40), st.integers(0, 40)
)
def test_bounds_hold_and_nothing_is_reordered(said: list[str], history: int, extra: int) -> None:
    messages = talk(*said)
    most = history + extra
    try:
        result = kept(messages, history, most)
    except ContextTooLongError:
        return
    assert sum(map(words, result)) <= most
    left = iter(enumerate(messages))
    assert all(any(message is other for _, other in left) for message in result), "a subsequence"
    if messages:
        assert result[-1] is messages[-1]


def test_with_a_step_turns_go_in_groups_and_the_beginning_stays() -> None:
    def cut(turns: int, history: int = 20) -> int:
        messages = talk("s:5", *(kind for _ in range(turns) for kind in ("u:2", "a:1")), "u:2")
        return len(messages) - len(bounded(messages, words, history_tokens=history, max_tokens=30, step=3))

    assert [cut(turns) // 2 for turns in range(4, 11)] == [0, 3, 3, 3, 6, 6, 6]
    assert cut(2, history=5) // 2 == 2, "the last turn stays"
