"""Calls from several threads, made one batch: whoever finds nobody at work takes along all that wait and are alike.

Nobody waits for company: a lone call runs at once, and a batch is what came while the one before it ran. For a GPU,
where a batch of clips takes little longer than one; on CPU cores it gains nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")


class _Entry(Generic[K, T, R]):
    __slots__ = ("done", "error", "item", "key", "result")

    def __init__(self, key: K, item: T) -> None:
        self.key = key
        self.item = item
        self.done = False
        self.result: R | None = None
        self.error: Exception | None = None


class Batcher(Generic[K, T, R]):
    """``run(key, items)`` gives a result for each item, on the thread of one of the callers, one batch at a time of at
    most ``limit``. If it raises, so does the call of every item in the batch."""

    def __init__(self, run: Callable[[K, Sequence[T]], Sequence[R]], limit: int) -> None:
        self._run = run
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: list[_Entry[K, T, R]] = []
        self._busy = False

    def __call__(self, key: K, item: T) -> R:
        entry: _Entry[K, T, R] = _Entry(key, item)
        with self._changed:
            self._waiting.append(entry)
            self._changed.wait_for(lambda: entry.done or not self._busy)
            batch = [] if entry.done else self._take(entry)
        if batch:
            self._perform(batch)
        if entry.error is not None:
            raise entry.error
        assert entry.result is not None
        return entry.result

    def _take(self, first: _Entry[K, T, R]) -> list[_Entry[K, T, R]]:
        others = [entry for entry in self._waiting if entry.key == first.key and entry is not first]
        batch = [first, *others[: self._limit - 1]]
        self._waiting = [entry for entry in self._waiting if entry not in batch]
        self._busy = True
        return batch

    def _perform(self, batch: list[_Entry[K, T, R]]) -> None:
        try:
            results = self._run(batch[0].key, [entry.item for entry in batch])
            for entry, result in zip(batch, results, strict=True):
                entry.result = result
        except Exception as error:  # noqa: BLE001 (each caller raises it)
            for entry in batch:
                entry.error = error
        finally:
            with self._changed:
                for entry in batch:
                    entry.done = True
                self._busy = False
                self._changed.notify_all()
