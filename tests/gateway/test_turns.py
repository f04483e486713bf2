"""Turns on the loop, in virtual time."""

from __future__ import annotations

import asyncio

from gateway.turns import SHARE, WORK_S, Turns
from tests.loop_turns import others
from tests.virtual_time import virtual


class SlowLoop:
    """Every turn of the loop takes so long, beside the work of those whose turn it is."""

    def __init__(self, turn_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._turn_s = turn_s
        self.passed_s = 0.0
        self.worst_s = 0.0
        self._worked_s = 0.0
        self._loop.time = lambda: self._time() + self.passed_s  # type: ignore[method-assign]
        self._loop.call_soon(self._turn)

    def work(self) -> None:
        self._worked_s += WORK_S

    def _turn(self) -> None:
        took_s, self._worked_s = self._turn_s + self._worked_s, 0.0
        self.passed_s += took_s
        self.worst_s = max(self.worst_s, took_s)
        if self._turn_s:
            self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._turn_s = 0.0
        self._loop.time = self._time  # type: ignore[method-assign]


@virtual
async def test_one_goes_on_in_each_turn_in_the_order_they_came() -> None:
    turns = Turns()
    came: list[tuple[int, int]] = []
    async with others() as counted:

        async def come(number: int) -> None:
            await turns.wait()
            came.append((counted.turns, number))

        await asyncio.gather(*(come(number) for number in range(20)))
        await come(20)
    assert [number for _, number in came] == list(range(21))
    assert len({turn for turn, _ in came}) == 21


@virtual
async def test_on_a_busy_loop_so_many_go_on_that_two_hundred_wait_for_less_than_two_seconds() -> None:
    loop, turns = SlowLoop(0.04), Turns()
    went_on_at: list[float] = []

    async def come() -> None:
        await turns.wait()
        loop.work()
        went_on_at.append(loop.passed_s)

    began = loop.passed_s
    await asyncio.gather(*(come() for _ in range(200)))
    loop.stop()
    assert len(went_on_at) == 200
    assert max(went_on_at) - began < 2.0
    assert loop.worst_s <= 0.04 / (1 - SHARE) + WORK_S, "those that are up wait little longer for it"


@virtual
async def test_who_gives_up_is_passed_over() -> None:
    turns = Turns()
    coming = [asyncio.create_task(turns.wait()) for _ in range(4)]
    await asyncio.sleep(0)
    for task in (coming[0], coming[2]):
        task.cancel()
    ended = await asyncio.gather(*coming, return_exceptions=True)
    assert [isinstance(end, asyncio.CancelledError) for end in ended] == [True, False, True, False]
    await turns.wait()
