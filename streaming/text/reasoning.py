"""Takes a model's reasoning (``<think>...</think>``) out of its text, however the tags are split over tokens."""

from __future__ import annotations

import re

_TAG = re.compile(r"<(/?)(?:think|thinking|reasoning)>", re.IGNORECASE)
_TAGS = ("<think>", "</think>", "<thinking>", "</thinking>", "<reasoning>", "</reasoning>")
_LONGEST = max(map(len, _TAGS))


class ReasoningFilter:
    """Text in, pieces of speakable text out, each with its offset in the whole raw text.

    Reasoning is dropped as it comes, so one that never ends costs no memory. A closing tag without an opening one is
    dropped alone.
    """

    __slots__ = ("_inside", "_offset", "held")

    def __init__(self) -> None:
        self._inside = False
        self._offset = 0  # of the first held character
        self.held = ""
        """What may be the beginning of a tag: spoken by nobody until the next characters tell."""

    def feed(self, text: str) -> list[tuple[int, str]]:
        """Pieces in order. Two pieces that a tag parted are never joined."""
        text = self.held + text
        pieces: list[tuple[int, str]] = []
        at = 0
        for tag in _TAG.finditer(text):
            self._add(pieces, text, at, tag.start())
            self._inside = not tag.group(1)
            at = tag.end()
        keep = self._partial_tag(text, at)
        self._add(pieces, text, at, keep)
        self._offset += keep
        self.held = text[keep:]
        return pieces

    def flush(self) -> list[tuple[int, str]]:
        """The end of the text: half a tag was none."""
        pieces: list[tuple[int, str]] = []
        self._add(pieces, self.held, 0, len(self.held))
        self._offset += len(self.held)
        self.held = ""
        return pieces

    def _add(self, pieces: list[tuple[int, str]], text: str, start: int, end: int) -> None:
        if start < end and not self._inside:
            pieces.append((self._offset + start, text[start:end]))

    @staticmethod
    def _partial_tag(text: str, start: int) -> int:
        """Where a tag may begin that isn't whole yet; the length of ``text`` if nowhere."""
        at = text.rfind("<", max(start, len(text) - _LONGEST + 1))
        if at >= 0 and any(tag.startswith(text[at:].lower()) for tag in _TAGS):
            return at
        return len(text)
