"""A workload without a model, and ways to hold the executor's thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial

from engines.executor.policy import Choice, Key, Kind
from engines.executor.thread import MlxExecutor
from streaming.jobs import Priority

START = Kind("fake", "start", opens_stream=True)
SPEAK = Kind("fake", "speak")


class FakeWorkload:
    """Counts down a number of quanta a job; records what it was asked for."""

    name = "fake"

    def __init__(self, executor: MlxExecutor) -> None:
        self.executor = executor
        self.open_streams = 0
        self.log: list[str] = []
        self.fail_next: BaseException | None = None

    def insert(self, epoch: int, kind: Kind, priority: Priority) -> None:
        now = self.executor.now()
        self.executor.agenda.add(Key(self.name, "c", epoch), kind, priority, now + 0.1 * priority, now)

    def settle(self) -> None:
        pass

    def quantum(self, choice: Choice) -> None:
        self.executor.require_thread()
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.log.append(f"{choice.kind.name} {','.join(str(key.epoch) for key in choice.keys)}")
        self._drop(choice)

    def abandon(self, choice: Choice, message: str) -> None:
        self.log.append(f"abandoned {message}")
        self._drop(choice)

    def close(self) -> None:
        self.executor.require_thread()
        self.log.append("closed")

    def _drop(self, choice: Choice) -> None:
        for key in choice.keys:
            self.executor.agenda.drop(key)


@contextlib.asynccontextmanager
async def occupied(executor: MlxExecutor) -> AsyncIterator[None]:
    """The thread is inside a quantum until the block ends."""
    entered, leave = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold() -> None:
        loop.call_soon_threadsafe(entered.set)
        leave.wait(20)

    task = asyncio.create_task(executor.run(hold))
    await entered.wait()
    try:
        yield
    finally:
        leave.set()
        await task


async def attached(executor: MlxExecutor) -> FakeWorkload:
    workload = FakeWorkload(executor)
    await executor.run(partial(executor.attach, workload))
    return workload


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (the condition is another thread's)
            await asyncio.sleep(0.001)
