"""Looks after how the engines are: says so once when it changes, and tells the calls that are up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from engines.api import EngineHealth, Overload

EVERY_S = 0.5

_log = structlog.get_logger(__name__)


async def watch_engines(health: Callable[[], EngineHealth], on_load: Callable[[Overload], None]) -> None:
    """Runs until cancelled. ``on_load`` is called when the level of overload has changed."""
    healthy, level = True, Overload.NONE
    while True:
        now = health()
        if now.healthy is not healthy:
            healthy = now.healthy
            if healthy:
                _log.info("engines are well again")
            else:
                _log.error("engines are not well", reason=now.reason, takes_calls=now.takes_calls)
        if now.overload is not level:
            level = now.overload
            _log.info("the engines' load has changed", overload=level.name.lower())
            on_load(level)
        await asyncio.sleep(EVERY_S)
