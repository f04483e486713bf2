from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from engines.api import HEALTHY, EngineHealth, Overload
from gateway.engine_watch import EVERY_S, watch_engines
from tests.virtual_time import virtual


@virtual
async def test_what_changes_is_said_once() -> None:
    now = HEALTHY
    told: list[Overload] = []
    with capture_logs() as logs:
        watching = asyncio.create_task(watch_engines(lambda: now, told.append))
        await asyncio.sleep(3 * EVERY_S)
        assert (told, logs) == ([], [])
        now = EngineHealth(healthy=False, reason="the cpu host is down", takes_calls=False)
        await asyncio.sleep(3 * EVERY_S)
        now = EngineHealth(healthy=True, overload=Overload.REFUSE_CALLS)
        await asyncio.sleep(3 * EVERY_S)
        now = HEALTHY
        await asyncio.sleep(3 * EVERY_S)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert told == [Overload.REFUSE_CALLS, Overload.NONE]
    assert [entry["event"] for entry in logs] == [
        "engines are not well",
        "engines are well again",
        "the engines' load has changed",
        "the engines' load has changed",
    ]
    assert logs[0]["reason"] == "the cpu host is down"
