"""Calls whose way in was a request that has long been answered: their tasks, and who opened them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

ENDED_KEPT = 1_000
"""Of so many calls that ended last it is still known who opened them: a page's word that it hangs up can come after the
end of its connection, which ends the call as well."""


class CallDesk:
    """Holds the tasks of such calls until they end; a call is on the switchboard all the same."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._openers: dict[str, str] = {}
        self._openers_of_ended: dict[str, str] = {}

    def start(self, call_id: str, work: Coroutine[Any, Any, None], *, opener: str | None = None) -> None:
        """Run ``work`` until it ends. ``opener`` is the id of the client secret that opened the call."""
        if opener is not None:
            self._openers[call_id] = opener
        task = asyncio.create_task(work, name=call_id)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def opened_by(self, call_id: str, secret: str) -> bool:
        """Whether the secret of this id opened the call, which may have ended a moment ago, and may end it."""
        return secret in (self._openers.get(call_id), self._openers_of_ended.get(call_id))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        opener = self._openers.pop(task.get_name(), None)
        if opener is not None:
            self._openers_of_ended[task.get_name()] = opener
            if len(self._openers_of_ended) > ENDED_KEPT:
                del self._openers_of_ended[next(iter(self._openers_of_ended))]
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a call's task failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)

    async def close(self) -> None:
        """End what is still up."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
