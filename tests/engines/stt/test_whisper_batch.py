"""Calls of several threads made one batch: order of events by hand, no clocks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from engines.stt.whisper_batch import Batcher


class Model:
    """Doubles numbers. The first batch holds until it may go on."""

    def __init__(self, held: bool = True) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.began = threading.Event()
        self.may_go_on = threading.Event()
        self.at_once = 0
        if not held:
            self.may_go_on.set()

    def run(self, key: str, items: Sequence[int]) -> list[int]:
        self.at_once += 1
        assert self.at_once == 1, "two batches at once"
        self.batches.append((key, list(items)))
        self.began.set()
        assert self.may_go_on.wait(10)
        self.at_once -= 1
        if 13 in items:
            raise ValueError("13")
        return [2 * item for item in items]


def _started(batcher: Batcher[str, int, int], model: Model, pool: ThreadPoolExecutor) -> list[Future[int]]:
    """One call at work and seven that wait behind it."""
    first = pool.submit(batcher, "a", 1)
    assert model.began.wait(10)
    others = [pool.submit(batcher, "b" if item == 5 else "a", item) for item in range(2, 9)]
    while len(batcher._waiting) < 7:
        threading.Event().wait(0.001)
    return [first, *others]


def test_what_waits_behind_a_batch_is_the_next_batch() -> None:
    model = Model()
    batcher = Batcher(model.run, 4)
    with ThreadPoolExecutor(8) as pool:
        calls = _started(batcher, model, pool)
        model.may_go_on.set()
        assert [call.result(10) for call in calls] == [2, 4, 6, 8, 10, 12, 14, 16]
    assert model.batches[0] == ("a", [1])
    assert sorted(item for _, items in model.batches for item in items) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [items for key, items in model.batches if key == "b"] == [[5]]
    assert max(len(items) for _, items in model.batches) == 4
    assert len(model.batches) == 4


def test_a_failure_is_that_of_its_batch_alone() -> None:
    model = Model(held=False)
    batcher = Batcher(model.run, 4)
    with pytest.raises(ValueError, match="13"):
        batcher("a", 13)
    assert batcher("a", 4) == 8


def test_a_lone_call_runs_at_once_on_its_own_thread() -> None:
    threads: list[int] = []

    def run(_: str, items: Sequence[int]) -> Sequence[int]:
        threads.append(threading.get_ident())
        return items

    assert Batcher(run, 8)("a", 7) == 7
    assert threads == [threading.get_ident()]
