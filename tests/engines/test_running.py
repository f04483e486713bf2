"""Requests under way: found by call and epoch, bounded, and none left behind."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from engines.running import Running, RunningSet


class Works:
    """Each waits until it is let go; ``lingering`` ones take a turn of the loop to end after a cancel."""

    def __init__(self, *, lingering: bool = False) -> None:
        self.go = asyncio.Event()
        self.ended: list[tuple[str, int, bool]] = []
        self._lingering = lingering

    async def __call__(self, running: Running) -> None:
        try:
            await self.go.wait()
        finally:
            if self._lingering:
                await asyncio.sleep(0)
            self.ended.append((*running.key, running.cancelled))


async def _until(running: RunningSet, count: int) -> None:
    async with asyncio.timeout(10):
        while len(running) > count:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_the_limit_counts_what_still_closes() -> None:
    running, works = RunningSet(2), Works(lingering=True)
    assert running.start(("a", 1), works) is not None
    assert running.start(("a", 2), works) is not None
    assert running.start(("a", 3), works) is None
    await asyncio.sleep(0)
    running.cancel(("a", 1))
    assert running.start(("a", 3), works) is None
    await _until(running, 1)
    assert running.start(("a", 3), works) is not None
    await running.close()
    assert len(running) == 0
    assert not running._by_key


async def test_a_cancel_is_for_one_key_and_a_call_for_all_of_its() -> None:
    running, works = RunningSet(9), Works()
    for key in (("a", 1), ("a", 1), ("a", 2), ("b", 1)):
        running.start(key, works)
    await asyncio.sleep(0)
    running.cancel(("a", 1))
    running.cancel(("c", 1))
    await _until(running, 2)
    assert works.ended == [("a", 1, True)] * 2
    running.forget("a")
    await _until(running, 1)
    works.go.set()
    await _until(running, 0)
    assert works.ended[2:] == [("a", 2, True), ("b", 1, False)]
    await running.close()


async def test_what_is_cancelled_before_it_began_never_runs() -> None:
    running, works = RunningSet(9), Works()
    running.start(("a", 1), works)
    running.cancel(("a", 1))
    await running.close()
    assert not works.ended


async def test_a_defect_is_told_without_the_callers_words() -> None:
    async def broken(_: Running) -> None:
        words = "my card number"
        raise ValueError(words)

    running = RunningSet(1)
    with capture_logs() as logs:
        running.start(("a", 1), broken)
        await _until(running, 0)
    (entry,) = logs
    assert entry["error_type"] == "ValueError"
    assert entry["where"].startswith("broken:")
    assert "card" not in repr(entry)
