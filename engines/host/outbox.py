"""What waits to be sent to a peer that does not read fast enough: bounded, and droppable by job."""

from __future__ import annotations

from collections import deque


class Outbox:
    """Packed messages in order. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[int | None, bytes]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def add(self, message: bytes, job: int | None = None, *, must: bool = False) -> bool:
        """Append. False, and nothing is kept, when it would be over the limit; ``must`` is for the one message that
        ends a job or answers a command: those are bounded by what was asked."""
        if not must and self._bytes + len(message) > self._limit_bytes:
            return False
        self._waiting.append((job, message))
        self._bytes += len(message)
        return True

    def drop(self, job: int) -> None:
        """Forget what waits of a job nobody listens to any more."""
        if any(owner == job for owner, _ in self._waiting):
            self._waiting = deque(entry for entry in self._waiting if entry[0] != job)
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
