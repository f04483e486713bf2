"""PCM in chunks, and what speed a voice is asked for. Trimming is tested with the voices that have it done."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engines.tts.kokoro_text import PlacedWord
from engines.tts.spoken_audio import bounded_speed, chunks
from streaming.jobs import Priority, Synthesize, WordEnd

RATE = 24_000
WORDS = (PlacedWord(2, 3), PlacedWord(6, 5))
REQUEST = Synthesize("a", 1, 2, "ab cde", "joe", Priority.FIRST_AUDIO, 0.0)


def test_chunks_are_short_and_the_words_come_with_the_first() -> None:
    pcm = np.arange(12_000, dtype=np.int16)
    made = chunks(REQUEST, pcm, RATE, last=True, words=WORDS, ends_ms=[100.0, 450.0], before_samples=RATE)
    assert [len(chunk.pcm) // 2 for chunk in made] == [4800, 4800, 2400]
    assert [chunk.last for chunk in made] == [False, False, True]
    assert [chunk.words for chunk in made] == [(WordEnd(2, 1100.0), WordEnd(6, 1450.0)), (), ()]
    assert np.array_equal(np.frombuffer(b"".join(chunk.pcm for chunk in made), "<i2"), pcm)
    assert {(chunk.epoch, chunk.segment, chunk.rate_hz) for chunk in made} == {(1, 2, RATE)}
    assert not any(chunk.last for chunk in chunks(REQUEST, pcm, RATE, last=False))


def test_a_model_that_tells_no_times_has_no_words() -> None:
    (made,) = chunks(REQUEST, np.ones(10, np.int16), RATE, last=True, words=WORDS)
    assert (made.words, made.last) == ((), True)


@pytest.mark.parametrize(("asked", "given"), [(1.5, 1.5), (0.0, 0.5), (100.0, 2.0), (math.nan, 1.0), (math.inf, 1.0)])
def test_the_speed_stays_where_speech_is_understood(asked: float, given: float) -> None:
    assert bounded_speed(asked) == given
