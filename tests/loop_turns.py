"""Whether work leaves the event loop to others: how many turns of it they get meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass
class Others:
    turns: int = 0


@contextlib.asynccontextmanager
async def others() -> AsyncIterator[Others]:
    """Another task, which takes every turn of the loop that it gets."""
    counted = Others()

    async def take_turns() -> None:
        while True:
            counted.turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(take_turns())
    try:
        yield counted
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
