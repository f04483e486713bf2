"""Token ids to text as they come, never cutting a character in two."""

from __future__ import annotations

from collections.abc import Callable

_REPLACEMENT = "�"
_LONGEST_CHARACTER_TOKENS = 4
"""A UTF-8 character has at most four bytes, so a byte-level token sequence that is still broken after more is broken
for good."""


class Detokenizer:
    """Feed ids one by one. ``decode`` turns a list of ids into text, with ``U+FFFD`` for incomplete bytes.

    Only a short tail is decoded again at each step, so a long reply costs no more per token than a short one.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        """Ids already told: a decoder may join them to what follows (a space, a digraph)."""
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        """The text that became certain; often empty in the middle of a character."""
        self._pending.append(token)
        before = self._decode(self._context)
        text = self._decode(self._context + self._pending)[len(before) :]
        if text.endswith(_REPLACEMENT) and len(self._pending) <= _LONGEST_CHARACTER_TOKENS:
            return ""
        self._context, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        """What is left at the end, without the bytes of a character that never became whole."""
        if not self._pending:
            return ""
        before = self._decode(self._context)
        text = self._decode(self._context + self._pending)[len(before) :]
        self._pending = []
        return text.rstrip(_REPLACEMENT)
