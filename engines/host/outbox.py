"""What waits to be sent to a peer that does not read fast enough: bounded, and droppable by owner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable


class Outbox:
    """Packed messages in order. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[Hashable, bytes]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def add(self, message: bytes, owner: Hashable = None, *, must: bool = False) -> bool:
        """Append what belongs to ``owner``. False, and nothing is kept, when it would be over the limit; ``must`` is
        for what ends a job or answers a command: that is bounded by what was asked."""
        if not must and self._bytes + len(message) > self._limit_bytes:
            return False
        self._waiting.append((owner, message))
        self._bytes += len(message)
        return True

    def drop(self, dead: Callable[[Hashable], bool]) -> None:
        """Forget what waits of owners that nobody listens to any more."""
        if self._waiting:
            self._waiting = deque(entry for entry in self._waiting if not dead(entry[0]))
            self._bytes = sum(len(message) for _, message in self._waiting)

    def take(self, most_bytes: int) -> list[bytes]:
        """The next messages, as many as fit; at least one if any waits."""
        taken: list[bytes] = []
        size = 0
        while self._waiting and (not taken or size + len(self._waiting[0][1]) <= most_bytes):
            message = self._waiting.popleft()[1]
            size += len(message)
            taken.append(message)
        self._bytes -= size
        return taken
