"""What warm-up leaves for traffic to meet first: nothing. On a GPU that would be a stall of up to seconds."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engines.executor.library_batch import LibraryBatch
from engines.executor.prefill import PADDED_ROWS, _alike, _cut, fits, padded_tokens
from engines.executor.rows_kv import power_of_two
from engines.executor.slots import SlotBatch
from engines.executor.thread import MlxExecutor
from engines.llm.mlx_turnover import Turnover
from engines.llm.mlx_warm import Extent, warm
from streaming.jobs import Message, Priority
from tests.engines.kernels import recorded, told
from tests.engines.llm.mlx_bench import SYSTEM, Bench, bench, said, user
from tests.engines.tiny_llama import WORDS, needs_mlx

pytestmark = needs_mlx

CONTEXT = 700


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    made = MlxExecutor()
    await made.start()
    yield made
    await made.close()


async def _padded(checkpoint: Path) -> Bench:
    return await bench(
        checkpoint, max_context_tokens=CONTEXT, prefill_chunk_tokens=64, max_generations=8, pad=True, warm_s=600.0
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_traffic_meets_no_kernel_and_no_shape_that_warm_up_has_not_run(checkpoint: Path, seed: int) -> None:
    with recorded() as kernels:
        made = await _padded(checkpoint)
        warmed, compiled = kernels.take(), await _compiled(made)
        try:
            await _traffic(made, random.Random(seed))
            met, compiled_by_then = kernels.take(), await _compiled(made)
        finally:
            await made.close()
    assert told(met - warmed) == ""
    assert compiled_by_then == compiled
    names = {kernel[0] for kernel in met}
    assert {"scaled_dot_product_attention", "contiguous", "categorical", "get", "set", "pad"} <= names


@pytest.mark.parametrize("kind", ["padded", "plain", "library"])
async def test_a_turnover_leaves_an_empty_batch(executor: MlxExecutor, checkpoint: Path, kind: str) -> None:
    def live() -> tuple[int, int]:
        from mlx_lm.utils import load

        model, _ = load(str(checkpoint))
        batch = LibraryBatch(model, ()) if kind == "library" else SlotBatch(model, (), pad=kind == "padded")
        for most in (1, 2, 8):
            Turnover(batch, [5, 6, 7], most).live()
        return len(batch), batch.nbytes

    assert await executor.run(live) == (0, 0)


async def test_a_spent_budget_leaves_out_the_longest_contexts(executor: MlxExecutor, checkpoint: Path) -> None:
    """And only those, so that most calls still meet no stall."""

    def lengths(budget_s: float) -> tuple[set[int], int]:
        import mlx.core as mx
        from mlx_lm.utils import load

        model, _ = load(str(checkpoint))
        ticks = itertools.count()
        with recorded() as kernels:
            timed = warm(
                SlotBatch(model, (), pad=True),
                [5, 6, 7],
                lambda: float(next(ticks)),
                Extent(4, 64, 8, 700, 2**30),
                budget_s,
                compiles=True,
            )
            seen = kernels.take()
        mx.synchronize()
        return {kernel[2][1][2] for kernel in seen if kernel[0] == "scaled_dot_product_attention"}, len(timed)

    everything, _ = await executor.run(lambda: lengths(1e9))
    least, timed = await executor.run(lambda: lengths(0.0))
    assert everything == {256, 512, 768, 1024}
    assert least == {256}
    assert timed >= 3, "the cost of a step at each width is known in any case"


def test_a_padded_pass_is_cut_to_what_was_warmed() -> None:
    chance = random.Random(5)
    for _ in range(500):
        counts = [chance.choice([0, 1, 9, 40, 130, 300, 512]) for _ in range(chance.randint(1, 8))]
        groups = _cut(_alike(counts), counts)
        assert sorted(place for group in groups for place in group) == [n for n, count in enumerate(counts) if count]
        for group in groups:
            rows = power_of_two(len(group))
            assert rows in PADDED_ROWS
            assert fits(rows, padded_tokens(max(counts[place] for place in group)))


async def _compiled(b: Bench) -> set[tuple[int, int, int]]:
    """Width, capacity and length read of the steps made one function."""
    return await b.executor.run(lambda: set(b.rows._loaded.batch._compiled._functions))


async def _traffic(b: Bench, chance: random.Random) -> None:
    """Calls of several turns: many at once and alone, short and long, speculated, forked, cancelled and forgotten."""
    calls = [f"call-{n}" for n in range(6)]
    histories: dict[str, list[Message]] = {call: [_system(chance)] for call in calls}
    for _ in range(12):
        turn = [_turn(b, call, histories[call], chance) for call in chance.sample(calls, chance.randint(1, len(calls)))]
        await asyncio.gather(*turn)
        if chance.random() < 0.3:
            gone = chance.choice(calls)
            b.model.forget(gone)
            histories[gone] = [_system(chance)]


def _system(chance: random.Random) -> Message:
    return SYSTEM if chance.random() < 0.7 else Message("system", " ".join(chance.choices(WORDS, k=9)))


async def _turn(b: Bench, call: str, history: list[Message], chance: random.Random) -> None:
    history.append(user(*chance.choices(WORDS, k=chance.choice([1, 5, 30, 90]))))
    temperature = chance.choice([0.0, 0.8])
    most = chance.choice([1, 4, 40, 300])
    if chance.random() < 0.4:  # speculated on less, while another may still speak
        speculation, _ = b.ask(history[:-1] or history, call, max_tokens=most, priority=Priority.SPECULATIVE)
        await asyncio.sleep(chance.random() * 0.02)
        b.model.cancel(call, speculation)
    epoch, reply = b.ask(history, call, max_tokens=most, temperature=temperature)
    if chance.random() < 0.5:
        await reply.tokens(chance.randint(1, 5))
        if not reply.ended:
            if chance.random() < 0.5:  # the next speculation begins beside the reply
                beside, _ = b.ask([*history, user("ma")], call, max_tokens=3, priority=Priority.SPECULATIVE)
                await asyncio.sleep(chance.random() * 0.02)
                b.model.cancel(call, beside)
            b.model.cancel(call, epoch)
    else:
        await reply.end()
    history.append(said(reply.text or "ba"))
