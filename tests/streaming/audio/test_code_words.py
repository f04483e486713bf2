"""Code words: spelled, spoken, found again."""

from __future__ import annotations

import numpy as np
import pytest

from streaming.audio.code_words import PHRASES, WORDS, code_word, find, number_of, phrase_of, phrase_word, speak


def test_every_number_has_a_word_of_its_own() -> None:
    words = [code_word(number) for number in range(WORDS)]

    assert [number_of(word) for word in words] == list(range(WORDS))


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 48_000])
def test_a_word_is_found_where_it_was_spoken(rate_hz: int) -> None:
    before = np.zeros(rate_hz // 3, np.int16)
    word = code_word(1234)

    (found,) = find(np.concatenate([before, speak(word, rate_hz), before]), rate_hz)

    assert found.word == word
    assert abs(found.start_sample - len(before)) < rate_hz // 50


def test_phrases_have_words_that_are_no_callers() -> None:
    words = [phrase_word(phrase) for phrase in PHRASES]

    assert [phrase_of(word) for word in words] == list(PHRASES)
    assert [number_of(word) for word in words] == [None] * len(words)
    assert phrase_of(code_word(7)) is None
