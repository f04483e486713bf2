"""Asterisk's ``AudioSocket()`` as its source has it, at the other end of a real connection.

It says its UUID, then sends the channel's audio every 20 ms; whatever it reads must be audio of one whole message or a
hang-up, and must not stop for 2 s, or it gives the call up (``app_audiosocket.c``, ``res_audiosocket.c``). Nothing is
buffered: what it reads is what the phone hears.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field

import numpy as np

from engines.api import Pcm16

STARVED_S = 2.0
FRAME_MS = 20


@dataclass
class Channel:
    """One phone. ``heard``: when each frame came (loop time), and its samples."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    rate_hz: int = 8_000
    heard: list[tuple[float, Pcm16]] = field(default_factory=list)
    result: str | None = None
    """How the application ended: ``hangup`` (the dialplan goes on), ``starved``, ``protocol``, ``closed``."""
    _saying: list[Pcm16] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, pcm: Pcm16) -> None:
        """The caller speaks, after what was said so far."""
        size = self.rate_hz * FRAME_MS // 1000
        self._saying += [pcm[at : at + size] for at in range(0, len(pcm) - size + 1, size)]

    def press(self, digit: str) -> None:
        self.writer.write(b"\x03\x00\x01" + digit.encode())

    def run(self) -> None:
        self._tasks = [asyncio.create_task(self._talk()), asyncio.create_task(self._listen())]

    async def _talk(self) -> None:
        kind = {8_000: b"\x10", 16_000: b"\x12"}[self.rate_hz]
        loop = asyncio.get_running_loop()
        due = loop.time()
        hush = np.zeros(self.rate_hz * FRAME_MS // 1000, np.int16)
        while not self.over.is_set():
            frame = (self._saying.pop(0) if self._saying else hush).astype("<i2").tobytes()
            self.writer.write(kind + len(frame).to_bytes(2, "big") + frame)
            due += FRAME_MS / 1000
            await asyncio.sleep(due - loop.time())

    async def _listen(self) -> None:
        self.result = await self._read_all()
        self.over.set()
        self.writer.close()

    async def _read_all(self) -> str:
        kinds = {8_000: 0x10, 16_000: 0x12}
        while True:
            try:
                async with asyncio.timeout(STARVED_S):
                    header = await self.reader.readexactly(3)
                    payload = await self.reader.readexactly(int.from_bytes(header[1:], "big"))
            except TimeoutError:
                return "starved"
            except (asyncio.IncompleteReadError, ConnectionError):
                return "closed"
            if header[0] == 0x00:
                return "hangup"
            if header[0] != kinds[self.rate_hz] or not payload or len(payload) % 2:
                return "protocol"
            self.heard.append((asyncio.get_running_loop().time(), np.frombuffer(payload, "<i2")))

    async def hang_up(self) -> None:
        """The caller does: the application closes the socket, with or without audio unread."""
        self.over.set()
        await self.end()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    # --- what the phone heard ---------------------------------------------------------------------------------------

    def loud(self) -> list[tuple[float, Pcm16]]:
        return [(at, pcm) for at, pcm in self.heard if np.abs(pcm).max() > 200]


async def dial(port: int, call: uuid.UUID | None, *, rate_hz: int = 8_000) -> Channel:
    """``AudioSocket(call,127.0.0.1:port)``. None: connected, and nothing said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    channel = Channel(reader, writer, rate_hz)
    if call is not None:
        writer.write(b"\x01\x00\x10" + call.bytes)
        channel.run()
    return channel
