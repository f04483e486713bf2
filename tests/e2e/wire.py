"""A plain Realtime client for tests: websockets, JSON, and the order checker over every event."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from engines.api import Pcm16
from tests.gateway.realtime.checker import OrderChecker
from tests.gateway.realtime.rig import hold_against_openai_types

Event = dict[str, Any]


class Wire:
    def __init__(self, connection: ClientConnection, *, onset_cancels: bool) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.checker = OrderChecker(onset_cancels=onset_cancels)
        self.broken: Exception | None = None
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name="wire")

    async def _read(self) -> None:
        try:
            async for text in self.connection:
                assert isinstance(text, str)
                event = json.loads(text)
                self.events.append(event)
                hold_against_openai_types(text)
                self.checker.feed(event)
                self._news.set()
        except ConnectionClosed:
            pass
        except Exception as error:  # noqa: BLE001 (told to whoever waits)
            self.broken = error
        self._news.set()

    async def send(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, **fields}
        self.checker.sent(event)
        await self.connection.send(json.dumps(event))

    async def append(self, pcm: Pcm16) -> None:
        await self.send("input_audio_buffer.append", audio=base64.b64encode(pcm.astype("<i2").tobytes()).decode())

    async def speak(self, pcm: Pcm16, *, times: float = 4.0) -> None:
        """20 ms at a time, this much faster than real time."""
        for at in range(0, len(pcm), 480):
            await self.append(pcm[at : at + 480])
            await asyncio.sleep(0.02 / times)

    async def expect(self, kind: str, count: int = 1, within_s: float = 20.0) -> Event:
        async with asyncio.timeout(within_s):
            while len(found := self.of(kind)) < count:
                if self.broken is not None:
                    raise self.broken
                assert not self._reading.done(), f"closed before {kind} came: {self.connection.close_reason}"
                self._news.clear()
                await self._news.wait()
        return found[count - 1]

    async def rest(self, within_s: float = 20.0) -> None:
        """Wait until nothing is half done."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    with contextlib.suppress(AssertionError):
                        self.checker.finish()
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            self.checker.finish()
            raise

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def errors(self) -> list[tuple[str, str | None]]:
        return [(event["error"]["code"], event["error"]["event_id"]) for event in self.of("error")]

    async def closed(self) -> tuple[int | None, str | None]:
        """Wait for the server's close: its code and reason."""
        async with asyncio.timeout(20):
            await self._reading
        return self.connection.close_code, self.connection.close_reason

    def abort(self) -> None:
        """The cable is cut (a reset, no goodbye)."""
        raw = self.connection.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.transport.abort()

    async def close(self) -> None:
        await self.connection.close()
        await self._reading
        if self.broken is not None:
            raise self.broken


@contextlib.asynccontextmanager
async def dialled(url: str, *, onset_cancels: bool = True, **kwargs: Any) -> AsyncIterator[Wire]:
    connection = await connect(url, compression=None, max_size=None, close_timeout=2, **kwargs)
    wire = Wire(connection, onset_cancels=onset_cancels)
    try:
        yield wire
    finally:
        await wire.close()


def tone(ms: int, level: int = 6_000) -> Pcm16:
    """A 500 Hz square at 24 kHz."""
    return np.tile(np.repeat(np.array([level, -level], np.int16), 24), ms // 2)
