"""Giving memory back: what ended calls held must not stay with the process.

A call's objects know each other, so most of them wait for the garbage collector, which looks through those that have
lived for a while only once hundreds of calls have ended. While nobody is on the line that is done at once, unheard, and
the allocator is told to return what is free.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable

EVERY_S = 1.0
QUIET = 2
"""Looks in a row at which no call was up."""
LARGE_BYTES = 256 * 1024
"""A call's ring of audio is larger, what comes and goes with every frame far smaller."""
_M_MMAP_THRESHOLD = -3
"""Of glibc's ``malloc.h``."""


def keep_large_blocks_apart() -> None:
    """Large blocks are mapped one by one and unmapped when freed. glibc would raise what counts as large with each one
    that is freed, after which rings of audio lie among small blocks that outlive them, and their pages stay."""
    mallopt = _of_libc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def give_back() -> None:
    """Collect all garbage and return free memory to the system. Takes some milliseconds."""
    gc.collect()
    malloc_trim = _of_libc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))


async def tidy_when_idle(
    live: Callable[[], int], ended: Callable[[], int], tidy: Callable[[], None] = give_back
) -> None:
    """Runs until cancelled. Tidies up once after calls have ended and none is up; ``live`` is how many are, ``ended``
    how many were."""
    tidied = ended()
    quiet = 0
    while True:
        await asyncio.sleep(EVERY_S)
        quiet = 0 if live() else quiet + 1
        if quiet >= QUIET and ended() != tidied:
            tidied = ended()
            tidy()


def _of_libc(name: str) -> Callable[..., int] | None:
    """None where the C library is not glibc."""
    if sys.platform != "linux":
        return None
    try:
        function: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    except OSError:
        return None
    return function
