"""What all carriers do: send the caller's audio in real time, and play a buffer that can be cleared and marked.

A vendor's fake says how that looks on its wire, and refuses what the vendor's documents do not allow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import numpy as np

from engines.api import Pcm16
from tests.gateway.transports.carriers.links import Closed, Link, Message

FRAME_MS = 20


class FakeCarrier:
    """``latency_s`` is one way of the network to the gateway. Subclasses encode and decode."""

    rate_hz = 8_000
    marks_return_on_clear = True

    def __init__(self, link: Link, *, latency_s: float = 0.0) -> None:
        self.heard: list[tuple[float, Pcm16]] = []
        """What the caller's ear got, frame by frame, with when each began."""
        self.cleared_at: list[float] = []
        self.ahead_ms = 0.0
        """The most that was in the buffer."""
        self.closed: Closed | None = None
        self.faults: list[str] = []
        """What the vendor would not have understood."""
        self.stopped = False
        self._link = link
        self._latency_s = latency_s
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Pcm16 | str] = deque()
        self._playing: asyncio.TimerHandle | None = None
        self._out: asyncio.Queue[Message] = asyncio.Queue()
        self._sent = 0
        self._ended = asyncio.Event()

    # --- of a vendor ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """What comes before the first audio."""
        raise NotImplementedError

    def media(self, pcm: Pcm16, number: int) -> Message:
        raise NotImplementedError

    def press(self, digit: str) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """The caller hangs up: what the vendor says then, before it closes."""

    def mark_message(self, name: str) -> Message:
        raise NotImplementedError

    def cleared_message(self) -> Message | None:
        return None

    def understand(self, message: Message) -> None:
        """One message of the gateway's. Raises :class:`AssertionError` for what is not allowed."""
        raise NotImplementedError

    # --- the caller -------------------------------------------------------------------------------------------

    async def speak(self, ms: int, level: int = 6_000) -> None:
        """Frames in real time: a 500 Hz square."""
        half = self.rate_hz // 1000
        frame = np.tile(np.repeat(np.array([level, -level], np.int16), half), FRAME_MS // 2)
        for _ in range(ms // FRAME_MS):
            self.send(self.media(frame, self._sent))
            self._sent += 1
            await asyncio.sleep(FRAME_MS / 1000)

    async def hush(self, ms: int) -> None:
        await self.speak(ms, 0)

    async def until(self, holds: Callable[[], Any], within_s: float = 60.0) -> None:
        """A silent caller, until something is so."""
        end = self._loop.time() + within_s
        while not holds():
            assert self._loop.time() < end, "it never came"
            await self.hush(FRAME_MS)

    async def hang_up(self) -> None:
        """As the vendor does: it says so, and closes."""
        self.stopped = True
        self.stop()
        await asyncio.sleep(2 * self._latency_s + 0.001)
        await self._link.close()

    async def over(self, within_s: float = 20.0) -> Closed:
        """The gateway closed."""
        async with asyncio.timeout(within_s):
            await self._ended.wait()
        assert self.closed is not None
        return self.closed

    def send(self, message: Message) -> None:
        self._loop.call_later(self._latency_s, self._out.put_nowait, message)

    # --- the buffer -------------------------------------------------------------------------------------------

    def play(self, pcm: Pcm16) -> None:
        size = self.rate_hz * FRAME_MS // 1000
        for at in range(0, len(pcm), size):
            self._buffer.append(pcm[at : at + size])
        waiting = sum(len(one) for one in self._buffer if not isinstance(one, str))
        self.ahead_ms = max(self.ahead_ms, waiting * 1000 / self.rate_hz)
        self._wake()

    def mark(self, name: str) -> None:
        self._buffer.append(name)
        self._wake()

    def clear(self) -> None:
        self.cleared_at.append(self._loop.time())
        marks = [one for one in self._buffer if isinstance(one, str)]
        self._buffer.clear()
        if self.marks_return_on_clear:
            for name in marks:
                self.send(self.mark_message(name))
        message = self.cleared_message()
        if message is not None:
            self.send(message)

    @property
    def heard_ms(self) -> float:
        return sum(len(pcm) for _, pcm in self.heard) * 1000 / self.rate_hz

    def _wake(self) -> None:
        if self._playing is None:
            self._play_on()

    def _play_on(self) -> None:
        self._playing = None
        while self._buffer:
            one = self._buffer.popleft()
            if not isinstance(one, str):
                self.heard.append((self._loop.time(), one))
                self._playing = self._loop.call_later(len(one) / self.rate_hz, self._play_on)
                return
            self.send(self.mark_message(one))

    # --- the wire ---------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                message = await self._link.recv()
                self._loop.call_later(self._latency_s, self._arrived, message)
        except Closed as closed:
            self.closed = closed
            self._ended.set()

    def _arrived(self, message: Message) -> None:
        try:
            self.understand(message)
        except AssertionError as error:
            self.faults.append(f"{error or 'not allowed'}: {message[:200]!r}")

    async def _write(self) -> None:
        with contextlib.suppress(Closed):
            while True:
                await self._link.send(await self._out.get())

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Self]:
        """Begin; at the end the caller hangs up if the gateway has not."""
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            self.begin()
            yield self
            if not self._ended.is_set():
                if not self.stopped:
                    await self.hang_up()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(5):
                        await self._ended.wait()
        finally:
            if self._playing is not None:
                self._playing.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert not self.faults, self.faults
