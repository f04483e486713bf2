"""The calls that ended last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gateway.records.call_record import CallRecord


class RecentCalls:
    """At most ``limit`` records; the oldest goes first."""

    def __init__(self, limit: int) -> None:
        self._records: deque[CallRecord] = deque(maxlen=limit)

    def add(self, record: CallRecord) -> None:
        self._records.append(record)

    def __iter__(self) -> Iterator[CallRecord]:
        """Newest first."""
        return reversed(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def find(self, call_id: str) -> CallRecord | None:
        return next((record for record in self._records if record.id == call_id), None)
