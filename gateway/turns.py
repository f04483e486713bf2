"""Who comes next, of many that come at once and whose work is done on the event loop."""

from __future__ import annotations

import asyncio
from collections import deque

WORK_S = 0.002
"""What one of them costs the loop, about."""
SHARE = 0.25
"""Of the loop's time. Where its turns are long anyway, one in each would come so slowly that the last waits for
seconds."""


class Turns:
    """One goes on in each turn of the loop, the loop seeing to everything else in between; where turns take long, as
    many as make them longer by :data:`SHARE`."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._called_at: float | None = None
        """By the loop's clock; None: nobody waits."""

    async def wait(self) -> None:
        """Until it is the caller's turn; who gives up is passed over."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if self._called_at is None:
            self._called_at = loop.time()
            loop.call_soon(self._call, loop)
        await turn

    def _call(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        passed_s = now - self._called_at if self._called_at is not None else 0.0
        left = max(1, int(passed_s * SHARE / WORK_S))
        while self._waiting and left:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                left -= 1
        self._called_at = now if self._waiting else None
        if self._waiting:
            loop.call_soon(self._call, loop)
