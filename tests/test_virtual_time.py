from __future__ import annotations

import asyncio

import pytest

from tests.virtual_time import START_S, NothingScheduledError, run_virtual, virtual


@virtual
async def test_an_hour_passes_in_no_time_and_exactly() -> None:
    loop = asyncio.get_running_loop()
    assert loop.time() == START_S
    await asyncio.sleep(3_600)
    assert loop.time() == START_S + 3_600
    for _ in range(1_000):
        await asyncio.sleep(0.001)
    loop.call_at(START_S + 4_000.1, lambda: None)
    await asyncio.sleep(START_S + 4_000.1 - loop.time())
    assert loop.time() == START_S + 4_000.1


@virtual
async def test_timers_fire_in_order_of_their_time() -> None:
    seen: list[str] = []

    async def after(delay_s: float, name: str) -> None:
        await asyncio.sleep(delay_s)
        seen.append(name)

    await asyncio.gather(after(3, "c"), after(1, "a"), after(2, "b"))
    assert seen == ["a", "b", "c"]


@virtual
async def test_threads_of_the_default_executor_take_no_time() -> None:
    async def other() -> str:
        await asyncio.sleep(0.001)
        return "timer"

    pending = asyncio.create_task(other())
    assert await asyncio.to_thread(lambda: "thread") == "thread"
    assert not pending.done()
    with pytest.raises(ZeroDivisionError):
        await asyncio.to_thread(lambda: 1 / 0)
    assert await pending == "timer"


def test_a_wait_for_nothing_fails_instead_of_hanging() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingScheduledError):
        run_virtual(wait())


def test_a_task_left_behind_fails() -> None:
    kept: list[asyncio.Task[None]] = []

    async def leave_one() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(60)))

    with pytest.raises(AssertionError, match="left behind"):
        run_virtual(leave_one())


@virtual
async def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set() -> None:
    loop = asyncio.get_running_loop()
    fired: list[int] = []
    for number in range(20):
        loop.call_later(0.5, fired.append, number)
    await asyncio.sleep(1)
    assert fired == list(range(20))
