"""A console as a test reads it: the stream of server-sent events, without a browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import httpx

from engines.api import Overload
from gateway.records.call_record import CallRecord
from gateway.state import Gateway

Told = dict[str, Any]


class Stream:
    """Events of one console, in the order in which they came."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.events: list[tuple[str, Told]] = []
        self.comments = 0
        self._blocks = self._read()

    async def _read(self) -> AsyncIterator[str]:
        block: list[str] = []
        async for line in self.response.aiter_lines():
            if line:
                block.append(line)
            elif block:
                yield "\n".join(block)
                block = []

    async def next(self) -> tuple[str, Told]:
        """The next event. Raises :class:`StopAsyncIteration` once the stream has ended."""
        while True:
            async with asyncio.timeout(20):
                block = await anext(self._blocks)
            if block.startswith(":"):
                self.comments += 1
                continue
            event, data = block.split("\n")
            told = (event.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
            self.events.append(told)
            return told

    async def until(self, holds: Callable[[Told], Any]) -> Told:
        """The first change from here on of which that holds."""
        while True:
            event, told = await self.next()
            if event == "change" and holds(told):
                return told


@contextlib.asynccontextmanager
async def console(client: httpx.AsyncClient, **kwargs: Any) -> AsyncIterator[Stream]:
    async with client.stream("GET", "/console/events", **kwargs) as response:
        assert response.status_code == 200
        yield Stream(response)


class QuietCall:
    """A call that only an operator ends."""

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.record = CallRecord(id=call_id, transport="websocket", agent="bakery", started_at=datetime.now(UTC))
        self.record.answered(20.0)
        self.finished = asyncio.Event()

    def drain(self) -> None:
        self.hang_up("server_drain")

    def hang_up(self, cause: str) -> None:
        self.record.ended(cause, 5_000.0)
        self.finished.set()

    def load_changed(self, overload: Overload) -> None: ...


@contextlib.asynccontextmanager
async def calling(gateway: Gateway) -> AsyncIterator[QuietCall]:
    """A call that is up until it is hung up, or the block is left."""
    up: asyncio.Future[QuietCall] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        with await gateway.switchboard.admit() as admission:
            call = QuietCall(admission.call_id)
            gateway.switchboard.register(admission, call)
            up.set_result(call)
            await call.finished.wait()

    task = asyncio.create_task(run())
    call = await up
    try:
        yield call
    finally:
        call.hang_up("hung_up")
        await task
