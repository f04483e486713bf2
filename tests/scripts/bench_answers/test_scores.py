"""Which tokens of a dialogue count, and what is said of a runtime that thinks otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from engines.llm.chatml import ChatMl
from scripts.bench_answers.scores import Passage, dialogues, log_probabilities, passage, score
from streaming.jobs import Message

START, END = 1000, 1001


def test_only_the_words_of_answers_and_their_ends_count() -> None:
    chat = ChatMl(lambda text: [ord(char) for char in text], START, END)
    talk = [Message("system", "s"), Message("user", "u"), Message("assistant", "ab"), Message("user", "v")]
    one = passage(chat, [*talk, Message("assistant", "c")])
    assert one.answers == [ord("a"), ord("b"), END, ord("c"), END]
    before = one.ids[: one.wanted[0] + 1]
    assert before == chat.prompt_ids(talk[:2]), "the first word is asked for where a call asks for it"


def test_dialogues_end_with_an_answer() -> None:
    assert len(dialogues()) == 30
    for one in dialogues():
        assert [message.role for message in one] == ["system", *["user", "assistant"] * (len(one) // 2)]


def test_a_runtime_is_scored_against_the_reference() -> None:
    read = [Passage([0, 1, 2], [0, 1])]
    true = log_probabilities(np.log([[0.2, 0.6, 0.2], [0.1, 0.1, 0.8]]).astype(np.float32))
    same = score(read, [true], [true])
    assert same.nll == pytest.approx(-(np.log(0.6) + np.log(0.8)) / 2, rel=1e-6)
    assert (same.tokens, same.worse, same.kl, same.same_first) == (2, 0.0, 0.0, 1.0)
    other = log_probabilities(np.log([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]).astype(np.float32) + np.float32(7))
    its = score(read, [true], [other])
    assert its.worse == pytest.approx(np.log(2) / 2, rel=1e-5)
    assert its.same_first == 0.5
    expected = 0.2 * np.log(0.2 / 0.5) + 0.6 * np.log(0.6 / 0.3)
    assert its.kl_most == pytest.approx(expected, rel=1e-5)
    assert its.kl == pytest.approx(expected / 2, rel=1e-5)
