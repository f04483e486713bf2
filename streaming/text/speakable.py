"""What a voice should say for a piece of a model's reply, and which piece of the reply each spoken word stands for."""

from __future__ import annotations

import re
import unicodedata

import msgspec

from streaming.text.english import english
from streaming.text.markup import strip_markup

_Char = tuple[str, int, int]
"""A character to say and the half-open range of the raw text it stands for."""

_STRENGTH = ",;:.!?"
_PAUSES = {
    "(": ",", ")": ",", "[": ",", "]": ",", "{": ",", "}": ",", "—": ",", "–": ",", "―": ",", "|": ",",
    "，": ",", "、": ",", "；": ";", "：": ":", "。": ".", "．": ".", "！": "!", "？": "?", "।": ".", "॥": ".",
    "؟": "?", "،": ",", "؛": ";", "۔": ".", "¿": "", "¡": "", "（": ",", "）": ",",
}  # fmt: skip
_APOSTROPHES = "'’‘ʼ"
_QUOTES = frozenset('"“”„«»')
_WORD = re.compile(r"\S+")


class Speakable(msgspec.Struct, frozen=True):
    """``spans[k]`` is the half-open range of the raw text that the ``k``-th space-separated word of ``text`` stands
    for, never falling; words of one number share their range. ``text`` is empty where there is nothing to say."""

    text: str
    spans: tuple[tuple[int, int], ...]

    def raw_end(self, text_end: int) -> int:
        """How much of the raw text was heard when ``text[:text_end]`` was: the end of the last raw word of which all
        spoken words were. 0 if none was."""
        heard = sum(1 for word in _WORD.finditer(self.text) if word.end() <= text_end)
        if 0 < heard < len(self.spans):
            while heard and self.spans[heard - 1] == self.spans[heard]:
                heard -= 1
        return self.spans[heard - 1][1] if heard else 0


def speakable(raw: str, language: str = "en") -> Speakable:
    """Speakable text for ``raw``, usually one segment.

    English comes out as letters, apostrophes, hyphens, spaces and ``. , ? ! ; :`` alone, with every number spelled. Of
    other languages only markup and emoji are taken out. ``language`` is a BCP 47 tag.
    """
    mapped = strip_markup(raw)
    chars: list[_Char] = [(char, at, at + 1) for char, at in zip(mapped.text, mapped.origins, strict=True)]
    if language.partition("-")[0].lower() == "en":
        chars = _punctuate(_say_english(mapped.text, chars))
    else:
        chars = _collapse(chars)
    if not any(char.isalnum() for char, _, _ in chars):
        return Speakable("", ())
    return _assemble(raw, chars)


def _say_english(text: str, chars: list[_Char]) -> list[_Char]:
    said: list[_Char] = []
    at = 0
    for start, end, spoken in english(text):
        said += chars[at:start]
        first, last = chars[start][1], chars[end - 1][2]
        if said and said[-1][0].isalnum():
            said.append((" ", first, first))
        said += [(char, first, last) for char in spoken]
        if spoken[-1:].isalnum() and text[end : end + 1].isalnum():
            said.append((" ", last, last))
        at = end
    return said + chars[at:]


def _punctuate(chars: list[_Char]) -> list[_Char]:
    """Only what may stand in speakable English, each mark right after a word and one at a time."""
    out: list[_Char] = []
    for at, (char, start, end) in enumerate(chars):
        following = chars[at + 1][0] if at + 1 < len(chars) else ""
        if unicodedata.category(char)[0] in "LM":
            out.append((char, start, end))
        elif char in _STRENGTH:
            _mark(out, char, start, end)
        elif char == "…":
            _mark(out, "." if _starts_sentence(chars, at + 1) else ",", start, end)
            _space(out, start, end)
        elif char in _PAUSES:
            _mark(out, _PAUSES[char], start, end)
            _space(out, start, end)
        elif char in _APOSTROPHES or char in "-‐‑":
            if out and out[-1][0].isalpha() and following.isalpha():
                out.append(("'" if char in _APOSTROPHES else "-", start, end))
            elif char in "-‐‑":
                _space(out, start, end)
        elif char not in _QUOTES:
            _space(out, start, end)
    return _strip_end(out)


def _starts_sentence(chars: list[_Char], at: int) -> bool:
    following = "".join(char for char, _, _ in chars[at : at + 4]).lstrip(" \"“'‘")
    return not following or following[0].isupper()


def _mark(out: list[_Char], mark: str, start: int, end: int) -> None:
    """Add a pause or stop after the last word; of two in a row the stronger stays."""
    spaced = bool(out) and out[-1][0] == " "
    if spaced:
        out.pop()
    if out and mark:
        last, last_start, _ = out[-1]
        dotted = mark != "." and [char for char, _, _ in out[-3::2]] == [".", "."]  # "a.m.,"
        if last not in _STRENGTH or dotted:
            out.append((mark, start, end))
        elif _STRENGTH.index(mark) > _STRENGTH.index(last):
            out[-1] = (mark, last_start, end)
    if spaced:
        _space(out, start, end)


def _space(out: list[_Char], start: int, end: int) -> None:
    if out and out[-1][0] != " ":
        out.append((" ", start, end))


def _strip_end(out: list[_Char]) -> list[_Char]:
    while out and out[-1][0] == " ":
        out.pop()
    return out


def _collapse(chars: list[_Char]) -> list[_Char]:
    out: list[_Char] = []
    for char, start, end in chars:
        if char.isspace():
            _space(out, start, end)
        else:
            out.append((char, start, end))
    return _strip_end(out)


def _assemble(raw: str, chars: list[_Char]) -> Speakable:
    text = "".join(char for char, _, _ in chars)
    spans = [
        (chars[word.start()][1], max(end for _, _, end in chars[word.start() : word.end()]))
        for word in _WORD.finditer(text)
    ]
    closed: list[tuple[int, int]] = []
    for at, (start, end) in enumerate(spans):  # take in what closes a word: emphasis, quotes, the rest of a link
        limit = spans[at + 1][0] if at + 1 < len(spans) else len(raw)
        if at + 1 == len(spans):
            end = len(raw)
        while end < limit and not raw[end].isspace():
            end += 1
        closed.append((start, end))
    for at in range(len(closed) - 2, -1, -1):  # the words of one number share one range
        if spans[at] == spans[at + 1] or closed[at][1] > closed[at + 1][1]:
            closed[at] = (closed[at][0], closed[at + 1][1])
    return Speakable(text, tuple(closed))
