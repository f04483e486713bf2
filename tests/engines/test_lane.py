"""The threads of the CPU lane, by events and never by sleeping."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Callable

import pytest

from engines.lane import CpuLane, LaneFull, Slot
from streaming.jobs import Priority

WAIT_S = 10.0


class Gate:
    """A job that says when it began and ends when it is let go."""

    def __init__(self, name: str = "", log: list[str] | None = None) -> None:
        self.name = name
        self.log = log if log is not None else []
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.ended = threading.Event()

    def __call__(self, slot: Slot) -> None:
        self.log.append(self.name)
        self.began.set()
        assert self.let_go.wait(WAIT_S)
        self.ended.set()

    def release(self) -> None:
        self.let_go.set()
        assert self.ended.wait(WAIT_S)


def wanted() -> bool:
    return False


def submit(lane: CpuLane, run: Callable[[Slot], None], priority: Priority = Priority.FINAL, at: float = 0.0) -> Slot:
    return lane.submit(priority, at, run, abandoned=wanted)


async def test_jobs_run_most_urgent_first_when_the_only_slot_comes_free() -> None:
    lane = CpuLane(1, clock=lambda: 0.0)
    log: list[str] = []
    first = Gate("first", log)
    submit(lane, first, Priority.SPECULATIVE)
    assert first.began.wait(WAIT_S)
    last = Gate("speculative", log)
    last.let_go.set()
    submit(lane, last, Priority.SPECULATIVE)
    for name, priority, at in (
        ("partial", Priority.PARTIAL, 0.0),
        ("late final", Priority.FINAL, 2.0),
        ("early final", Priority.FINAL, 1.0),
    ):
        gate = Gate(name, log)
        gate.let_go.set()
        submit(lane, gate, priority, at)
    first.release()
    assert await asyncio.to_thread(last.ended.wait, WAIT_S)
    assert log == ["first", "early final", "late final", "partial", "speculative"]
    await lane.close()
    assert lane.snapshot().done == 5


async def test_at_most_slots_jobs_run_at_once() -> None:
    lane = CpuLane(2)
    gates = [Gate() for _ in range(3)]
    for gate in gates:
        submit(lane, gate)
    assert gates[0].began.wait(WAIT_S)
    assert gates[1].began.wait(WAIT_S)
    shot = lane.snapshot()
    assert (shot.running, shot.queued) == (2, 1)
    assert not gates[2].began.is_set()
    gates[0].release()
    assert gates[2].began.wait(WAIT_S)
    gates[1].release()
    gates[2].release()
    await lane.close()


async def test_a_job_abandoned_before_it_begins_is_skipped() -> None:
    lane = CpuLane(1)
    first, never, after = Gate("first"), Gate("never"), Gate("after")
    submit(lane, first)
    assert first.began.wait(WAIT_S)
    gone = threading.Event()
    lane.submit(Priority.FINAL, 0.0, never, abandoned=gone.is_set)
    submit(lane, after)
    gone.set()
    first.release()
    after.release()
    await lane.close()
    assert not never.began.is_set()
    shot = lane.snapshot()
    assert (shot.skipped, shot.done) == (1, 2)


async def test_a_full_lane_refuses_but_first_forgets_what_nobody_wants() -> None:
    lane = CpuLane(1, max_queued=2)
    first = Gate()
    submit(lane, first)
    assert first.began.wait(WAIT_S)
    gone = threading.Event()
    stale = Gate()
    lane.submit(Priority.FINAL, 0.0, stale, abandoned=gone.is_set)
    kept = Gate()
    kept.let_go.set()
    submit(lane, kept)
    with pytest.raises(LaneFull):
        submit(lane, Gate())
    gone.set()
    taken = Gate()
    taken.let_go.set()
    submit(lane, taken)
    first.release()
    assert kept.ended.wait(WAIT_S)
    assert taken.ended.wait(WAIT_S)
    await lane.close()
    shot = lane.snapshot()
    assert (shot.refused, shot.skipped, shot.done) == (1, 1, 3)
    assert not stale.began.is_set()


async def test_a_long_job_gives_its_slot_to_urgent_work_and_takes_it_again() -> None:
    lane = CpuLane(1)
    log: list[str] = []
    ready, step, finished = threading.Event(), threading.Event(), threading.Event()

    def generation(slot: Slot) -> None:
        log.append("token 1")
        assert slot.yield_if_needed()  # nothing waits: goes on at once
        ready.set()
        assert step.wait(WAIT_S)
        assert slot.yield_if_needed()
        log.append("token 2")
        finished.set()

    submit(lane, generation, Priority.DECODE, 5.0)
    assert ready.wait(WAIT_S)
    less_urgent = Gate("partial", log)
    less_urgent.let_go.set()
    submit(lane, less_urgent, Priority.PARTIAL, 0.0)
    final = Gate("final", log)
    submit(lane, final, Priority.FINAL, 9.0)
    step.set()
    assert final.began.wait(WAIT_S)
    assert lane.snapshot().paused == 1
    final.release()
    assert finished.wait(WAIT_S)
    assert less_urgent.ended.wait(WAIT_S)
    await lane.close()
    assert log == ["token 1", "final", "token 2", "partial"]
    assert lane.snapshot().yields == 1


async def test_what_can_wait_leaves_the_machine_to_urgent_work_though_a_slot_is_free() -> None:
    lane = CpuLane(2, clock=lambda: 100.0)
    log: list[str] = []
    ready, step, finished = threading.Event(), threading.Event(), threading.Event()

    def decode(slot: Slot) -> None:
        ready.set()
        assert step.wait(WAIT_S)
        assert slot.yield_if_needed()
        log.append("token")
        finished.set()

    decoding = submit(lane, decode, Priority.DECODE, 100.0)
    assert ready.wait(WAIT_S)
    speech = Gate("first audio", log)
    submit(lane, speech, Priority.FIRST_AUDIO, 100.0)
    assert speech.began.wait(WAIT_S)
    decoding.reprioritize(Priority.DECODE, 105.0)
    partial = Gate("partial", log)
    partial.let_go.set()
    submit(lane, partial, Priority.PARTIAL, 105.0)
    step.set()
    final = Gate("final", log)
    submit(lane, final, Priority.FINAL, 100.0)
    assert final.began.wait(WAIT_S)  # so the decode has given up its slot
    assert lane.snapshot().paused == 1
    final.release()
    assert final.ended.wait(WAIT_S)
    assert not partial.began.is_set()
    speech.release()
    assert partial.ended.wait(WAIT_S)
    assert finished.wait(WAIT_S)
    await lane.close()
    assert log[:2] == ["first audio", "final"]
    assert sorted(log[2:]) == ["partial", "token"]


async def test_once_its_deadline_is_near_it_runs_beside_urgent_work() -> None:
    lane = CpuLane(2, clock=lambda: 100.0)
    log: list[str] = []
    speech, words = Gate("first audio", log), Gate("decode", log)
    words.let_go.set()
    submit(lane, speech, Priority.FIRST_AUDIO, 100.0)
    assert speech.began.wait(WAIT_S)
    waiting = submit(lane, words, Priority.DECODE, 105.0)
    assert lane.snapshot().queued == 1
    waiting.reprioritize(Priority.DECODE, 100.1)
    assert words.ended.wait(WAIT_S)
    speech.release()
    await lane.close()


async def test_a_yield_may_come_from_the_models_own_thread() -> None:
    lane = CpuLane(1)
    log: list[str] = []
    ready, step = threading.Event(), threading.Event()

    def generation(slot: Slot) -> None:
        def callback() -> None:
            ready.set()
            assert step.wait(WAIT_S)
            assert slot.yield_if_needed()
            log.append("token")

        thread = threading.Thread(target=callback)
        thread.start()
        thread.join()

    submit(lane, generation, Priority.DECODE)
    assert ready.wait(WAIT_S)
    final = Gate("final", log)
    final.let_go.set()
    submit(lane, final)
    step.set()
    assert final.ended.wait(WAIT_S)
    after = Gate()
    after.let_go.set()
    submit(lane, after, Priority.SPECULATIVE)
    assert after.ended.wait(WAIT_S)
    await lane.close()
    assert log == ["final", "token"]


async def test_paused_jobs_are_bounded_and_then_a_yield_goes_on() -> None:
    lane = CpuLane(1, max_paused=0)
    ready, step, finished = threading.Event(), threading.Event(), threading.Event()

    def generation(slot: Slot) -> None:
        ready.set()
        assert step.wait(WAIT_S)
        assert slot.yield_if_needed()
        finished.set()

    submit(lane, generation, Priority.DECODE)
    assert ready.wait(WAIT_S)
    final = Gate()
    final.let_go.set()
    submit(lane, final)
    step.set()
    assert finished.wait(WAIT_S)
    assert final.ended.wait(WAIT_S)
    await lane.close()
    assert lane.snapshot().yields_refused == 1


async def test_reprioritizing_a_waiting_job_moves_it() -> None:
    lane = CpuLane(1)
    log: list[str] = []
    first = Gate("first", log)
    submit(lane, first)
    assert first.began.wait(WAIT_S)
    a, b = Gate("a", log), Gate("b", log)
    a.let_go.set()
    b.let_go.set()
    submit(lane, a, Priority.DECODE)
    promoted = submit(lane, b, Priority.SPECULATIVE, math.inf)
    promoted.reprioritize(Priority.FIRST_AUDIO, 1.0)
    first.release()
    assert a.ended.wait(WAIT_S)
    assert b.ended.wait(WAIT_S)
    await lane.close()
    assert log == ["first", "b", "a"]
    assert Priority.FIRST_AUDIO in lane.snapshot().max_wait_ms


async def test_a_running_job_that_was_promoted_no_longer_yields() -> None:
    lane = CpuLane(1)
    log: list[str] = []
    ready, step = threading.Event(), threading.Event()

    def generation(slot: Slot) -> None:
        ready.set()
        assert step.wait(WAIT_S)
        assert slot.yield_if_needed()
        log.append("generation")

    promoted = submit(lane, generation, Priority.SPECULATIVE, math.inf)
    assert ready.wait(WAIT_S)
    other = Gate("playout", log)
    other.let_go.set()
    submit(lane, other, Priority.PLAYOUT)
    promoted.reprioritize(Priority.DECODE, 1.0)
    step.set()
    assert other.ended.wait(WAIT_S)
    await lane.close()
    assert log == ["generation", "playout"]


async def test_an_escaped_exception_costs_no_worker() -> None:
    lane = CpuLane(1)

    def broken(slot: Slot) -> None:
        raise RuntimeError("a defect in a job")

    submit(lane, broken)
    after = Gate()
    after.let_go.set()
    submit(lane, after)
    assert after.ended.wait(WAIT_S)
    await lane.close()
    shot = lane.snapshot()
    assert (shot.failed, shot.done, shot.running) == (1, 1, 0)
    assert len(lane._threads) == 1


async def test_close_wakes_the_paused_drops_the_queued_and_joins() -> None:
    lane = CpuLane(1)
    ready, step = threading.Event(), threading.Event()
    told: list[bool] = []

    def generation(slot: Slot) -> None:
        ready.set()
        assert step.wait(WAIT_S)
        told.append(slot.yield_if_needed())
        told.append(slot.yield_if_needed())

    submit(lane, generation, Priority.DECODE)
    assert ready.wait(WAIT_S)
    final, never = Gate(), Gate()
    submit(lane, final)
    submit(lane, never, Priority.PARTIAL)
    step.set()
    assert final.began.wait(WAIT_S)
    closing = asyncio.create_task(lane.close())
    await asyncio.sleep(0)
    assert lane._closing
    final.let_go.set()
    await closing
    await lane.close()
    assert told == [False, False]
    assert not never.began.is_set()
    assert not any(thread.is_alive() for thread in lane._threads)
    shot = lane.snapshot()
    assert (shot.done, shot.skipped, shot.running, shot.queued, shot.paused) == (2, 1, 0, 0, 0)
    with pytest.raises(LaneFull):
        submit(lane, Gate())


async def test_threads_are_bounded_by_slots_and_paused() -> None:
    lane = CpuLane(1, max_paused=3)
    levels = [Priority.SPECULATIVE, Priority.PARTIAL, Priority.PLAYOUT, Priority.DECODE, Priority.FINAL]
    began = [threading.Event() for _ in levels]
    go = [threading.Event() for _ in levels]
    ended = [threading.Event() for _ in levels]

    def job(n: int) -> Callable[[Slot], None]:
        def run(slot: Slot) -> None:
            began[n].set()
            assert go[n].wait(WAIT_S)
            slot.yield_if_needed()
            ended[n].set()

        return run

    for n, priority in enumerate(levels):
        submit(lane, job(n), priority)
        if n:
            go[n - 1].set()
        if n < len(levels) - 1:
            assert began[n].wait(WAIT_S)
    # The fourth pause was refused, so DECODE ran to its end before FINAL could begin.
    assert ended[3].wait(WAIT_S)
    assert began[4].wait(WAIT_S)
    go[4].set()
    for event in ended:
        assert event.wait(WAIT_S)
    await lane.close()
    shot = lane.snapshot()
    assert (shot.done, shot.yields, shot.yields_refused) == (5, 3, 1)
    assert len(lane._threads) <= 4


def test_a_lane_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        CpuLane(0)
    assert CpuLane().slots >= 1


async def test_under_a_storm_every_job_ends_and_slots_are_never_exceeded() -> None:
    lane = CpuLane(2, max_paused=4)
    chance = random.Random(7)
    guard = threading.Lock()
    active = most = 0
    ended = threading.Semaphore(0)

    def step(by: int) -> None:
        nonlocal active, most
        with guard:
            active += by
            most = max(most, active)

    def job(yields: int) -> Callable[[Slot], None]:
        def run(slot: Slot) -> None:
            step(+1)
            for _ in range(yields):
                step(-1)
                assert slot.yield_if_needed()
                step(+1)
            step(-1)
            ended.release()

        return run

    slots = []
    for n in range(400):
        priority = chance.choice(list(Priority))
        slots.append(submit(lane, job(chance.randrange(20)), priority, float(chance.randrange(5))))
        if n % 3 == 0:
            chance.choice(slots).reprioritize(chance.choice(list(Priority)), float(chance.randrange(5)))
    for _ in slots:
        assert await asyncio.to_thread(ended.acquire, timeout=WAIT_S)
    await lane.close()
    shot = lane.snapshot()
    assert most <= 2
    assert (shot.done, shot.failed, shot.skipped, shot.running, shot.paused) == (400, 0, 0, 0, 0)
    assert shot.yields > 0
    assert len(lane._threads) <= 6


async def test_what_is_told_of_a_lane() -> None:
    now_s = 100.0
    lane = CpuLane(1, clock=lambda: now_s)
    began, go_on = threading.Event(), threading.Event()

    def work(_: Slot) -> None:
        began.set()
        go_on.wait(WAIT_S)

    lane.submit(Priority.FINAL, math.inf, work, abandoned=lambda: False)
    lane.submit(Priority.DECODE, 101.0, lambda _: None, abandoned=lambda: False)
    lane.submit(Priority.DECODE, 200.0, lambda _: None, abandoned=lambda: False)
    lane.submit(Priority.SPECULATIVE, 100.0, lambda _: None, abandoned=lambda: False)
    assert await asyncio.to_thread(began.wait, WAIT_S)
    now_s += 3.0
    told = lane.snapshot()
    assert (told.running, told.queued, told.late_ms, told.busy_s) == (1, 3, 2_000.0, 3.0)
    go_on.set()
    await lane.close()
    now_s += 5.0
    assert lane.snapshot().late_ms == 0.0
    assert lane.snapshot().busy_s == 3.0, "nothing runs"
