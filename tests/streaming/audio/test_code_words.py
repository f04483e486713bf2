"""Code words: spelled, spoken, and found again whatever became of their sound, or not at all, but never as another."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.audio import code_words
from streaming.audio.code_words import (
    NOTE_MS,
    PHRASES,
    WORD_MS,
    WORDS,
    Finder,
    Found,
    Pcm16,
    code_word,
    find,
    number_of,
    phrase_of,
    phrase_word,
    speak,
)
from streaming.audio.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from streaming.audio.level import rms_dbfs
from streaming.audio.opus import FRAME_TICKS, OpusDecoder, OpusEncoder
from streaming.audio.resample import Resampler

SOME = (0, 1, 77, 1234, WORDS - 1)
NUMBERS = st.integers(0, WORDS - 1)


def silence(ms: int, rate_hz: int) -> Pcm16:
    return np.zeros(ms * rate_hz // 1000, np.int16)


def alone(word: str, rate_hz: int = 8_000) -> Pcm16:
    return np.concatenate([silence(330, rate_hz), speak(word, rate_hz), silence(410, rate_hz)])


def words_in(pcm: Pcm16, rate_hz: int = 8_000) -> list[str | None]:
    return [found.word for found in find(pcm, rate_hz)]


def mixed(*sounds: Pcm16) -> Pcm16:
    total = np.zeros(max(map(len, sounds)), np.int32)
    for sound in sounds:
        total[: len(sound)] += sound
    return np.clip(total, -32768, 32767).astype(np.int16)


def noise(samples: int, rms: float, seed: int = 1) -> Pcm16:
    return np.rint(np.random.default_rng(seed).standard_normal(samples) * rms).astype(np.int16)


def loudness(word: str) -> float:
    return float(np.sqrt(np.mean(np.square(speak(word, 8_000), dtype=np.float64))))


# --- words ------------------------------------------------------------------------------------------------------


def test_every_number_has_a_word_of_its_own() -> None:
    words = [code_word(number) for number in range(WORDS)]

    assert [number_of(word) for word in words] == list(range(WORDS))
    assert number_of(words[5].upper()) == 5


def test_a_word_is_twelve_letters_of_syllables() -> None:
    for number in SOME:
        word = code_word(number)
        assert len(word) == 12
        assert all(consonant not in "aeiou" for consonant in word[::2])
        assert word[1::2] == "aoieau"


def test_two_words_differ_in_four_syllables_at_least() -> None:
    syllables = [
        tuple(word[at] for at in range(0, 12, 2)) for word in map(code_word, [*range(40), *range(3_000, 3_040)])
    ]
    least = min(
        sum(one != other for one, other in zip(*pair, strict=True)) for pair in itertools.combinations(syllables, 2)
    )
    assert least >= 4


def test_what_is_no_code_word_has_no_number() -> None:
    word = code_word(1234)
    for letter in "bdf":
        if letter != word[0]:
            assert number_of(letter + word[1:]) is None
    assert number_of("hello") is None
    assert number_of("") is None
    for number in (-1, WORDS):
        with pytest.raises(ValueError, match="from 0 to 4079"):
            code_word(number)


def test_phrases_have_words_that_are_no_callers() -> None:
    words = [phrase_word(phrase) for phrase in PHRASES]

    assert [phrase_of(word) for word in words] == list(PHRASES)
    assert [number_of(word) for word in words] == [None] * len(words)
    assert [words_in(alone(word)) for word in words] == [[word] for word in words]
    assert phrase_of(code_word(7)) is None
    assert phrase_of("hello") is None
    with pytest.raises(ValueError, match=r"not in tuple"):
        phrase_word("hello")


# --- speaking ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 48_000])
def test_a_word_sounds_the_same_every_time_and_begins_and_ends_softly(rate_hz: int) -> None:
    pcm = speak(code_word(9), rate_hz)
    again = speak.__wrapped__(code_word(9).upper(), rate_hz)

    assert (pcm == again).all()
    assert len(pcm) == WORD_MS * rate_hz // 1000
    assert -23 < rms_dbfs(pcm) < -21
    assert np.abs(pcm[[0, -1]]).max() < 200
    with pytest.raises(ValueError, match="assignment destination is read-only"):
        pcm[0] = 1


def test_only_code_words_are_spoken() -> None:
    with pytest.raises(ValueError, match="not a code word"):
        speak("banana", 8_000)


# --- finding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 48_000])
@pytest.mark.parametrize("number", SOME)
def test_a_word_is_found_where_it_was_spoken(rate_hz: int, number: int) -> None:
    before = silence(330, rate_hz)
    word = code_word(number)

    (found,) = find(alone(word, rate_hz), rate_hz)

    assert found.word == word
    assert abs(found.start_sample - len(before)) <= 0.02 * rate_hz
    assert abs(found.end_sample - len(before) - WORD_MS * rate_hz // 1000) <= 0.02 * rate_hz


def test_a_word_that_is_all_there_is_is_found_within_it() -> None:
    pcm = speak(code_word(3), 8_000)
    (found,) = find(pcm, 8_000)
    assert found.word == code_word(3)
    assert found.start_sample >= 0
    assert found.end_sample <= len(pcm)


def test_many_words_are_found_in_order_however_near() -> None:
    words = [code_word(number) for number in (5, 5, 4_000, 17)]
    sounds = [speak(word, 8_000) for word in words]
    assert words_in(np.concatenate([*sounds, silence(300, 8_000), sounds[0]])) == [*words, words[0]]


def test_nothing_is_found_in_nothing() -> None:
    assert find(silence(0, 8_000), 8_000) == ()
    assert find(silence(30, 8_000), 8_000) == ()
    assert find(silence(500, 8_000), 8_000) == ()
    assert find(silence(3_000, 8_000), 8_000) == ()
    assert find(noise(80_000, 3_000), 8_000) == ()


def test_tones_and_keypads_are_no_words() -> None:
    times = np.arange(8_000 * 20) / 8_000
    sweep = np.rint(8_000 * np.sin(2 * np.pi * (100 + 75 * times) * times)).astype(np.int16)
    buzz = np.where(times * 110 % 1 < 0.5, 4_000, -4_000).astype(np.int16)
    assert find(sweep, 8_000) == ()
    assert find(buzz, 8_000) == ()


@pytest.mark.parametrize("piece", [1, 511, 4_000])
def test_it_is_all_one_in_what_pieces_a_recording_comes(piece: int) -> None:
    pcm = np.concatenate([alone(code_word(5)), alone(code_word(77)), speak(code_word(5), 8_000)[:4_000]])
    finder = Finder(8_000)
    seen = set()
    for at in range(0, len(pcm), piece):
        finder.hear(pcm[at : at + piece])
        if at % 4_000 < piece:
            seen.add(len(finder.found()))

    assert finder.found() == find(pcm, 8_000)
    assert seen == {0, 1, 2}


def test_what_comes_is_gone_through_in_portions_and_of_the_end_only_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen_ms: list[int] = []

    def counted(pcm: Pcm16, rate_hz: int) -> object:
        seen_ms.append(len(pcm) * 1_000 // rate_hz)
        return scores(pcm, rate_hz)

    scores = code_words._scores
    monkeypatch.setattr(code_words, "_scores", counted)
    finder = Finder(8_000)
    for block in np.split(noise(80_000, 3_000), 250):
        before = len(seen_ms)
        finder.hear(block)
        assert len(seen_ms) <= before + 2
    assert max(seen_ms) < 400
    before = len(seen_ms)
    finder.found()
    finder.found()
    assert before < len(seen_ms) <= before + 2


def test_only_the_end_may_be_kept_track_of() -> None:
    finder = Finder(8_000, last_ms=3_000)
    for number in (1, 77, 1_234):
        finder.hear(alone(code_word(number)))
        finder.hear(silence(1_000, 8_000))
    (found,) = finder.found()
    assert found.word == code_word(1_234)
    assert abs(found.start_sample - 2 * len(alone(code_word(1))) - 18_640) <= 160


def resampled(pcm: Pcm16, *rates: int) -> Pcm16:
    for from_hz, to_hz in itertools.pairwise(rates):
        resampler = Resampler(from_hz, to_hz)
        pcm = np.concatenate([resampler.process(pcm), resampler.flush()])
    return pcm


CHAINS: dict[str, Callable[[Pcm16], Pcm16]] = {
    "mu-law": lambda pcm: decode_mulaw(encode_mulaw(pcm)),
    "A-law": lambda pcm: decode_alaw(encode_alaw(pcm)),
    "mu-law three times, softly": lambda pcm: decode_mulaw(encode_mulaw(decode_mulaw(encode_mulaw(pcm // 10)))),
    "35 dB softer": lambda pcm: pcm // 56,
    "15 dB too loud": lambda pcm: np.clip(pcm.astype(np.int32) * 6, -32768, 32767).astype(np.int16),
    "upside down": lambda pcm: -pcm,
    "5 dB over noise": lambda pcm: mixed(pcm, noise(len(pcm), 1_460)),
    "a steady level": lambda pcm: pcm + np.int16(2_000),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("number", SOME)
def test_a_word_survives(chain: str, number: int) -> None:
    word = code_word(number)
    assert words_in(CHAINS[chain](alone(word))) == [word]


@pytest.mark.parametrize("number", SOME)
def test_a_word_survives_every_rate_of_a_call(number: int) -> None:
    word = code_word(number)
    assert words_in(resampled(alone(word, 24_000), 24_000, 16_000, 8_000, 16_000, 24_000), 24_000) == [word]


@pytest.mark.parametrize("number", SOME)
@pytest.mark.parametrize("lost_every", [None, 25])
def test_a_word_survives_opus_and_concealment(number: int, lost_every: int | None) -> None:
    word = code_word(number)
    pcm = alone(word, 24_000)
    encoder, decoder = OpusEncoder(), OpusDecoder(16_000)
    heard = [
        decoder.conceal(FRAME_TICKS) if lost_every and at % lost_every == 0 else decoder.decode(packet)
        for at, packet in enumerate(encoder.encode(frame) for frame in pcm[: len(pcm) // 480 * 480].reshape(-1, 480))
    ]
    assert words_in(np.concatenate(heard), 16_000) == [word]


# --- damaged, mixed, cut ----------------------------------------------------------------------------------------


def test_one_note_may_be_gone_but_not_two() -> None:
    word = code_word(1234)
    note = NOTE_MS * 8
    pcm = alone(word)
    first = 330 * 8 + 4 * note
    pcm[first : first + note] = noise(note, 2_000)
    assert words_in(pcm) == [word]
    pcm[first : first + 2 * note] = noise(2 * note, 2_000)
    assert words_in(pcm) == [None]


def test_notes_of_another_word_make_no_third_one() -> None:
    one, other = speak(code_word(7), 8_000), speak(code_word(2_009), 8_000)
    note = NOTE_MS * 8
    for takes in itertools.product((False, True), repeat=6):
        spliced = one.copy()
        for at, take in enumerate(takes, start=2):
            if take:
                spliced[at * note : (at + 1) * note] = other[at * note : (at + 1) * note]
        heard = words_in(np.concatenate([spliced, silence(200, 8_000)]))
        assert len(heard) == 1
        assert heard[0] in (None, code_word(7), code_word(2_009))
        if sum(takes) == 3:
            assert heard[0] is None


def test_a_word_that_breaks_off_is_none() -> None:
    pcm = alone(code_word(8))
    pcm[330 * 8 + 5 * NOTE_MS * 8 :] = 0
    assert find(pcm, 8_000) == ()


def test_a_word_that_cuts_another_one_short_is_heard() -> None:
    begun = speak(code_word(8), 8_000)[: 4 * NOTE_MS * 8]
    cut, whole = find(np.concatenate([begun, alone(code_word(9))[330 * 8 :]]), 8_000)
    assert cut == Found(None, cut.start_sample, cut.end_sample)
    assert cut.start_sample < 160
    assert whole.word == code_word(9)


def test_what_opens_a_word_within_one_that_is_made_out_is_none() -> None:
    note = NOTE_MS * 8
    pcm = alone(code_word(8)).astype(np.float64)
    first = 330 * 8 + 4 * note
    pcm[first : first + 2 * note] += 1.5 * speak(code_word(8), 8_000)[: 2 * note]
    assert words_in(np.rint(pcm).astype(np.int16)) == [code_word(8)]


@settings(max_examples=40)
@given(one=NUMBERS, other=NUMBERS, later_ms=st.integers(0, 700), level=st.floats(0.05, 1.0))
def test_of_two_at_once_no_third_is_heard(one: int, other: int, later_ms: int, level: float) -> None:
    second = np.rint(alone(code_word(other)) * level).astype(np.int16)
    heard = words_in(mixed(alone(code_word(one)), np.concatenate([silence(later_ms, 8_000), second])))
    assert set(heard) <= {None, code_word(one), code_word(other)}
    if level < 0.2:
        assert code_word(one) in heard


@settings(max_examples=40)
@given(number=NUMBERS, seed=st.integers(0, 2**16), snr_db=st.floats(-6, 15))
def test_noise_makes_no_other_word_of_it(number: int, seed: int, snr_db: float) -> None:
    pcm = alone(code_word(number))
    heard = words_in(mixed(pcm, noise(len(pcm), loudness(code_word(number)) / 10 ** (snr_db / 20), seed)))
    assert set(heard) <= {None, code_word(number)}
    if snr_db >= 5:
        assert heard == [code_word(number)]


@settings(max_examples=40)
@given(number=NUMBERS, gone=st.sets(st.integers(0, 39), max_size=40), taken_out=st.booleans())
def test_lost_frames_make_no_other_word_of_it(number: int, gone: set[int], taken_out: bool) -> None:
    frames = [
        silence(20, 8_000) if at in gone else frame
        for at, frame in enumerate(speak(code_word(number), 8_000).reshape(-1, 160))
        if not (taken_out and at in gone)
    ]
    heard = words_in(np.concatenate([silence(200, 8_000), *frames, silence(200, 8_000)]))
    assert set(heard) <= {None, code_word(number)}
    if not gone:
        assert heard == [code_word(number)]
