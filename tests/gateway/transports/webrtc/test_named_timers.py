"""One timer of each name."""

from __future__ import annotations

import asyncio

from gateway.transports.webrtc.named_timers import NamedTimers
from tests.virtual_time import virtual


@virtual
async def test_a_timer_fires_once_at_its_time_and_a_second_of_its_name_replaces_it() -> None:
    loop = asyncio.get_running_loop()
    timers = NamedTimers(loop, lambda: loop.time() + 100)  # another clock than the loop's
    fired: list[tuple[str, float]] = []
    begin = loop.time()

    def note(what: str) -> None:
        fired.append((what, round(loop.time() - begin, 3)))

    timers.at("a", begin + 101, lambda: note("first"))
    timers.at("a", begin + 103, lambda: note("second"))
    timers.at("b", begin + 99, lambda: note("overdue"))
    assert "a" in timers
    await asyncio.sleep(5)
    assert fired == [("overdue", 0.0), ("second", 3.0)]
    assert "a" not in timers


@virtual
async def test_one_may_set_itself_again_until_all_are_stopped() -> None:
    loop = asyncio.get_running_loop()
    timers = NamedTimers(loop, loop.time)
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(loop.time())
        timers.at("tick", loop.time() + 1, tick)

    tick()
    await asyncio.sleep(2.5)
    timers.stop()
    timers.at("tick", loop.time(), tick)
    await asyncio.sleep(5)
    assert (len(ticks), "tick" in timers) == (3, False)
