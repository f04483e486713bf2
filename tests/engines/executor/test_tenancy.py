"""How an engine moves in and out, on a stand-in for the executor, without a thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.api import EngineError
from engines.executor.tenancy import Tenancy
from engines.executor.thread import ExecutorUnavailableError
from streaming.jobs import Priority


class _Executor:
    def __init__(self) -> None:
        self.starts = 0
        self.listeners: list[Callable[[str, str], None]] = []
        self.dead = self.full = False

    async def start(self) -> None:
        self.starts += 1

    def post(self, act: Callable[[], None], *, control: bool = False) -> None:
        if self.dead:
            raise ExecutorUnavailableError("executor_dead", "SystemExit")
        assert control
        act()

    async def run(
        self, function: Callable[[], Any], *, priority: Priority = Priority.FIRST_AUDIO, control: bool = False
    ) -> Any:
        if self.dead:
            raise ExecutorUnavailableError("executor_dead", "SystemExit")
        if self.full and not (control and priority is Priority.FINAL):
            raise ExecutorUnavailableError("overloaded", "the inbox is full")
        return function()

    def on_death(self, listener: Callable[[str, str], None]) -> None:
        self.listeners.append(listener)

    def off_death(self, listener: Callable[[str, str], None]) -> None:
        self.listeners.remove(listener)


def _tenancy() -> tuple[Tenancy, Any]:
    executor: Any = _Executor()
    return Tenancy(executor, lambda code, message: None), executor


async def test_the_executor_is_started_and_a_missing_folder_is_no_repository(tmp_path: Path) -> None:
    tenancy, executor = _tenancy()
    with pytest.raises(EngineError, match="no model folder") as caught:
        async with tenancy.loading(tmp_path / "absent"):
            pytest.fail("loaded from nowhere")
    assert (caught.value.code, executor.starts) == ("load_failed", 1)


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (EngineError("bad_weights", "too old"), "bad_weights"),
        (ExecutorUnavailableError("executor_dead", "SystemExit"), "executor_dead"),
        (KeyError("layers"), "load_failed"),
    ],
)
async def test_what_a_load_raises_gets_the_code_of_its_cause(tmp_path: Path, raised: Exception, code: str) -> None:
    tenancy, _ = _tenancy()
    with pytest.raises(EngineError) as caught:
        async with tenancy.loading(tmp_path):
            raise raised
    assert caught.value.code == code


async def test_whoever_left_hears_of_no_death_and_leaving_raises_nothing() -> None:
    tenancy, executor = _tenancy()
    assert len(executor.listeners) == 1

    def detach() -> None:
        raise RuntimeError("out of memory")

    await tenancy.leave(detach)
    assert executor.listeners == []


async def test_nothing_is_taken_away_from_a_dead_thread() -> None:
    tenancy, executor = _tenancy()
    done: list[str] = []
    tenancy.control(lambda: done.append("control"))
    executor.dead = True
    tenancy.control(lambda: done.append("never"))
    await tenancy.leave(lambda: done.append("never"))
    assert done == ["control"]


async def test_a_busy_thread_still_frees_what_leaves() -> None:
    tenancy, executor = _tenancy()
    executor.full = True
    done: list[str] = []
    await tenancy.leave(lambda: done.append("freed"))
    assert done == ["freed"]
