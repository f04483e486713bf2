"""The requests under way of an engine that lives on the event loop: one task each, found by call and epoch."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

Key = tuple[str, int]

_log = structlog.get_logger(__name__)


class Running:
    """One request. Whoever delivers for it asks :attr:`cancelled` first, each time."""

    __slots__ = ("_task", "cancelled", "key")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.cancelled = False
        self._task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self._task is not None:
            self._task.cancel()


class RunningSet:
    """At most ``limit`` requests. Those cancelled count until their connections are closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_key: dict[Key, set[Running]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, key: Key, work: Callable[[Running], Coroutine[Any, Any, None]]) -> Running | None:
        """Run ``work``, which catches its own errors, as a task; None: too many are under way."""
        if len(self._tasks) >= self._limit:
            return None
        running = Running(key)
        task = asyncio.create_task(work(running), name="openai-request")
        running._task = task
        self._tasks.add(task)
        self._by_key.setdefault(key, set()).add(running)

        def ended(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._forget(running)
            if not task.cancelled() and (error := task.exception()) is not None:
                # No traceback: it might be rendered with the values of its variables, which are the caller's words.
                frame = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{frame.name}:{frame.lineno}"
                _log.error("a request ended by a defect", error_type=type(error).__name__, where=where)

        task.add_done_callback(ended)
        return running

    def cancel(self, key: Key) -> None:
        for running in self._by_key.pop(key, ()):
            running.cancel()

    def forget(self, call: str) -> None:
        for key in [key for key in self._by_key if key[0] == call]:
            self.cancel(key)

    async def close(self) -> None:
        for key in list(self._by_key):
            self.cancel(key)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _forget(self, running: Running) -> None:
        same = self._by_key.get(running.key)
        if same is not None:
            same.discard(running)
            if not same:
                del self._by_key[running.key]
