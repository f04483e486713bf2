from __future__ import annotations

import asyncio
import subprocess
import sys

from gateway.memory import EVERY_S, give_back, tidy_when_idle
from tests.virtual_time import virtual


class Board:
    """Calls that are up and that ended, and when memory was tidied, in seconds since the start."""

    def __init__(self) -> None:
        self.live = self.ended = 0
        self.tidied: list[float] = []
        self._began = asyncio.get_running_loop().time()

    def tidy(self) -> None:
        self.tidied.append(round(asyncio.get_running_loop().time() - self._began, 3))


@virtual
async def test_memory_is_tidied_once_when_the_last_call_has_ended_and_none_comes() -> None:
    board = Board()
    tidying = asyncio.create_task(tidy_when_idle(lambda: board.live, lambda: board.ended, board.tidy))
    await asyncio.sleep(10)
    assert board.tidied == [], "nothing ended yet"
    board.live = 2
    await asyncio.sleep(10.5)
    board.live, board.ended = 1, 1
    await asyncio.sleep(10)
    assert board.tidied == [], "somebody is on the line"
    board.live, board.ended = 0, 2
    await asyncio.sleep(60)
    assert board.tidied == [32.0]
    board.live = 1
    await asyncio.sleep(5)
    board.live, board.ended = 0, 3
    await asyncio.sleep(60)
    assert len(board.tidied) == 2
    tidying.cancel()


@virtual
async def test_calls_that_follow_one_another_are_not_held_up() -> None:
    board = Board()
    tidying = asyncio.create_task(tidy_when_idle(lambda: board.live, lambda: board.ended, board.tidy))
    for _ in range(20):
        board.live = 1
        await asyncio.sleep(3 * EVERY_S)
        board.live, board.ended = 0, board.ended + 1
        await asyncio.sleep(EVERY_S)
    assert board.tidied == []
    tidying.cancel()


def test_memory_can_be_given_back_at_any_time() -> None:
    give_back()
    give_back()


def test_rings_of_audio_leave_no_pages_behind() -> None:
    """In a process of its own: what its allocator was told holds for good."""
    script = """
import numpy as np
from engines.memory import footprint_bytes
from gateway.memory import keep_large_blocks_apart
keep_large_blocks_apart()
def load():
    rings, small = [], []
    for number in range(100):
        ring = np.zeros(192_000, np.int16)
        ring[:] = number
        rings.append(ring)
        small.append(bytes(2_000))  # lies behind it, and stays
    return small
kept = [load()]
before = footprint_bytes()
kept += [load() for _ in range(3)]
print((footprint_bytes() - before) / 2**20)
"""
    grown_mb = float(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout)
    assert grown_mb < 8, "the rings of one load alone hold 37"
