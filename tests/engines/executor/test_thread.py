"""The executor's thread: order, delivery, identity, death, the clear_cache guard on real MLX."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from engines.api import EngineError
from engines.executor.thread import ExecutorUnavailableError, MlxExecutor, WrongThreadError
from streaming.jobs import Priority
from tests.engines.executor.fake_workload import SPEAK, START, FakeWorkload, attached, occupied, until
from tests.engines.tiny_llama import needs_mlx

pytestmark = needs_mlx


async def test_everything_runs_on_one_thread_that_is_not_the_loops(executor: MlxExecutor) -> None:
    names = {await executor.run(lambda: threading.current_thread().name) for _ in range(3)}
    assert names == {"mlx-executor"}
    await executor.run(executor.require_thread)


async def test_mlx_code_on_another_thread_raises(executor: MlxExecutor) -> None:
    workload = FakeWorkload(executor)
    for call in (executor.require_thread, partial(executor.attach, workload), partial(executor.emit, lambda: None)):
        with pytest.raises(WrongThreadError, match="belongs to the executor's thread"):
            call()


async def test_a_lazy_array_of_the_thread_is_useless_elsewhere(executor: MlxExecutor) -> None:
    """Why the rule exists: what MLX itself says."""
    box: list[Any] = []

    def make() -> None:
        import mlx.core as mx

        box.append(mx.ones(4) + 1)

    await executor.run(make)
    with pytest.raises(RuntimeError, match="no Stream"):
        box[0].tolist()
    assert await executor.run(lambda: box.pop().tolist()) == [2.0] * 4


async def test_the_exception_of_a_function_is_its_callers(executor: MlxExecutor) -> None:
    with pytest.raises(KeyError, match="absent"):
        await executor.run(partial(_fail, KeyError("absent")))
    assert await executor.run(lambda: 7) == 7


async def test_urgent_work_goes_first_and_the_inbox_is_drained_between_quanta(executor: MlxExecutor) -> None:
    workload = await attached(executor)
    async with occupied(executor):
        executor.post(partial(workload.insert, 1, START, Priority.SPECULATIVE))
        executor.post(partial(workload.insert, 2, START, Priority.PLAYOUT))
        executor.post(partial(workload.insert, 3, START, Priority.FIRST_AUDIO))
        executor.post(partial(workload.insert, 4, SPEAK, Priority.DECODE))
    await until(lambda: len(workload.log) == 4)
    assert workload.log == ["start 3", "speak 4", "start 2", "start 1"]


async def test_a_full_inbox_refuses_starts_but_never_cancels(executor: MlxExecutor) -> None:
    ran: list[str] = []
    async with occupied(executor):
        for _ in range(8):
            executor.post(lambda: ran.append("start"))
        with pytest.raises(ExecutorUnavailableError) as caught:
            executor.post(lambda: ran.append("refused"))
        executor.post(lambda: ran.append("cancel"), control=True)
    await until(lambda: len(ran) == 9)
    assert caught.value.code == "overloaded"
    assert ran == ["start"] * 8 + ["cancel"]


async def test_a_quantum_wakes_the_loop_once_for_all_calls(
    executor: MlxExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes: list[int] = []
    heard: list[int] = []

    real = executor._deliver_all

    def count(batch: list[Callable[[], None]]) -> None:
        wakes.append(len(batch))
        real(batch)

    monkeypatch.setattr(executor, "_deliver_all", count)

    def speak_to_all() -> None:
        for call in range(5):
            executor.emit(partial(heard.append, call))

    await executor.run(speak_to_all)
    assert heard == [0, 1, 2, 3, 4]
    assert wakes == [6]  # five calls and the function's own end


async def test_one_failing_delivery_does_not_lose_the_next(executor: MlxExecutor) -> None:
    heard: list[int] = []

    def speak() -> None:
        executor.emit(partial(_fail, KeyError("a defect in a consumer")))
        executor.emit(lambda: heard.append(1))

    await executor.run(speak)
    assert heard == [1]


async def test_a_failing_quantum_fails_its_jobs_and_the_thread_goes_on(executor: MlxExecutor) -> None:
    workload = await attached(executor)
    workload.fail_next = RuntimeError("kernel")
    executor.post(partial(workload.insert, 1, START, Priority.FINAL))
    executor.post(partial(_fail, KeyError("a defect in an inbox item")))
    executor.post(partial(workload.insert, 2, START, Priority.FINAL))
    await until(lambda: len(workload.log) == 2)
    assert workload.log == ["abandoned RuntimeError: kernel", "start 2"]
    assert executor.healthy


async def test_detaching_closes_a_workload_once(executor: MlxExecutor) -> None:
    workload = await attached(executor)
    await executor.run(partial(executor.detach, workload))
    await executor.run(partial(executor.detach, workload))
    assert workload.log == ["closed"]
    assert executor.clear_cache_served == 1, "what its weights left is not kept"


async def test_when_the_thread_dies_its_jobs_fail_and_so_do_later_ones() -> None:
    executor = MlxExecutor()
    deaths: list[tuple[str, str]] = []
    executor.on_death(lambda code, message: deaths.append((code, message)))
    executor.on_death(_never)
    executor.off_death(_never)
    executor.off_death(_never)
    await executor.start()
    workload = await attached(executor)
    workload.fail_next = SystemExit("gone")
    async with _raises_dead():
        async with occupied(executor):
            waiting = asyncio.create_task(executor.run(lambda: None, priority=Priority.SPECULATIVE))
            await asyncio.sleep(0)
            executor.post(partial(workload.insert, 1, START, Priority.FINAL))
            # What is live goes before the function that waits.
        await waiting
    assert deaths == [("executor_dead", "SystemExit: gone")]
    assert not executor.healthy
    with pytest.raises(ExecutorUnavailableError) as caught:
        executor.post(lambda: None)
    assert caught.value.code == "executor_dead"
    await executor.close()
    assert workload.log == ["closed"]


async def test_close_is_idempotent_and_final() -> None:
    executor = MlxExecutor()
    healthy = [executor.healthy]
    await executor.start()
    await executor.start()
    healthy.append(executor.healthy)
    await executor.close()
    await executor.close()
    healthy.append(executor.healthy)
    assert healthy == [False, True, False]
    with pytest.raises(ExecutorUnavailableError) as caught:
        await executor.run(lambda: None)
    assert caught.value.code == "executor_closed"
    with pytest.raises(EngineError) as refused:
        await executor.start()
    assert refused.value.code == "executor_closed"
    never_started = MlxExecutor()
    await never_started.close()


async def test_a_function_that_still_waits_fails_at_close() -> None:
    executor = MlxExecutor()
    await executor.start()
    async with occupied(executor):
        waiting = asyncio.create_task(executor.run(lambda: 1))
        await asyncio.sleep(0)
        closing = asyncio.create_task(executor.close())
        await asyncio.sleep(0)
    await closing
    with pytest.raises(ExecutorUnavailableError) as caught:
        await waiting
    assert caught.value.code == "executor_closed"


async def test_a_second_executor_is_refused_while_one_lives(executor: MlxExecutor) -> None:
    second = MlxExecutor()
    with pytest.raises(EngineError) as caught:
        await second.start()
    assert caught.value.code == "executor_exists"
    await second.close()


async def test_a_start_without_mlx_fails_with_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    executor = MlxExecutor()
    with pytest.raises(EngineError) as caught:
        await executor.start()
    assert caught.value.code == "mlx_unavailable"
    await executor.close()


@pytest.mark.parametrize("guarded", [True, False])
async def test_the_guard_keeps_libraries_from_clearing_under_an_open_stream(guarded: bool) -> None:
    """The same library call with and without the guard (MLX issue 3450): without it, the cache is cleared at once."""
    executor = MlxExecutor()
    await executor.start()
    workload = await attached(executor)
    open_at_clear: list[int] = []

    def spy_on_the_real_one() -> Callable[[], None]:
        import mlx.core as mx

        guard = executor._guard
        assert guard is not None
        guard.uninstall()
        real: Callable[[], None] = mx.clear_cache

        def spy() -> None:
            open_at_clear.append(workload.open_streams)
            real()

        mx.clear_cache = spy
        if guarded:
            guard.install()
        return real

    def restore(real: Callable[[], None]) -> None:
        import mlx.core as mx

        assert executor._guard is not None
        executor._guard.uninstall()
        mx.clear_cache = real

    def library_clears() -> None:
        import mlx.core as mx

        mx.clear_cache()

    def open_streams(count: int) -> None:
        workload.open_streams = count

    real = await executor.run(spy_on_the_real_one)
    await executor.run(partial(open_streams, 1))
    await executor.run(library_clears)
    await executor.run(lambda: None)
    during = list(open_at_clear)
    await executor.run(partial(open_streams, 0))
    await executor.run(lambda: None)
    if guarded:
        assert during == []
        assert open_at_clear == [0]
        assert (executor.clear_cache_requests, executor.clear_cache_served) == (1, 1)
    else:
        assert during == [1]
    await executor.run(partial(restore, real))
    await executor.close()


def _fail(error: Exception) -> None:
    raise error


def _never(code: str, message: str) -> None:
    raise AssertionError("a removed listener was called")


@contextlib.asynccontextmanager
async def _raises_dead() -> AsyncIterator[None]:
    with pytest.raises(ExecutorUnavailableError) as caught:
        yield
    assert caught.value.code == "executor_dead"
