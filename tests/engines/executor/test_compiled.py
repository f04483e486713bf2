"""Decode steps that MLX really compiles, on a tiny llama."""

from __future__ import annotations

import gc
import random
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from engines.executor import compiled
from engines.executor.compiled import CompiledStep
from engines.executor.slots import SlotBatch
from engines.executor.thread import MlxExecutor
from tests.engines.executor.test_slots import FIRST, Model, Rows, words
from tests.engines.tiny_llama import needs_mlx, write_tiny_llama

pytestmark = [
    needs_mlx,
    pytest.mark.skipif(shutil.which("g++") is None, reason="on a CPU, MLX compiles with g++"),
    pytest.mark.timeout(180),  # the first time it does so for every kernel
]

LONG = 10**6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("plain"), stops=False)


@pytest.fixture(autouse=True)
def compiling() -> Iterator[None]:
    """Tests run without otherwise."""
    import mlx.core as mx

    mx.enable_compile()
    yield
    mx.disable_compile()


class Counting:
    """Calls a model, after ``before``."""

    def __init__(self, model: Any, before: Any = None) -> None:
        self._model = model
        self._before = before
        self.layers = model.layers
        self.calls = 0

    def __call__(self, tokens: Any, cache: Any = None) -> Any:
        self.calls += 1
        if self._before is not None:
            tokens = self._before(tokens)
        return self._model(tokens, cache=cache)


async def test_rows_that_come_and_go_say_what_they_say_alone(executor: MlxExecutor, folder: Path) -> None:
    def check() -> None:
        rng = random.Random(5)
        model = Model(folder, "padded")
        rows = Rows(model.batch())
        truths: dict[int, list[int]] = {}
        for size, longest in ((1, 20), (3, 250), (4, 300), (2, 20)):
            prompts = [words(rng, rng.choice([2, 9, longest])) for _ in range(size)]
            count = rng.randint(6, 30)
            uids = rows.join(rows.prefill(prompts), count)
            truths |= {uid: model.alone(prompt, count) for uid, prompt in zip(uids, prompts, strict=True)}
            rows.steps(rng.randint(1, 4))
        rows.steps(60)
        assert rows.said == truths
        assert len(_step(rows.batch)) > 3, "several widths and lengths"

    await executor.run(check)


async def test_steps_write_the_keys_and_values_in_place(executor: MlxExecutor, folder: Path) -> None:
    """Also while the step before is still under way: not one buffer is copied."""

    def check() -> None:
        import mlx.core as mx

        batch = SlotBatch(Model(folder, "padded").model, (), pad=True)
        rows = Rows(batch)
        rows.join(rows.prefill([words(random.Random(1), 1100) for _ in range(8)]), LONG)
        rows.steps(4)
        mx.synchronize()
        mx.reset_peak_memory()
        active = mx.get_active_memory()
        rows.steps(60)
        mx.synchronize()
        one_buffer = batch.nbytes // 4  # keys or values of one of two layers
        assert mx.get_peak_memory() - active < one_buffer // 2
        assert abs(mx.get_active_memory() - active) < one_buffer // 16
        assert len(_step(batch)) > 0

    await executor.run(check)


async def test_the_models_code_runs_once_a_shape(executor: MlxExecutor, folder: Path) -> None:
    def check() -> None:
        model = Counting(Model(folder, "padded").model)
        batch = SlotBatch(model, (), pad=True)
        rows = Rows(batch)
        rows.join(rows.prefill([words(random.Random(2), 9) for _ in range(2)]), LONG)
        rows.steps(3)
        calls, shapes = model.calls, len(_step(batch))
        rows.steps(50)
        assert (model.calls, len(_step(batch))) == (calls, shapes)

    await executor.run(check)


async def test_only_so_many_functions_are_kept(
    executor: MlxExecutor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_MOST_FUNCTIONS", 2)

    def check() -> None:
        model = Model(folder, "padded")
        rows = Rows(model.batch())
        prompts = [words(random.Random(seed), 5) for seed in range(7)]
        uids: list[int] = []
        for prompt in prompts:
            uids += rows.join(rows.prefill([prompt]), 30)
            rows.steps(2)
        rows.steps(60)
        assert len(_step(rows.batch)) == 2
        assert [rows.said[uid] for uid in uids] == [model.alone(prompt, 30) for prompt in prompts]

    await executor.run(check)


async def test_a_model_that_cannot_be_compiled_decodes_as_it_is(executor: MlxExecutor, folder: Path) -> None:
    """It looks at values, or would be frozen as it was at the first step. That is told once."""

    def check() -> None:
        import mlx.core as mx

        made = Model(folder, "padded")
        turns = iter(range(LONG))

        def look(tokens: Any) -> Any:
            mx.eval(tokens)
            assert int(tokens.max()) >= 0
            return tokens

        def drift(tokens: Any) -> Any:
            return (tokens + next(turns) % 2) % 100 if tokens.shape[1] == 1 else tokens

        for before, word in ((look, "refused"), (drift, "something else")):
            batch = SlotBatch(Counting(made.model, before), (), pad=True)
            rows = Rows(batch)
            prompt = words(random.Random(3), 8)
            with capture_logs() as logs:
                (uid,) = rows.join(rows.prefill([prompt]), 10)
                rows.steps(20)
            assert [word in str(entry["event"]) for entry in logs] == [True]
            assert not _step(batch).usable
            assert len(_step(batch)) == 0
            assert before is drift or rows.said[uid] == made.alone(prompt, 10)

    await executor.run(check)


async def test_a_failed_step_loses_the_rows_and_not_the_functions(executor: MlxExecutor, folder: Path) -> None:
    def check() -> None:
        model = Model(folder, "padded")
        batch = SlotBatch(model.model, (), pad=True)
        rows = Rows(batch)
        prompt = words(random.Random(4), 8)
        rows.join(rows.prefill([prompt]), LONG)
        rows.steps(3)
        step = _step(batch)
        shape = next(reversed(step._functions))

        def fail(*_: Any) -> Any:
            raise RuntimeError("kernel")

        step._functions[shape] = fail
        with pytest.raises(RuntimeError, match="kernel"):
            batch.step()
        batch.reset()
        del step._functions[shape]
        again = rows.join(rows.prefill([prompt]), 10)
        rows.steps(20)
        assert rows.said[again[0]] == model.alone(prompt, 10)

    await executor.run(check)


async def test_the_functions_go_with_the_batch(executor: MlxExecutor, folder: Path) -> None:
    """At once, on the thread that used them: nothing is left for a collection on another."""

    def check() -> None:
        model = Counting(Model(folder, "padded").model)
        batch = SlotBatch(model, (), pad=True)
        rows = Rows(batch)
        rows.join(rows.prefill([[FIRST, FIRST, FIRST]]), LONG)
        rows.steps(3)
        gone = weakref.ref(model)
        gc.disable()
        try:
            batch.reset()
            del model, batch, rows
            assert gone() is None
        finally:
            gc.enable()

    await executor.run(check)


def _step(batch: Any) -> CompiledStep:
    step: CompiledStep = batch._compiled
    return step
