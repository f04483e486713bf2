"""Pronunciations by lookup, from the JSON lexicons of misaki (Apache-2.0 data).

Each file maps a word to its phonemes, or to phonemes by part of speech: ``{"DEFAULT": .., "VERB": .., "NOUN": ..}``,
where the tag ``"None"`` means "nothing follows in this phrase" and a null means "no such reading". The phonemes are
misaki's alphabet: IPA with one letter a diphthong (A I O W Y) or affricate (ʤ ʧ), stress right before the vowel.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

Readings = dict[str, str]
"""Phonemes by tag; always has ``DEFAULT``."""

DEFAULT = "DEFAULT"

_SEPARATOR = re.compile(r"[\s,:]*")


class Pronunciations(Protocol):
    """Where words are looked up."""

    def get(self, word: str) -> Readings | None:
        """The readings of exactly this spelling, or None. The caller must not change them."""


class LexiconTable(Sequence[str]):
    """One lexicon, packed: 90,000 entries are 2 MB here, and would be 20 MB as a dict of strings.

    Lines ``word<TAB>readings`` in code point order in one UTF-8 buffer, found by bisection (17 steps, about 25 µs).
    """

    def __init__(self, entries: Iterable[tuple[str, Readings]]) -> None:
        lines = [f"{word}\t{_pack(readings)}".encode() for word, readings in entries]
        lines.sort(key=_word)
        self._buffer = b"".join(lines)
        self._offsets = np.zeros(len(lines) + 1, np.uint32)
        np.cumsum([len(line) for line in lines], out=self._offsets[1:])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # the bisection needs no slices
        return self._line(index)[0]

    def get(self, word: str) -> Readings | None:
        index = bisect_left(self, word)
        if index >= len(self):
            return None
        found, packed = self._line(index)
        return _unpack(packed) if found == word else None

    def _line(self, index: int) -> tuple[str, str]:
        line = self._buffer[self._offsets[index] : self._offsets[index + 1]].decode()
        word, _, packed = line.partition("\t")
        return word, packed


class Lexicon:
    """Several tables as one; the first that has the word answers."""

    def __init__(self, *tables: LexiconTable) -> None:
        self._tables = tables

    @classmethod
    def load(cls, folder: Path) -> Lexicon:
        """Read ``us_gold.json`` and ``us_silver.json`` (3 MB each, together about a second of CPU, off the loop)."""
        return cls(*(LexiconTable(read_entries(folder / name)) for name in ("us_gold.json", "us_silver.json")))

    def get(self, word: str) -> Readings | None:
        for table in self._tables:
            readings = table.get(word)
            if readings is not None:
                return readings
        return None


def read_entries(path: Path) -> Iterator[tuple[str, Readings]]:
    """The entries of one lexicon file, in its order.

    Read pair by pair: ``json.loads`` of the whole would hold the interpreter lock for 100 ms, and the event loop
    with it.
    """
    text = path.read_text(encoding="utf-8")
    decode = json.JSONDecoder().raw_decode
    position = text.index("{") + 1
    while True:
        position = _skip(text, position)
        if text[position] == "}":
            return
        word, position = decode(text, position)
        value, position = decode(text, _skip(text, position))
        readings = value if isinstance(value, dict) else {DEFAULT: value}
        yield word, {tag: phonemes for tag, phonemes in readings.items() if phonemes}


def _skip(text: str, position: int) -> int:
    found = _SEPARATOR.match(text, position)
    return found.end() if found else position


def _word(line: bytes) -> bytes:
    return line[: line.index(b"\t")]  # UTF-8 sorts as its code points do


def _pack(readings: Readings) -> str:
    return " ".join([readings[DEFAULT], *(f"{tag}={ph}" for tag, ph in readings.items() if tag != DEFAULT)])


def _unpack(packed: str) -> Readings:
    default, *others = packed.split(" ")
    readings = {DEFAULT: default}
    for other in others:
        tag, _, phonemes = other.partition("=")
        readings[tag] = phonemes
    return readings
