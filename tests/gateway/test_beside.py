from __future__ import annotations

import asyncio

import pytest

from gateway.beside import AGAIN_S, beside
from tests.virtual_time import virtual


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_a_watch_that_fails_is_told_of_and_begins_again() -> None:
    began: list[float] = []
    defects: list[float] = []

    async def watch(what: str) -> None:
        assert what == "calls"
        began.append(now())
        if len(began) < 3:
            raise RuntimeError("it can't be read")
        await asyncio.sleep(1e6)

    start = now()
    async with beside(watch, "calls", defect=lambda: defects.append(now())):
        await asyncio.sleep(10 * AGAIN_S)
    assert [at - start for at in began] == [0.0, AGAIN_S, 2 * AGAIN_S]
    assert defects == began[:2]


@virtual
async def test_it_ends_with_the_block_whatever_happens_there() -> None:
    ended = asyncio.Event()

    async def watch() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.set()

    async def block() -> None:
        async with beside(watch, defect=lambda: pytest.fail("being stopped is no failure")):
            await asyncio.sleep(1)
            raise ValueError("of the block")

    with pytest.raises(ValueError, match="of the block"):
        await block()
    assert ended.is_set()
