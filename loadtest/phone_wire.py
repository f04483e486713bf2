"""What phone wires have in common: the caller is told of a call by its sound alone, and the call ends when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loadtest.call import CallOver
from loadtest.report import MediaReport
from loadtest.script import Patience
from loadtest.wire import CallLog

PHONE_PATIENCE = Patience(greeting_ms=3_000, pause_ms=1_000)
"""Nobody says that a response has begun, or is over: a caller waits as people, who can't tell a pause from the end."""


class PhoneWire:
    """The half of :class:`loadtest.call.Wire` that follows from that."""

    patience = PHONE_PATIENCE

    def __init__(self, call_id: str) -> None:
        self.log = CallLog(call_id)
        self._over: asyncio.Future[CallOver] = asyncio.get_running_loop().create_future()

    @property
    def over(self) -> CallOver | None:
        return self._over.result() if self._over.done() else None

    def end(self, over: CallOver) -> None:
        """The call is over; the first cause stands."""
        if not self._over.done():
            self._over.set_result(over)

    def check(self) -> None:
        """Raises :class:`CallOver` if the call is over."""
        if self._over.done():
            raise self._over.result()

    async def begin(self) -> None:
        self.check()

    async def listen(self, turn: Callable[[], int]) -> None:
        raise await asyncio.shield(self._over)

    def media(self) -> MediaReport | None:
        return None
