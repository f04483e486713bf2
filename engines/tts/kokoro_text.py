"""Text as Kokoro takes it: English phonemes, token ids, and which of them belong to which word.

Facts of the model (Kokoro-82M v1.0, Apache-2.0): it was trained on misaki's alphabet, the one of our lexicons, with
the flap written ``T`` and the glottal stop ``t``; words are joined by a space, punctuation follows its word;
``config.json`` holds ``vocab``, an id a character; an input is id 0, the text's ids, id 0, at most 512 in all. A voice
is a table of style vectors, one for each count of characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.tts.g2p.english import EnglishPhonemes, Phonemes, SpokenWord
from engines.tts.g2p.letters import LetterToSound
from engines.tts.g2p.lexicon import Lexicon
from engines.tts.g2p.runs import runs_of
from engines.tts.kokoro_voices import VOICES

RATE_HZ = 24_000
FRAME_SAMPLES = 600
"""One frame of the predicted durations, 25 ms."""
MAX_PHONEMES = 510

_BOUNDARY_ID = 0
_ALPHABET = str.maketrans({"ɾ": "T", "ʔ": "t", "g": "ɡ"})


@dataclass(frozen=True, slots=True)
class PlacedWord:
    """``text_end`` is the index after the word in the text; ``end`` the index after its last id."""

    text_end: int
    end: int


@dataclass(frozen=True, slots=True)
class KokoroInput:
    """One inference. ``ids`` has the boundary at both ends; ``style`` is the row of the voice's table; ``pause`` is the
    punctuation heard after the last word."""

    ids: tuple[int, ...]
    style: int
    words: tuple[PlacedWord, ...]
    pause: str


class KokoroText:
    """Thread-safe. ``vocab`` is the checkpoint's own."""

    def __init__(self, phonemes: Phonemes, vocab: Mapping[str, int], max_phonemes: int = MAX_PHONEMES) -> None:
        if not 1 <= max_phonemes <= MAX_PHONEMES:
            raise ValueError(f"max_phonemes must be in 1..{MAX_PHONEMES}")
        self._phonemes = phonemes
        self._vocab = vocab
        self._max_phonemes = max_phonemes

    @classmethod
    def load(cls, model_dir: Path, lexicon_dir: Path, g2p_dir: Path, max_phonemes: int = MAX_PHONEMES) -> KokoroText:
        """Read ``config.json`` and the tables of ``misaki-en`` and ``g2p-en`` (about a second, off the loop).

        Raises OSError, KeyError or ValueError if a file is not there or not what it should be.
        """
        phonemes = EnglishPhonemes(Lexicon.load(lexicon_dir), LetterToSound.load(g2p_dir), kokoro_alphabet)
        return cls(phonemes, read_vocab(model_dir), max_phonemes)

    def inputs(self, text: str) -> list[KokoroInput]:
        """``text`` as inferences of at most ``max_phonemes`` characters, cut at pauses where that is possible; empty
        if nothing in it can be said."""
        words = [piece for word in self._phonemes.words(text) for piece in self._known(word)]
        return [self._input(run) for run in runs_of(words, self._max_phonemes, _size)]

    def _known(self, word: SpokenWord) -> Iterator[SpokenWord]:
        """The word without characters the model lacks; in parts if it is longer than an inference may be."""
        said = "".join(character for character in word.ipa if character in self._vocab)
        pause = word.pause if word.pause in self._vocab else ""
        room = max(1, self._max_phonemes - 1)
        for at in range(0, len(said), room):
            last = at + room >= len(said)
            yield SpokenWord(said[at : at + room], word.text_end, pause if last else "")

    def _input(self, words: Sequence[SpokenWord]) -> KokoroInput:
        ids = [_BOUNDARY_ID]
        placed: list[PlacedWord] = []
        for index, word in enumerate(words):
            if index and " " in self._vocab:
                ids.append(self._vocab[" "])
            ids += [self._vocab[character] for character in word.ipa]
            placed.append(PlacedWord(word.text_end, len(ids)))
            if word.pause:
                ids.append(self._vocab[word.pause])
        return KokoroInput((*ids, _BOUNDARY_ID), len(ids) - 2, tuple(placed), words[-1].pause)


def kokoro_alphabet(phonemes: str) -> str:
    """One word of the lexicon's alphabet as the model was taught it."""
    return phonemes.translate(_ALPHABET)


def read_vocab(model_dir: Path) -> dict[str, int]:
    """The ids of ``config.json``."""
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    vocab = config["vocab"]
    if not isinstance(vocab, dict) or not vocab:
        raise ValueError(f"{model_dir / 'config.json'} has no vocab")
    return {str(character): int(number) for character, number in vocab.items()}


def voice_names(model_dir: Path, suffix: str) -> tuple[str, ...]:
    """The English voices whose files (``voices/NAME`` + ``suffix``) are there, the default first."""
    return tuple(name for name in VOICES if (model_dir / "voices" / f"{name}{suffix}").is_file())


def _size(words: Sequence[SpokenWord]) -> int:
    """In characters, spaces and punctuation counted."""
    return sum(len(word.ipa) + bool(word.pause) for word in words) + len(words) - 1
