"""Who says which code word. Words are fewer than the calls of a long run, so they are used again; but never by two
callers at one time, nor soon after another, for then nobody could say whose voice was heard.

Each generator has a share of all words that is nobody else's, and gives its callers the one that has been free for
longest. A word that was in use less than :data:`REST_S` ago is given to nobody: rather a caller without one, who is
counted, than two whom nothing tells apart.
"""

from __future__ import annotations

from collections import deque

from streaming.audio.code_words import WORDS, code_word, number_of

REST_S = 30.0
"""From a caller's end until another may have its word. What a server mixes up is what it still holds of a call: the
seconds of its last reply."""


class CodePool:
    """The words of the ``generator``-th of so many generators. ``begin`` turns the order: what other runs on the same
    server have just used comes last."""

    def __init__(self, generator: int = 0, generators: int = 1, begin: int = 0) -> None:
        numbers = range(begin + generator, begin + WORDS, generators)
        self._free = deque((float("-inf"), number % WORDS) for number in numbers)

    def take(self, now_s: float) -> str | None:
        """None if none has rested for long enough."""
        if not self._free or now_s - self._free[0][0] < REST_S:
            return None
        return code_word(self._free.popleft()[1])

    def give_back(self, word: str, now_s: float) -> None:
        """Its caller has hung up."""
        number = number_of(word)
        assert number is not None
        self._free.append((now_s, number))
