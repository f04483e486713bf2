"""Speakable English text to phonemes, word by word, keeping where each word ends in the text.

A word is looked up in the lexicon, else taken as an inflection of one that is there, else spelled (acronyms), else
sounded out by the letter-to-sound network. What cannot be said (other scripts, symbols) is left out.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from engines.tts.g2p import homographs
from engines.tts.g2p.inflect import plural, stems
from engines.tts.g2p.ipa import STRESS, VOWELS, espeak_ipa
from engines.tts.g2p.lexicon import DEFAULT, Pronunciations, Readings
from engines.tts.g2p.own_words import OWN_WORDS

LETTER_NAMES = {
    "a": "ˈA", "b": "bˈi", "c": "sˈi", "d": "dˈi", "e": "ˈi", "f": "ˈɛf", "g": "ʤˈi", "h": "ˈAʧ", "i": "ˈI", "j": "ʤˈA",
    "k": "kˈA", "l": "ˈɛl", "m": "ˈɛm", "n": "ˈɛn", "o": "ˈO", "p": "pˈi", "q": "kjˈu", "r": "ˈɑɹ", "s": "ˈɛs",
    "t": "tˈi", "u": "jˈu", "v": "vˈi", "w": "dˈʌbᵊlju", "x": "ˈɛks", "y": "wˈI", "z": "zˈi",
}  # fmt: skip
_DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_SYMBOL_NAMES = {"&": "and", "%": "percent", "@": "at", "+": "plus"}

_SPELLED_IN_CAPITALS = frozenset(
    ("AA", "AD", "AM", "COO", "ER", "EST", "ETA", "ID", "IT", "LA", "LED", "MA", "OD", "OS", "PA", "US")
)
"""Acronyms whose letters also make a word: in capitals amid ordinary text they are spelled."""

_MAX_SPELLED = 5
"""Unknown words in capitals up to this many letters are acronyms; longer ones are shouted words."""

_SOFT_PAUSES = {"—": ",", "–": ",", "…": ".", "(": ",", ")": ","}
_PAUSES = frozenset(".,!?;:")
_TOKEN = re.compile(r"\S{1,64}")  # a longer run is no word, and must not become one huge inference
_PIECE = re.compile(r"'?[A-Za-z]+(?:'[A-Za-z]+)*'?|\d|[&%@+]")
_DOTTED = re.compile(r"(?<![A-Za-z])(?:[A-Za-z]\.){2,}|(?<![A-Za-z])(?:[A-Za-z]\.)+[A-Za-z](?![A-Za-z])")
_HYPHENED = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)+")
_ACRONYM_PLURAL = re.compile(r"([A-Z]{2,})('?s)$")
_TITLES = frozenset(("dr.", "mr.", "mrs.", "ms.", "st."))  # their full stop is no pause
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_QUOTES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "`": "'"})
_LETTER_A = frozenset("aeiouyAEIOUY")


class SoundsOut(Protocol):
    def phonemes(self, word: str) -> str:
        """A guess for any word of letters a-z, in the lexicon's alphabet."""


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """One whitespace-separated token of the text. ``ipa`` is in the voice's alphabet, ``text_end`` is the index after
    the token's last character, ``pause`` the punctuation heard after it ("" or one of ``.,!?;:``)."""

    ipa: str
    text_end: int
    pause: str


class Phonemes(Protocol):
    """:class:`EnglishPhonemes`, or a stand-in under test."""

    def words(self, text: str) -> list[SpokenWord]: ...


@dataclass(slots=True)
class _Part:
    """A thing to pronounce: a word, a letter or a digit of a token."""

    word: str
    token: int
    spelled: bool = False
    phonemes: str = ""


@dataclass(frozen=True, slots=True)
class _Token:
    text_end: int
    pause: str


class EnglishPhonemes:
    """Thread-safe: holds nothing but the tables. ``alphabet`` turns one word from the lexicon's alphabet into the
    voice's."""

    def __init__(
        self, lexicon: Pronunciations, letters: SoundsOut, alphabet: Callable[[str], str] = espeak_ipa
    ) -> None:
        self._lexicon = lexicon
        self._letters = letters
        self._alphabet = alphabet

    def words(self, text: str) -> list[SpokenWord]:
        """The sayable words of ``text`` in order; empty if there are none."""
        tokens, parts = self._split(text)
        shouted = _is_shouted(parts)
        befores = _words_before(tokens, parts)
        following: _Part | None = None
        for index in range(len(parts) - 1, -1, -1):
            part = parts[index]
            if following is not None and part.token != following.token and tokens[part.token].pause:
                following = None
            part.phonemes = self._pronounce(part, befores[index], following, shouted)
            if part.phonemes:
                following = part
        _stress_phrases(tokens, parts)
        return _join(tokens, parts, self._alphabet)

    def _split(self, text: str) -> tuple[list[_Token], list[_Part]]:
        tokens: list[_Token] = []
        parts: list[_Part] = []
        for found in _TOKEN.finditer(text):
            plain = _ascii_letters(found[0])
            pause = "" if plain.lower() in _TITLES else _pause(plain)
            dotted = _DOTTED.search(plain)
            hyphened = _HYPHENED.search(plain)
            if dotted:
                ends = not text[found.end() :].strip() or text[found.end() :].lstrip()[0].isupper()
                pause = pause if pause != "." or ends else ""
                parts.append(_Part(dotted[0].replace(".", ""), len(tokens), spelled=True))
            elif hyphened and self._readings(hyphened[0]) is not None:
                parts.append(_Part(hyphened[0], len(tokens)))
            else:
                for piece in _PIECE.findall(plain):
                    word = _DIGIT_NAMES[int(piece)] if piece.isdigit() else _SYMBOL_NAMES.get(piece, piece)
                    parts.append(_Part(word, len(tokens)))
            tokens.append(_Token(found.end(), pause))
        return tokens, parts

    def _pronounce(self, part: _Part, before: list[str], following: _Part | None, shouted: bool) -> str:
        word = part.word
        if part.spelled:
            return _spell(word)
        if len(word) == 1 and word.isalpha() and not _is_article(word, before, following):
            if word == "I" and following is not None:
                return "I"
            return LETTER_NAMES[word.lower()]
        weak = _weak_form(word.lower(), following)
        if weak:
            return weak
        if word.isupper() and not shouted:
            return self._capitals(word)
        plural_acronym = _ACRONYM_PLURAL.match(word)
        if plural_acronym:
            return plural(self._capitals(plural_acronym[1]))
        readings = self._readings(word)
        if readings is not None:
            nxt = following.word.lower() if following else None
            return homographs.choose(word.lower(), readings, before, nxt)
        return self._inflected(word) or self._unknown(word)

    def _readings(self, word: str) -> Readings | None:
        own = OWN_WORDS.get(word.lower())
        if own:
            return {DEFAULT: own}
        for spelling in dict.fromkeys((word, word.lower(), word.capitalize())):
            readings = self._lexicon.get(spelling)
            if readings is not None:
                return readings
        return None

    def _inflected(self, word: str) -> str:
        for stem, ending in stems(word):
            readings = self._readings(stem)
            if readings is not None:
                return ending(readings[DEFAULT])
            if word.endswith(("'s", "s'")):
                return ending(self._inflected(stem) or self._unknown(stem))
        return ""

    def _capitals(self, word: str) -> str:
        if word in _SPELLED_IN_CAPITALS:
            return _spell(word)
        readings = self._lexicon.get(word) or self._readings(word.lower())
        if readings is not None:
            return readings[DEFAULT]
        if word.endswith("'S"):
            return self._inflected(word[:-1] + "s")
        if len(word) <= _MAX_SPELLED:
            return _spell(word)
        return self._inflected(word.lower()) or self._unknown(word.lower())

    def _unknown(self, word: str) -> str:
        bare = word.strip("'")
        if bare != word:
            readings = self._readings(bare)
            return readings[DEFAULT] if readings is not None else self._unknown(bare)
        if word.isupper() and len(word) <= _MAX_SPELLED:
            return _spell(word)
        if word.startswith("Mc") and len(word) > 4:
            return ("mə" if word[2] in "CGKQ" else "mək") + self._single(word[2:])
        pieces = _CAMEL.findall(word)
        if len(pieces) > 1:
            return "".join(self._single(piece) for piece in pieces)
        if not _LETTER_A & set(word):
            return _spell(word)
        return self._letters.phonemes(word.replace("'", "").lower())

    def _single(self, word: str) -> str:
        if word.isupper() and len(word) > 1:
            return self._capitals(word)
        readings = self._readings(word)
        return readings[DEFAULT] if readings is not None else self._inflected(word) or self._unknown(word.lower())


def _words_before(tokens: list[_Token], parts: list[_Part]) -> list[list[str]]:
    """For each part, the up to two words before it in its phrase, lower case."""
    befores: list[list[str]] = []
    before: list[str] = []
    for index, part in enumerate(parts):
        if index and part.token != parts[index - 1].token and tokens[parts[index - 1].token].pause:
            before = []
        befores.append(before)
        before = [*before[-1:], part.word.lower()]
    return befores


def _ascii_letters(token: str) -> str:
    """Curly quotes made plain and accents taken off; other scripts stay, and match nothing later."""
    decomposed = unicodedata.normalize("NFKD", token.translate(_QUOTES))
    return "".join(
        str(unicodedata.digit(character)) if character.isdigit() else character
        for character in decomposed
        if not unicodedata.combining(character)
    )


def _pause(token: str) -> str:
    """The punctuation at the token's end: the strongest mark of its last run. A hyphen alone is a dash."""
    if token == "-":
        return ","
    marks = ""
    for character in reversed(token):
        if character.isalnum():
            break
        marks += _SOFT_PAUSES.get(character, character if character in _PAUSES else "")
    for mark in "?!.;:,":
        if mark in marks:
            return mark
    return ""


def _is_shouted(parts: list[_Part]) -> bool:
    words = [part.word for part in parts if len(part.word) > 1 and not part.spelled]
    return len(words) >= 3 and all(word.isupper() for word in words)


def _is_article(word: str, before: list[str], following: _Part | None) -> bool:
    if word == "a":
        return following is not None
    if word != "A" or before or following is None:
        return False
    return len(following.word) > 1 and following.word.lower() != "as"  # "A as in alpha"


def _weak_form(word: str, following: _Part | None) -> str:
    """The unstressed forms of articles and "to", which depend on the sound that follows."""
    vowel = following is not None and following.phonemes.lstrip(STRESS)[:1] in VOWELS
    match word:
        case "a":
            return "ɐ"
        case "an":
            return "ɐn" if following is not None else "ˈæn"
        case "the":
            return "ðɪ" if vowel else "ðə"
        case "to":
            if following is None:
                return "tˈu"
            return "tʊ" if vowel else "tə"
    return ""


def _spell(word: str) -> str:
    """Letter by letter, the last one stressed, as acronyms are: "PBX" is ``pˌibˌiˈɛks``."""
    names = [LETTER_NAMES[letter] for letter in word.lower() if letter in LETTER_NAMES]
    return "".join(name.replace("ˈ", "ˌ") for name in names[:-1]) + "".join(names[-1:])


def _stress_phrases(tokens: list[_Token], parts: list[_Part]) -> None:
    """Give a phrase of nothing but weak words ("It is.") a stress on its last word."""
    phrase: list[_Part] = []
    for index, part in enumerate(parts):
        phrase.append(part)
        last = index == len(parts) - 1
        if not last and not (tokens[part.token].pause and parts[index + 1].token != part.token):
            continue
        said = [member for member in phrase if member.phonemes]
        if said and not any("ˈ" in member.phonemes for member in said):
            said[-1].phonemes = _stressed(said[-1].phonemes)
        phrase = []


def _stressed(phonemes: str) -> str:
    if "ˌ" in phonemes:
        return phonemes.replace("ˌ", "ˈ", 1)
    for index, phoneme in enumerate(phonemes):
        if phoneme in VOWELS:
            return f"{phonemes[:index]}ˈ{phonemes[index:]}"
    return phonemes


def _join(tokens: list[_Token], parts: Iterable[_Part], alphabet: Callable[[str], str]) -> list[SpokenWord]:
    ipa: dict[int, list[str]] = {}
    for part in parts:
        if part.phonemes:
            ipa.setdefault(part.token, []).append(alphabet(part.phonemes))
    words: list[SpokenWord] = []
    for index, token in enumerate(tokens):
        if index in ipa:
            words.append(SpokenWord(" ".join(ipa[index]), token.text_end, token.pause))
        elif words and token.pause and not words[-1].pause:  # a dash or bracket standing alone
            last = words[-1]
            words[-1] = SpokenWord(last.ipa, last.text_end, token.pause)
    return words
