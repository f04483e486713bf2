from __future__ import annotations

import numpy as np
import pytest

from loadtest.cross_talk import heard_codes
from loadtest.measure import Span, voiced_spans
from streaming.audio.code_words import WORDS, code_word, speak
from streaming.audio.g711 import decode_mulaw, encode_mulaw
from streaming.audio.resample import Resampler
from tests.loadtest.recordings import Pcm16, tone


def recording(rate_hz: int, *parts: Pcm16) -> Pcm16:
    quiet = np.zeros(rate_hz // 2, dtype=np.int16)
    return np.concatenate([part for each in parts for part in (quiet, each)] + [quiet])


def heard(pcm: Pcm16, rate_hz: int) -> list[tuple[str | None, bool]]:
    return [(code.word, code.whole) for code in heard_codes(pcm, rate_hz, voiced_spans(pcm, rate_hz))]


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000])
def test_words_are_heard_whole_and_in_order(rate_hz: int) -> None:
    numbers = (0, 77, WORDS - 1)
    pcm = recording(rate_hz, *(speak(code_word(number), rate_hz) for number in numbers))
    assert heard(pcm, rate_hz) == [(code_word(number), True) for number in numbers]
    first = heard_codes(pcm, rate_hz, voiced_spans(pcm, rate_hz))[0].span
    assert first.start * 1000 / rate_hz == pytest.approx(500, abs=25)


def test_sound_that_is_no_word_and_silence() -> None:
    assert heard(recording(8_000, tone(2_000)), 8_000) == []
    assert heard(np.zeros(8_000, dtype=np.int16), 8_000) == []
    assert heard_codes(np.zeros(0, dtype=np.int16), 8_000, []) == []


@pytest.mark.parametrize("rate_hz", [8_000, 24_000])
@pytest.mark.parametrize("put_in", [False, True], ids=["taken out", "put in"])
def test_a_splice_within_a_word_is_seen(rate_hz: int, put_in: bool) -> None:
    """Of 20 ms, anywhere but in the first and the last note."""
    frame, silence = rate_hz // 50, np.zeros(rate_hz // 50, dtype=np.int16)
    missed = 0
    for number in (1_234, 7, 4_000):
        clean = speak(code_word(number), rate_hz)
        for start in range(6 * frame, 34 * frame, frame):
            parts = (clean[:start], silence, clean[start:]) if put_in else (clean[:start], clean[start + frame :])
            missed += heard(recording(rate_hz, np.concatenate(parts)), rate_hz) == [(code_word(number), True)]
    assert missed == 0


def test_what_a_phone_line_does_to_a_word_is_no_damage() -> None:
    pcm = recording(8_000, speak(code_word(9), 8_000))
    companded = decode_mulaw(encode_mulaw(pcm))
    noise = np.random.default_rng(1).normal(0, 300, len(pcm))
    for changed in (companded, (pcm * 0.2).astype(np.int16), (pcm + noise).astype(np.int16)):
        assert heard(changed, 8_000) == [(code_word(9), True)]


@pytest.mark.parametrize(("from_hz", "to_hz"), [(24_000, 8_000), (16_000, 24_000), (22_050, 24_000)])
def test_a_change_of_rate_is_no_damage(from_hz: int, to_hz: int) -> None:
    pcm = recording(from_hz, *(speak(code_word(number), from_hz) for number in (5, 678, WORDS - 1)))
    changed = Resampler(from_hz, to_hz).process(pcm)
    assert heard(changed, to_hz) == [(code_word(number), True) for number in (5, 678, WORDS - 1)]


def test_a_long_reply_is_searched_in_pieces_without_losing_or_doubling_a_word() -> None:
    rate_hz = 8_000
    word, pause = speak(code_word(3), rate_hz), tone(130)
    pcm = np.concatenate([part for _ in range(60) for part in (word, pause)])
    found = heard_codes(pcm, rate_hz, [Span(0, len(pcm))])
    assert [code.word for code in found] == [code_word(3)] * 60
    assert all(code.whole for code in found)
