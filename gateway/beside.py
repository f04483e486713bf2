"""What watches beside the calls, for as long as they are served: a watch that fails is told of and begins again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import structlog

_log = structlog.get_logger(__name__)

AGAIN_S = 1.0
"""After a failure; one that fails each time is heard of so often and no oftener."""


@contextlib.asynccontextmanager
async def beside(
    watch: Callable[..., Coroutine[Any, Any, None]], *args: Any, defect: Callable[[], None]
) -> AsyncIterator[None]:
    """Run ``watch(*args)`` until the block is left. ``defect`` counts its failures: were it to end unseen, a gateway
    that had closed to new calls would stay so."""
    task = asyncio.create_task(_kept_up(partial(watch, *args), watch.__name__, defect))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _kept_up(watch: Callable[[], Coroutine[Any, Any, None]], name: str, defect: Callable[[], None]) -> None:
    while True:
        try:
            await watch()
        except Exception:  # noqa: BLE001 (whatever it is, it is told of, and calls go on)
            _log.exception("a watch failed and begins again", watch=name)
            defect()
        await asyncio.sleep(AGAIN_S)
