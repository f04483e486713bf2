"""How long to wait before a thing that broke is tried again."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Doubles from ``first_s`` to ``most_s`` with every failure, less up to half of it at random, so that what broke
    together does not come back together. ``random`` gives 0..1."""

    def __init__(self, random: Callable[[], float], *, first_s: float = 0.2, most_s: float = 30.0) -> None:
        self._random = random
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def next_s(self) -> float:
        delay_s, self._next_s = self._next_s, min(self._most_s, self._next_s * 2)
        return delay_s * (1 - self._random() / 2)

    def reset(self) -> None:
        """It has worked for long enough."""
        self._next_s = self._first_s
