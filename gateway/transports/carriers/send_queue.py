"""Messages on their way to a carrier: in order, bounded, emptied by one task. Audio and marks can be taken back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from gateway.transports.carriers.dialect import Message

CONGESTED_BYTES = 64 * 1024
"""Two seconds or more of any carrier's audio: then more of it waits."""
MAX_BYTES = 1024 * 1024
MAX_MESSAGES = 2_048
"""Which nothing should reach: then the carrier is hung up."""
SEND_S = 10.0
"""A carrier that takes nothing for this long is hung up."""


class _Queued(NamedTuple):
    message: Message
    audio: bool
    mark: str | None


class SendQueue:
    """``lost`` is told why nothing reaches the carrier any more, once; ``writable`` that audio may flow again."""

    def __init__(self, *, lost: Callable[[str], None], writable: Callable[[], None]) -> None:
        self._lost = lost
        self._writable = writable
        self._queue: deque[_Queued] = deque()
        self._size = 0
        self._ready = asyncio.Event()
        self._closed = False
        self._sending_since: float | None = None
        self._watching: asyncio.TimerHandle | None = None
        self.broken = False
        """Nothing reaches the carrier any more, not even a goodbye."""

    @property
    def congested(self) -> bool:
        return self._size > CONGESTED_BYTES

    def put(
        self, messages: list[Message] | tuple[Message, ...], *, audio: bool = False, mark: str | None = None
    ) -> None:
        if self._closed or self.broken:
            return
        for message in messages:
            self._queue.append(_Queued(message, audio, mark))
            self._size += len(message)
        if self._queue:
            self._ready.set()
        if self._size > MAX_BYTES or len(self._queue) > MAX_MESSAGES:
            self._break("peer_not_reading")

    def take_back(self) -> tuple[bool, list[str]]:
        """Drop audio and marks that have not left. Returns whether there was audio, and the names of the marks."""
        kept = deque(one for one in self._queue if not one.audio and one.mark is None)
        audio = any(one.audio for one in self._queue)
        marks = [one.mark for one in self._queue if one.mark is not None]
        was_congested = self.congested
        self._queue = kept
        self._size = sum(len(one.message) for one in kept)
        if was_congested and not self.congested:
            self._writable()
        return audio, marks

    def close(self) -> None:
        """Nothing more comes: :meth:`send_by` ends when all is sent."""
        self._closed = True
        self._ready.set()

    async def send_by(self, send: Callable[[Message], Awaitable[None]], *, gone: tuple[type[Exception], ...]) -> None:
        """Send until closed, or until ``send`` raises one of ``gone``."""
        try:
            async with asyncio.timeout(None) as patience:
                self._watch(patience)
                await self._send_all(send, gone)
        except TimeoutError:
            self._break("peer_not_reading")
        finally:
            if self._watching is not None:
                self._watching.cancel()

    async def _send_all(self, send: Callable[[Message], Awaitable[None]], gone: tuple[type[Exception], ...]) -> None:
        loop = asyncio.get_running_loop()
        while not self.broken:
            await self._ready.wait()
            self._ready.clear()
            while self._queue:
                was_congested = self.congested
                one = self._queue.popleft()
                self._size -= len(one.message)
                self._sending_since = loop.time()
                try:
                    await send(one.message)
                except TimeoutError:  # which is an OSError: the system's own patience was over
                    raise
                except gone:
                    self._break("connection_lost")
                    return
                self._sending_since = None
                if was_congested and not self.congested:
                    self._writable()
            if self._closed:
                return

    def _watch(self, patience: asyncio.Timeout) -> None:
        """One timer looks how long the message under way takes. One for each costs more than the message."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = SEND_S + (now if self._sending_since is None else self._sending_since)
        if now >= due:
            patience.reschedule(now)
        else:
            self._watching = loop.call_at(due, self._watch, patience)

    def _break(self, cause: str) -> None:
        if self.broken:
            return
        self.broken = True
        self._queue.clear()
        self._size = 0
        self._ready.set()
        self._lost(cause)
