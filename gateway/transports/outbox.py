"""Events on their way to a peer that may be slow: bounded, in order, emptied by one task."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from gateway.call import Call

CONGESTED_BYTES = 256 * 1024
UNANSWERED_BYTES = 1024 * 1024
MAX_OUTBOX_BYTES = 4 * 1024 * 1024
"""What waits to be sent. Beyond the first, audio waits; beyond the second, the peer is not read from, so that what it
asks for stays with it; beyond the third, which nothing should reach, it is hung up."""

SEND_S = 10.0
"""A peer that takes nothing for this long is hung up."""
GONE_S = 0.5
"""Who finds that the peer is gone leaves it this long to the receiver to say whether it hung up."""


class Frame(NamedTuple):
    text: str
    audio: bool


class Outbox:
    """One call's. It ends the call when the peer does not read (``peer_not_reading``), or is not there
    (``connection_lost``)."""

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self.size = 0
        """Of all frames, in characters."""
        self.lost = False
        """Nothing reaches the peer any more, not even a goodbye."""
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._closed = False
        self._call: Call | None = None

    def attach(self, call: Call) -> None:
        self._call = call

    @property
    def congested(self) -> bool:
        return self.size > CONGESTED_BYTES

    def put(self, texts: Iterable[str], *, audio: bool = False) -> None:
        if self._closed:
            return
        for text in texts:
            self.frames.append(Frame(text, audio))
            self.size += len(text)
        if self.frames:
            self._ready.set()
        if self.size > MAX_OUTBOX_BYTES and self._call is not None:
            self.give_up()
            self._call.hang_up("peer_not_reading")

    def drop_audio(self) -> bool:
        """Whether there was any."""
        kept = [frame for frame in self.frames if not frame.audio]
        dropped = len(kept) < len(self.frames)
        self.frames = deque(kept)
        self.size = sum(len(frame.text) for frame in kept)
        self._room.set()
        return dropped

    def empty(self) -> None:
        self.frames.clear()
        self.size = 0
        self._room.set()

    def give_up(self) -> None:
        """Nothing more reaches this peer: keep nothing for it."""
        self.lost = True
        self.empty()
        self.close()

    def close(self) -> None:
        """Nothing more comes: :meth:`send_by` ends when all is sent."""
        self._closed = True
        self._ready.set()
        self._room.set()

    async def room(self) -> None:
        """Wait until the peer took enough of what it was sent; others have their turn in any case."""
        await asyncio.sleep(0)
        while self.size > UNANSWERED_BYTES and not self._closed:
            self._room.clear()
            await self._room.wait()

    async def send_by(
        self, send: Callable[[str], Awaitable[None]], call: Call, *, gone: tuple[type[Exception], ...]
    ) -> None:
        """Send until closed. A peer that is gone (``send`` raises one of ``gone``), or takes nothing for
        :data:`SEND_S`, ends the call."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self.frames:
                was_congested = self.congested
                text = self.frames.popleft().text
                self.size -= len(text)
                self._room.set()
                try:
                    async with asyncio.timeout(SEND_S):
                        await send(text)
                except TimeoutError:
                    self.give_up()
                    call.hang_up("peer_not_reading")
                    return
                except gone:
                    self.give_up()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(GONE_S):
                            await call.finished.wait()
                    call.hang_up("connection_lost")
                    return
                if was_congested and not self.congested:
                    call.writable()
            if self._closed:
                return
