from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import Callable

import pytest

from gateway.transports.sip.frame_ticker import FRAME_S, SLOTS, FrameTicker, ticker_of
from tests.virtual_time import VirtualLoop, run_virtual, virtual


class Frames:
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.times: list[float] = []

    def __call__(self, number: int, now_s: float) -> None:
        self.numbers.append(number)
        self.times.append(now_s)


@virtual
async def test_frames_are_20_ms_apart_for_as_long_as_one_listens() -> None:
    ticker, frames = FrameTicker(asyncio.get_running_loop().time()), Frames()
    await asyncio.sleep(1.234)
    leave = ticker.join(frames)
    await asyncio.sleep(600.0)
    leave()
    leave()
    heard = len(frames.times)
    assert heard in (30_000, 30_001)
    assert frames.numbers == list(range(frames.numbers[0], frames.numbers[0] + heard))
    drift = frames.times[-1] - frames.times[0] - (heard - 1) * FRAME_S
    assert abs(drift) < 1e-6
    await asyncio.sleep(1.0)
    assert len(frames.times) == heard


@virtual
async def test_calls_are_spread_over_the_slots() -> None:
    ticker = ticker_of(asyncio.get_running_loop())
    assert ticker is ticker_of(asyncio.get_running_loop())
    all_frames = [Frames() for _ in range(2 * SLOTS)]
    leave = [ticker.join(frames) for frames in all_frames]
    await asyncio.sleep(1.0)
    phases = {round((frames.times[-1] % FRAME_S) * 1000) % 20 for frames in all_frames}
    assert len(phases) == SLOTS
    for one in leave:
        one()


@virtual
async def test_what_a_stalled_loop_missed_is_skipped() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    ticker, frames = FrameTicker(loop.time()), Frames()
    leave = ticker.join(frames)
    await asyncio.sleep(0.1)
    before = len(frames.times)
    left: list[float] = []
    ticker.left = lambda late_s, frames: left.extend([late_s] * frames)
    loop._jumping.now_s += 1.0  # a second in which the loop was busy
    await asyncio.sleep(0.1)
    leave()
    assert len(frames.times) - before <= 7, "no burst"
    gaps = [after - now for now, after in itertools.pairwise(frames.numbers)]
    assert sorted(gaps)[-1] in (50, 51), "the numbers follow the clock"
    assert sorted(gaps)[-2] == 1
    lost = [late_s for late_s in left if late_s > 0.02]
    assert len(lost) == 49, "each frame that was skipped is told of, as late as it would have been"
    assert max(lost) == pytest.approx(1.0, abs=0.02)
    assert len(left) - len(lost) <= 7


@virtual
async def test_one_that_raises_is_left_out_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    loop = asyncio.get_running_loop()
    ticker = FrameTicker(loop.time())
    calls = [Frames() for _ in range(SLOTS + 1)]

    def broken(number: int, now_s: float) -> None:
        calls[0](number, now_s)
        raise ZeroDivisionError

    leave = [ticker.join(broken), *(ticker.join(one) for one in calls[1:])]
    await asyncio.sleep(0.5)
    assert len(calls[0].times) == 1
    assert all(len(one.times) >= 24 for one in calls[1:])
    for one in leave:
        one()


@virtual
async def test_who_joins_and_leaves_within_a_frame_neither_stops_nor_doubles_the_clock() -> None:
    ticker = FrameTicker(asyncio.get_running_loop().time())
    slot = ticker._slots[0]
    later = Frames()
    leave: list[Callable[[], None]] = []

    def swap(number: int, now_s: float) -> None:
        leave[0]()
        leave.append(slot.join(later))

    leave.append(slot.join(swap))
    await asyncio.sleep(1.0)
    leave[1]()
    assert 48 <= len(later.times) <= 50
    assert slot._timer is None


def test_a_loop_that_is_over_is_not_kept() -> None:
    async def frames() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.get_running_loop()
        leave = ticker_of(loop).join(Frames())
        await asyncio.sleep(0.1)
        leave()
        return weakref.ref(loop)

    gone = run_virtual(frames())
    gc.collect()
    assert gone() is None
