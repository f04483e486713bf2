"""Cuts a model's text, as it streams in, into segments worth synthesising one at a time.

The first segment is short, so that the caller hears something early: it ends at a clause of two words or more, or at a
word boundary near 60 characters. Later segments are sentences. Nothing is cut inside a number, an abbreviation, an
address, a bracket or a tag (see :mod:`streaming.text.boundaries`), and no segment grows beyond a bound.
"""

from __future__ import annotations

import msgspec

from streaming.text.boundaries import (
    CLAUSE_MARKS,
    NO,
    STOPS,
    WAIT,
    clause_end,
    line_end,
    sentence_end,
    stands_complete,
    word_boundary,
    words,
)
from streaming.text.reasoning import ReasoningFilter

LATER_MAX_CHARS = 200
"""A later sentence longer than this is split at a clause or a word."""
HARD_MAX_CHARS = 400
"""No segment is longer, whatever it tears (a bracket never closed, text without spaces)."""
_MAX_GAP_CHARS = 64  # of whitespace kept before a segment
_MAX_BRACKET_CHARS = 120  # a bracket open for longer was none
_MIN_CLAUSE_CHARS = 40  # of a clause split off a long sentence


class Segment(msgspec.Struct, frozen=True):
    """``text`` is ``raw[start:end]`` of the whole raw text: nothing stripped but reasoning. It has the whitespace that
    came before it."""

    start: int
    end: int
    text: str


class _Scan(msgspec.Struct):
    """What one look at the pending text found."""

    cut: int
    spaces: list[int]
    depth: int


class ClauseSplitter:
    """Splits one reply. Segments come in order, do not overlap, and between them leave out only whitespace and
    reasoning (``<think>...</think>`` lies in no segment; a segment always ends where it begins).

    Without :meth:`flush_pending` the segments do not depend on how the text was cut into deltas.
    """

    __slots__ = ("_first", "_first_max_chars", "_pending", "_reasoning", "_start")

    def __init__(self, first_max_chars: int = 60) -> None:
        self._first_max_chars = first_max_chars
        self._reasoning = ReasoningFilter()
        self._first = True
        self._pending = ""
        self._start = 0  # of the pending text, in the raw text

    @property
    def pending(self) -> str:
        """What was fed and is in no segment yet. At most :data:`HARD_MAX_CHARS` and a few dozen characters."""
        return self._pending + self._reasoning.held

    def feed(self, text: str) -> list[Segment]:
        """Take the next delta, of any size; return the segments that are proven now."""
        return self._accept(self._reasoning.feed(text))

    def flush(self) -> list[Segment]:
        """The reply ended: everything that is left."""
        return self._accept(self._reasoning.flush()) + self._take(final=True)

    def flush_pending(self) -> list[Segment]:
        """The model stalls: what can be spoken now, up to the last word boundary or a finished sentence. A half word,
        number, address or bracket stays pending; so does a single word, unless it is a sentence."""
        text = self._pending
        scan = self._scan(0, final=True)
        end = len(text.rstrip())
        if scan.depth == 0 and not self._reasoning.held and words(text) and stands_complete(text, 0):
            cut = end
        else:
            cut = word_boundary(text, 0, scan.spaces, len(text), number_may_follow=True)
            if words(text[:cut]) < 2:
                return []
        segment = self._segment(0, cut)
        self._advance(cut)
        return [segment]

    def _accept(self, pieces: list[tuple[int, str]]) -> list[Segment]:
        segments: list[Segment] = []
        for offset, piece in pieces:
            if offset != self._start + len(self._pending):  # reasoning lay between: a segment is one stretch of text
                segments += self._take(final=True)
                self._start = offset
            self._pending += piece
            segments += self._take(final=False)
        return segments

    def _take(self, final: bool) -> list[Segment]:
        segments: list[Segment] = []
        at = 0
        while True:
            at = self._skip_gap(at)
            cut = self._scan(at, final).cut
            if not cut and final and self._pending[at:].strip():
                cut = len(self._pending)
            if not cut:
                break
            segments.append(self._segment(at, cut))
            at = cut
        self._advance(len(self._pending) if final else at)
        return segments

    def _segment(self, start: int, end: int) -> Segment:
        self._first = False
        return Segment(self._start + start, self._start + end, self._pending[start:end])

    def _advance(self, count: int) -> None:
        self._pending = self._pending[count:]
        self._start += count

    def _body(self, start: int) -> int:
        """The first character that isn't whitespace."""
        at = start
        while at < len(self._pending) and self._pending[at].isspace():
            at += 1
        return at

    def _skip_gap(self, start: int) -> int:
        return max(start, self._body(start) - _MAX_GAP_CHARS)

    def _scan(self, start: int, final: bool) -> _Scan:
        """Look for the first proven cut of the text from ``start`` on, character by character, so that a cut depends
        only on the text before it and a bounded look ahead."""
        text = self._pending
        body = self._body(start)
        soft = self._first_max_chars if self._first else LATER_MAX_CHARS
        spaces: list[int] = []
        opened: list[int] = []
        clause = 0
        for at in range(body, len(text)):
            char = text[at]
            if at - body >= HARD_MAX_CHARS:
                return _Scan(self._any_space(body, at), spaces, 0)
            if at - body >= soft and (at - body == soft or char.isspace()):
                cut = clause or word_boundary(text, body, spaces, at + 1)
                if cut:
                    return _Scan(cut, spaces, 0)
            self._track_bracket(opened, at)
            if char.isspace() and not opened:
                spaces.append(at)
            end = self._end(body, at, final, bool(opened))
            if end == WAIT:
                return _Scan(0, spaces, len(opened))
            if end <= NO or (opened and not self._closes(opened, at, end)):
                continue
            if char not in CLAUSE_MARKS:
                if words(text[body:end]) >= (1 if char == "\n" else 2):
                    return _Scan(end, spaces, 0)
            elif self._first:
                if words(text[body:end]) >= 2:
                    return _Scan(end, spaces, 0)
            elif end - body >= _MIN_CLAUSE_CHARS:
                clause = end
        return _Scan(0, spaces, len(opened))

    def _end(self, body: int, at: int, final: bool, bracketed: bool) -> int:
        char = self._pending[at]
        if char == "\n":
            return line_end(self._pending, body, at, final)
        if char in STOPS:
            inside_run = at > body and self._pending[at - 1] in STOPS
            return NO if inside_run else sentence_end(self._pending, body, at, final)
        if char in CLAUSE_MARKS and not bracketed:
            return clause_end(self._pending, body, at, final)
        return NO

    def _any_space(self, body: int, end: int) -> int:
        for at in range(end - 1, body, -1):
            if self._pending[at].isspace() and not self._pending[at - 1].isspace():
                return at
        return end

    def _track_bracket(self, opened: list[int], at: int) -> None:
        char = self._pending[at]
        if char in "([{（【":
            if self._pending[at - 1 : at] not in (":", ";", "="):  # a smiley
                opened.append(at)
        elif char == "<":
            following = self._pending[at + 1 : at + 2]
            if following.isalpha() or following == "/":
                opened.append(at)
        elif char in ")]}）】>" and opened:
            opened.pop()
        elif char == "\n" or (opened and at - opened[0] > _MAX_BRACKET_CHARS):
            opened.clear()

    def _closes(self, opened: list[int], at: int, end: int) -> bool:
        """Whether the marks that close with a stop close every open bracket: "(It works.)"."""
        return sum(self._pending.count(bracket, at, end) for bracket in ")]}）】") >= len(opened)
