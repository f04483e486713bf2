"""Puts numbered chunks of audio in order again, for carriers that do not. Sans-IO."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

WINDOW = 3
"""Chunks that wait for one before them: 60 ms. Then it is given up."""

RESTART = 1_000
"""A number that is so much lower belongs to a count that began anew."""


class ChunkOrder(Generic[T]):
    """One stream's."""

    def __init__(self) -> None:
        self.late = 0
        """Chunks that came after they were given up, or twice."""
        self._next: int | None = None
        self._waiting: dict[int, T] = {}

    def put(self, number: int | None, chunk: T) -> list[T]:
        """What can be heard now, in order. One without a number is taken as it comes."""
        if number is None:
            return [chunk]
        if self._next is None or number < self._next - RESTART:
            self._next = number
            self._waiting.clear()
        if number < self._next or number in self._waiting:
            self.late += 1
            return []
        self._waiting[number] = chunk
        if len(self._waiting) > WINDOW and self._next not in self._waiting:
            self._next = min(self._waiting)
        ready = []
        while self._next in self._waiting:
            ready.append(self._waiting.pop(self._next))
            self._next += 1
        return ready
