from __future__ import annotations

import asyncio
from typing import Any

from gateway.call_desk import ENDED_KEPT, CallDesk


async def test_a_call_is_known_by_its_opener_also_when_it_has_just_ended() -> None:
    desk, end = CallDesk(), asyncio.Event()

    async def call() -> None:
        await end.wait()

    desk.start("rtc_1", call(), opener="id of a secret")
    desk.start("rtc_2", call())
    assert desk.opened_by("rtc_1", "id of a secret")
    assert not desk.opened_by("rtc_1", "another")
    assert not desk.opened_by("rtc_2", "id of a secret")
    end.set()
    await asyncio.sleep(0.01)
    assert not desk._tasks
    assert desk.opened_by("rtc_1", "id of a secret")
    assert not desk.opened_by("rtc_1", "another")
    assert not desk.opened_by("rtc_2", "id of a secret")


async def test_of_ended_calls_only_the_last_are_kept() -> None:
    desk = CallDesk()

    async def call() -> None: ...

    for number in range(ENDED_KEPT + 1):
        desk.start(f"rtc_{number}", call(), opener=f"secret {number}")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not desk._openers
    assert not desk.opened_by("rtc_0", "secret 0")
    assert desk.opened_by("rtc_1", "secret 1")
    assert len(desk._openers_of_ended) == ENDED_KEPT


async def test_closing_ends_what_is_up_and_waits_for_it() -> None:
    desk = CallDesk()
    ended: list[str] = []

    async def call() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("call")

    desk.start("rtc_1", call())
    await asyncio.sleep(0)
    await desk.close()
    assert ended == ["call"]
    await desk.close()


async def test_a_task_that_fails_is_told_of_and_reaches_no_other() -> None:
    desk = CallDesk()
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))

    async def fails() -> None:
        raise ZeroDivisionError

    async def call() -> None:
        await asyncio.sleep(0.01)

    desk.start("rtc_1", fails())
    desk.start("rtc_2", call())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [type(context["exception"]) for context in told] == [ZeroDivisionError]
    assert len(desk._tasks) == 1
    await asyncio.sleep(0.02)
    assert not desk._tasks
