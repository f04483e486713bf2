"""Jobs that use an engine's weights, counted, so that closing the engine waits for them."""

from __future__ import annotations

import asyncio
import threading


class InFlight:
    """Thread-safe. A job asks :meth:`begin` before it touches the weights and calls :meth:`end` when it is through."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._closed = False

    def begin(self) -> bool:
        """False when the engine is closing: the job must do nothing."""
        with self._changed:
            if self._closed:
                return False
            self._count += 1
            return True

    def end(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    async def drain(self) -> None:
        """Let no job begin any more, and wait for those that have."""
        with self._changed:
            self._closed = True
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0)
