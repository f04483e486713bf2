"""Asterisk's chan_websocket as its source has it (``chan_websocket.c``), at the other end of a real connection.

A queue of frames that a timer empties, one every 20 ms; marks lie in it and are told when they come to its head; a
flush drops all of it without a word. At 900 frames it says MEDIA_XOFF, below 800 MEDIA_XON, at 1,000 it drops what
comes. What is no whole frame is lost, a command of more than 128 characters is not read, and one that is sent as binary
is played.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from engines.api import Pcm16

QUEUE, XOFF, XON = 1_000, 900, 800
MAX_COMMAND_CHARS = 128
MAX_MESSAGE_BYTES = 65_500
CHANNEL = "WebSocket/offhook-0x7f3c"


@dataclass
class Channel:
    """slin at ``rate_hz``. ``heard``: when each frame was played, and its samples; ``faults``: what Asterisk would have
    complained about."""

    socket: ClientConnection
    as_json: bool
    rate_hz: int
    heard: list[tuple[float, Pcm16]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    flushed_at: list[float] = field(default_factory=list)
    marks_dropped: int = 0
    marks_told: int = 0
    frames_dropped: int = 0
    result: str | None = None
    paused: bool = False
    """As if the channel's timer stood still."""
    _queue: deque[bytes | str] = field(default_factory=deque)
    _length: int = 0
    _full: bool = False
    _saying: list[Pcm16] = field(default_factory=list)
    _bulk: bool = False
    _rest: bytes = b""

    @property
    def frame_bytes(self) -> int:
        return self.rate_hz // 50 * 2

    def say(self, pcm: Pcm16) -> None:
        size = self.rate_hz // 50
        self._saying += [pcm[at : at + size] for at in range(0, len(pcm) - size + 1, size)]

    async def press(self, digit: str) -> None:
        await self._event("DTMF_END", digit=digit)

    async def run(self) -> None:
        try:
            await self._event(
                "MEDIA_START",
                connection_id="e226e283-c90a-4ea9-9e37-389000b9ef47",
                channel=CHANNEL,
                channel_id="1763.1",
                format="slin16" if self.rate_hz == 16_000 else "slin",
                optimal_frame_size=self.frame_bytes,
                ptime=20,
            )
            async with asyncio.TaskGroup() as tasks:
                ticking = tasks.create_task(self._tick())
                await self._read()
                ticking.cancel()
        except* ConnectionClosed:
            pass
        finally:
            self.result = self.result or "closed"

    async def _event(self, name: str, **fields: Any) -> None:
        if self.as_json:
            await self.socket.send(json.dumps({"event": name, "channel_id": "1763.1", **fields}))
        elif name == "MEDIA_MARK_PROCESSED":
            await self.socket.send(f"{name} {fields['correlation_id']}")
        else:
            await self.socket.send(" ".join([name, *(f"{key}:{value}" for key, value in fields.items())]))

    # --- the timer -------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        hush = np.zeros(self.rate_hz // 50, np.int16)
        while True:
            frame = self._saying.pop(0) if self._saying else hush
            await self.socket.send(frame.astype("<i2").tobytes())
            if not self.paused:
                await self._play()
            due += 0.02
            await asyncio.sleep(due - loop.time())

    async def _play(self) -> None:
        if self._full and self._length < XON:
            self._full = False
            await self._event("MEDIA_XON")
        while self._queue:
            head = self._queue.popleft()
            if isinstance(head, bytes):
                self._length -= 1
                self.heard.append((asyncio.get_running_loop().time(), np.frombuffer(head, "<i2")))
                return
            self.marks_told += 1
            await self._event("MEDIA_MARK_PROCESSED", correlation_id=head)

    # --- what comes --------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        async for message in self.socket:
            if len(message) > MAX_MESSAGE_BYTES:
                self.result = "too_large"
                return
            if isinstance(message, str):
                if not self._command(message):
                    return
            else:
                await self._media(message)

    def _command(self, text: str) -> bool:
        """False: the channel is hung up."""
        self.commands.append(text)
        if len(text) > MAX_COMMAND_CHARS:
            self.faults.append("a command is too long")
            return True
        if self.as_json:
            value = json.loads(text)
            name, mark = value["command"], value.get("correlation_id")
        else:
            name, _, rest = text.partition(" ")
            mark = rest or None
        match name:
            case "MARK_MEDIA":
                self._queue.append(mark or "")
            case "FLUSH_MEDIA":
                self.marks_dropped += sum(isinstance(entry, str) for entry in self._queue)
                self.frames_dropped += self._length
                self._queue.clear()
                self._length, self._bulk, self._rest = 0, False, b""
                self.flushed_at.append(asyncio.get_running_loop().time())
            case "HANGUP":
                self.result = "hangup"
                return False
            case _:
                self.faults.append(f"unknown command {name}")
        return True

    async def _media(self, data: bytes) -> None:
        if self._length >= QUEUE:
            self.faults.append("the queue is full")
            return
        size = self.frame_bytes
        if len(data) % size:
            self.faults.append("the end of a message is lost")
        for at in range(0, len(data) - size + 1, size):
            self._queue.append(data[at : at + size])
            self._length += 1
            if not self._full and self._length >= XOFF:
                self._full = True
                await self._event("MEDIA_XOFF")

    def loud(self) -> list[tuple[float, Pcm16]]:
        return [(at, pcm) for at, pcm in self.heard if np.abs(pcm).max() > 200]


@contextlib.asynccontextmanager
async def dialled(
    url: str,
    *,
    as_json: bool,
    rate_hz: int = 16_000,
    password: str = "0123456789abcdef",
    subprotocols: list[str] | None = None,
    query: str = "",
) -> AsyncIterator[Channel]:
    """``Dial(WebSocket/offhook/c(slin16))``: the channel while the block runs; then the caller has hung up."""
    credentials = base64.b64encode(f"asterisk:{password}".encode()).decode()
    async with connect(
        url.replace("http", "ws", 1) + "/v1/carriers/asterisk/stream" + query,
        additional_headers={"Authorization": f"Basic {credentials}"},
        subprotocols=subprotocols,  # type: ignore[arg-type]
        compression=None,
        proxy=None,
        close_timeout=2,
    ) as socket:
        channel = Channel(socket, as_json, rate_hz)
        running = asyncio.create_task(channel.run())
        try:
            yield channel
        finally:
            await socket.close()
            await asyncio.wait([running])
            running.result()
