"""What the executor tells about itself: health, costs, figures, work it had to give up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial

import pytest

from engines.executor.policy import Choice
from engines.executor.thread import ExecutorUnavailableError, MlxExecutor
from streaming.jobs import Priority
from tests.engines.executor.fake_workload import SPEAK, START, FakeWorkload, attached, occupied, until
from tests.engines.tiny_llama import needs_mlx

pytestmark = needs_mlx


async def test_a_quantum_that_hangs_turns_health_red() -> None:
    now = [100.0]
    executor = MlxExecutor(stalled_after_s=30.0, clock=lambda: now[0])

    def is_healthy() -> bool:
        return executor.healthy

    await executor.start()
    async with occupied(executor):
        assert executor.last_beat == 100.0
        now[0] += 29.0
        assert is_healthy()
        now[0] += 1.0
        assert not is_healthy()
    await executor.run(lambda: None)
    assert is_healthy()
    await executor.close()


async def test_a_quantum_far_beyond_its_learned_bound_turns_health_red_and_back() -> None:
    now = [100.0]
    executor = MlxExecutor(clock=lambda: now[0])
    await executor.start()
    workload = await attached(executor)
    executor.agenda.costs.seed(SPEAK, 1, 1, 0.2)
    bound = executor.agenda.costs.bound(SPEAK)
    assert bound is not None
    entered, leave = threading.Event(), threading.Event()

    def hang(choice: Choice) -> None:
        entered.set()
        leave.wait(20)
        workload._drop(choice)

    def pass_a_second() -> None:
        now[0] += 1.0

    workload.quantum = hang  # type: ignore[method-assign]
    executor.post(partial(workload.insert, 1, SPEAK, Priority.PLAYOUT))
    await asyncio.to_thread(entered.wait, 20)
    troubles = [executor.trouble]
    now[0] += 4 * bound + 0.1
    troubles.append(executor.trouble)
    leave.set()
    await executor.run(lambda: None)
    troubles.append(executor.trouble)
    assert [bool(trouble) for trouble in troubles] == [False, True, False]
    assert "speak" in troubles[1]
    await executor.run(pass_a_second)  # inside a quantum: between two of them it would be an overrun of its own
    await executor.run(lambda: None)
    assert executor.snapshot.overruns == 1
    await executor.close()
    assert "not running" in executor.trouble


async def test_quanta_teach_the_agenda_their_costs(executor: MlxExecutor) -> None:
    workload = await attached(executor)
    assert executor.agenda.costs.bound(SPEAK) is None
    executor.post(partial(workload.insert, 1, SPEAK, Priority.PLAYOUT))
    await until(lambda: executor.agenda.costs.bound(SPEAK) is not None)


async def test_the_snapshot_tells_what_runs() -> None:
    now = [0.0]
    executor = MlxExecutor(clock=lambda: now[0])
    await executor.start()

    class Counting(FakeWorkload):
        def snapshot(self) -> dict[str, int]:
            return {"rows": 3}

    workload = Counting(executor)
    await executor.run(partial(executor.attach, workload))
    workload.open_streams = 2
    executor.post(partial(workload.insert, 1, SPEAK, Priority.PLAYOUT))
    await until(lambda: len(workload.log) == 1)
    await executor.run(lambda: now.__setitem__(0, 1.0))  # inside a quantum, as above
    await executor.run(lambda: None)
    snapshot = executor.snapshot
    assert snapshot.quanta["speak"].count == 1
    assert (snapshot.open_streams, snapshot.overruns, snapshot.workloads) == (2, 0, {"fake": {"rows": 3}})
    assert snapshot.active_bytes >= 0
    await executor.close()


async def test_what_an_unloaded_model_leaves_in_the_cache_goes_back_when_no_stream_is_open(
    executor: MlxExecutor,
) -> None:
    """Of the others; new ones wait until then."""
    workload = await attached(executor)
    workload.open_streams = 1
    unloaded = FakeWorkload(executor)
    unloaded.name = "unloaded"
    await executor.run(partial(executor.attach, unloaded))
    await executor.run(partial(executor.detach, unloaded))
    executor.post(partial(workload.insert, 1, START, Priority.FIRST_AUDIO))
    executor.post(partial(workload.insert, 2, SPEAK, Priority.FIRST_AUDIO))
    await until(lambda: len(workload.log) == 1)
    assert workload.log == ["speak 2"]
    assert executor.clear_cache_served == 0
    workload.open_streams = 0
    await executor.run(lambda: None)
    await until(lambda: len(workload.log) == 2)
    assert executor.clear_cache_served == 1
    await executor.close()


async def test_functions_and_jobs_that_lose_their_place_on_the_agenda_are_told(
    executor: MlxExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workload before it settles, so that they leave its batch before the next quantum."""
    workload = await attached(executor)

    def settle() -> None:
        if workload.log[-1:] == ["abandoned overloaded"]:
            workload.log.append("settled")

    monkeypatch.setattr(workload, "settle", settle)
    async with occupied(executor):
        monkeypatch.setattr(executor.agenda, "_max_jobs", 1)
        refused = asyncio.create_task(executor.run(lambda: 1, priority=Priority.PARTIAL))
        await asyncio.sleep(0)
        executor.post(partial(workload.insert, 1, SPEAK, Priority.DECODE))
        executor.post(partial(workload.insert, 2, SPEAK, Priority.FINAL))
    with pytest.raises(ExecutorUnavailableError) as caught:
        await refused
    assert caught.value.code == "overloaded"
    await until(lambda: len(workload.log) == 3)
    assert workload.log == ["abandoned overloaded", "settled", "speak 2"]


async def test_a_full_inbox_refuses_work_but_not_what_takes_work_away(executor: MlxExecutor) -> None:
    workload = await attached(executor)
    async with occupied(executor):
        for _ in range(300):
            with contextlib.suppress(ExecutorUnavailableError):
                executor.post(lambda: None)
        with pytest.raises(ExecutorUnavailableError) as caught:
            await executor.run(lambda: 1)
        assert caught.value.code == "overloaded"
        leaving = asyncio.create_task(executor.run(partial(executor.detach, workload), control=True))
        await asyncio.sleep(0)
    await leaving
    assert workload.log == ["closed"]
