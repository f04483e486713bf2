"""A TCP server of a test: none of its connections outlives it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(connected: Connected) -> AsyncIterator[int]:
    """Serve every connection by ``connected`` on a free port of loopback; yields the port.

    At the end the connections are given 5 s to notice that their clients have gone: a task that asyncio started for one
    would otherwise be a leak of whichever test comes next.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await connected(reader, writer)
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=5)
            assert not left, "a connection was left open"
