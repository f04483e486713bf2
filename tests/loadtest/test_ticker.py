from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from loadtest.ticker import FRAME_S, Lateness, Ticker, running_clock, ticking
from tests.virtual_time import START_S, virtual


class Caller:
    """Notes when it was ticked, in ms since the ticker's beginning."""

    def __init__(self, on_tick: Callable[[], None] = lambda: None) -> None:
        self.due_ms: list[float] = []
        self.at_ms: list[float] = []
        self._on_tick = on_tick

    def tick(self, deadline_s: float, now_s: float) -> None:
        self.due_ms.append(round((deadline_s - START_S) * 1000, 3))
        self.at_ms.append(round((now_s - START_S) * 1000, 3))
        self._on_tick()


def stall(seconds: float) -> None:
    """Nothing else gets to run for so long."""
    loop: Any = asyncio.get_running_loop()
    loop._jumping.now_s += seconds


@virtual
async def test_callers_are_spread_over_the_frame_and_each_is_called_once_in_it() -> None:
    async with ticking() as ticker:
        callers = [Caller() for _ in range(5)]
        assert [ticker.join(caller) for caller in callers] == [0, 1, 2, 3, 4]
        assert ticker.join(Caller()) == 0
        assert ticker.size == 6
        await asyncio.sleep(0.099)
    assert [caller.due_ms for caller in callers] == [
        [offset + 20 * frame for frame in range(5)] for offset in (0, 4, 8, 12, 16)
    ]
    assert all(caller.due_ms == caller.at_ms for caller in callers)
    assert (ticker.lateness.ticks, ticker.lateness.skipped, ticker.lateness.worst_ms) == (30, 0, 0)


@virtual
async def test_deadlines_do_not_drift_and_small_delays_skip_nothing() -> None:
    async with ticking(slots=4) as ticker:
        caller = Caller(lambda: stall(0.019))
        ticker.join(caller)
        await asyncio.sleep(0.5)
    assert caller.due_ms == [20.0 * frame for frame in range(25)]
    assert ticker.lateness.skipped == 0


@virtual
async def test_what_a_stall_missed_is_skipped_and_counted_and_never_made_up_for() -> None:
    async with ticking() as ticker:
        stalls = iter([0.0, 0.075])
        callers = [Caller(lambda: stall(next(stalls, 0.0))), Caller()]
        for caller in callers:
            ticker.join(caller)
        await asyncio.sleep(0.19)
    # the second tick, due at 20 ms, took until 95: what was due at 40 to 80 (and at 24 to 64) never was
    assert callers[0].due_ms == [0, 20, 80, 100, 120, 140, 160, 180]
    assert callers[1].due_ms == [4, 84, 104, 124, 144, 164, 184]
    assert callers[0].at_ms[:4] == [0, 20, 95, 100]
    assert ticker.lateness.skipped == 2 + 3
    assert ticker.lateness.ticks == 8 + 7 + 5
    assert ticker.lateness.worst_ms == pytest.approx(71)  # of the tick that was due at 24 ms


@virtual
async def test_who_leaves_is_not_called_again_not_even_in_this_turn() -> None:
    async with ticking(slots=1) as ticker:
        second = Caller()
        first = Caller(lambda: ticker.leave(second))
        ticker.join(first)
        ticker.join(second)
        await asyncio.sleep(0.03)
        ticker.leave(first)
        ticker.leave(first)
        await asyncio.sleep(0.1)
    assert (first.due_ms, second.due_ms) == ([0, 20], [])


@virtual
async def test_a_ticker_without_callers_sleeps_and_goes_on_in_its_grid() -> None:
    async with ticking() as ticker:
        await asyncio.sleep(3600.007)
        caller = Caller()
        ticker.join(caller)
        await asyncio.sleep(0.05)
    assert [due - 3_600_000 for due in caller.due_ms] == [20, 40]
    assert ticker.lateness.skipped == 0


@virtual
async def test_the_loop_s_clock_is_the_ticker_s() -> None:
    assert running_clock()() == START_S
    ticker = Ticker(running_clock())
    assert ticker.lateness.p99_ms is None


def test_the_percentile_is_of_all_ticks_that_should_have_been() -> None:
    lateness = Lateness()
    for _ in range(980):
        lateness.note(-0.000_5)  # a loop may wake a little early
    for _ in range(10):
        lateness.note(0.004_21)
    assert lateness.p99_ms == 4.3
    for late_ms in range(10, 30):
        lateness.note_skipped(late_ms / 1000)
    assert lateness.p99_ms == 19.1
    assert (lateness.ticks, lateness.skipped) == (1_010, 20)
    assert lateness.take_worst_ms() == 29
    lateness.note(0.002)
    assert (lateness.take_worst_ms(), lateness.worst_ms) == (2, 29)


def test_what_is_later_than_the_scale_is_the_worst() -> None:
    lateness = Lateness()
    lateness.note(1.5)
    assert (lateness.p99_ms, lateness.worst_ms) == (1_500, 1_500)
    assert FRAME_S == 0.02
