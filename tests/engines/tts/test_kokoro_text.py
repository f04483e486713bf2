"""Text to Kokoro's ids, with a vocabulary small enough to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.tts.g2p.english import EnglishPhonemes, SpokenWord
from engines.tts.g2p.lexicon import Lexicon, LexiconTable
from engines.tts.kokoro_text import (
    MAX_PHONEMES,
    KokoroText,
    kokoro_alphabet,
    read_vocab,
    voice_names,
)
from engines.tts.kokoro_voices import DEFAULT_VOICE, VOICES

VOCAB = {character: index for index, character in enumerate(" .,!?;:abcdefˈˌTt", start=1)}


class _Spelled:
    """Each word is its own letters; a trailing mark is its pause."""

    def words(self, text: str) -> list[SpokenWord]:
        words: list[SpokenWord] = []
        at = 0
        for token in text.split(" "):
            at += len(token)
            pause = token[-1] if token and token[-1] in ".,!?;:" else ""
            if token:
                words.append(SpokenWord(token.removesuffix(pause), at, pause))
            at += 1
        return words


class _Guess:
    def phonemes(self, word: str) -> str:
        return "ɡˈʌ"


def _text(max_phonemes: int = MAX_PHONEMES) -> KokoroText:
    return KokoroText(_Spelled(), VOCAB, max_phonemes)


def test_words_are_joined_by_spaces_between_two_boundaries() -> None:
    [only] = _text().inputs("ab, c.")
    assert only.ids == (0, *(VOCAB[character] for character in "ab, c."), 0)
    assert [(word.text_end, word.end) for word in only.words] == [(3, 3), (6, 6)]
    assert only.pause == "."


def test_the_style_row_is_that_of_the_character_count() -> None:
    [one] = _text().inputs("a")
    [six] = _text().inputs("ab, c.")
    assert (one.style, six.style) == (0, 5)


def test_characters_the_model_lacks_are_left_out() -> None:
    [only] = _text().inputs("axb yy c")
    assert only.ids == (0, *(VOCAB[character] for character in "ab c"), 0)
    assert [word.text_end for word in only.words] == [3, 8]


@pytest.mark.parametrize("text", ["", " ", "zz xyz"])
def test_nothing_to_say_is_no_input(text: str) -> None:
    assert _text().inputs(text) == []


def test_a_long_text_is_cut_at_a_pause() -> None:
    inputs = _text(8).inputs("ab cd, ab cd")
    assert [[word.text_end for word in one.words] for one in inputs] == [[2, 6], [9, 12]]


def test_a_word_longer_than_an_inference_is_said_in_parts() -> None:
    inputs = _text(4).inputs("abcdefa.")
    assert [len(one.ids) - 2 for one in inputs] == [3, 3, 2]
    assert [one.pause for one in inputs] == ["", "", "."]


@given(st.text("abcx .,", max_size=80), st.integers(2, 20))
def test_no_inference_is_too_long_and_no_word_is_lost(text: str, max_phonemes: int) -> None:
    inputs = _text(max_phonemes).inputs(text)
    said = [word.text_end for word in _Spelled().words(text) if set(VOCAB) & set(word.ipa)]
    assert list(dict.fromkeys(word.text_end for one in inputs for word in one.words)) == said
    for one in inputs:
        assert 1 <= len(one.ids) - 2 <= max_phonemes
        assert one.ids[0] == one.ids[-1] == 0
        ends = [word.end for word in one.words]
        assert ends == sorted(set(ends))
        assert ends[-1] in (len(one.ids) - 1, len(one.ids) - 2)


def test_the_lexicon_is_written_as_the_model_was_taught() -> None:
    lexicon = Lexicon(LexiconTable({"city": {"DEFAULT": "sˈɪɾi"}, "kitten": {"DEFAULT": "kˈɪʔn"}}.items()))
    words = EnglishPhonemes(lexicon, _Guess(), kokoro_alphabet).words("city kitten.")
    assert [word.ipa for word in words] == ["sˈɪTi", "kˈɪtn"]


def test_the_vocabulary_is_the_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab": {"a": 43}}))
    assert read_vocab(tmp_path) == {"a": 43}
    (tmp_path / "config.json").write_text(json.dumps({"vocab": {}}))
    with pytest.raises(ValueError, match="no vocab"):
        read_vocab(tmp_path)


def test_voices_are_those_whose_files_are_there(tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    for name in ("bm_george", "zz_unknown", DEFAULT_VOICE):
        (tmp_path / "voices" / f"{name}.safetensors").touch()
    assert voice_names(tmp_path, ".safetensors") == (DEFAULT_VOICE, "bm_george")
    assert voice_names(tmp_path, ".pt") == ()
    assert len(VOICES) == len(set(VOICES)) == 28
