"""What warm-up leaves for traffic to meet first: nothing. On a GPU that would be a stall of up to seconds."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from streaming.jobs import Message, Priority
from tests.engines.kernels import recorded, told
from tests.engines.llm.mlx_bench import SYSTEM, Bench, bench, said, user
from tests.engines.tiny_llama import WORDS, needs_mlx

pytestmark = needs_mlx

CONTEXT = 700


async def _padded(checkpoint: Path) -> Bench:
    return await bench(
        checkpoint, max_context_tokens=CONTEXT, prefill_chunk_tokens=64, max_generations=8, pad=True, warm_s=600.0
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_traffic_meets_no_kernel_and_no_shape_that_warm_up_has_not_run(checkpoint: Path, seed: int) -> None:
    with recorded() as warmed:
        made = await _padded(checkpoint)
    try:
        with recorded() as met:
            await _traffic(made, random.Random(seed))
    finally:
        await made.close()
    assert told(met.seen - warmed.seen) == ""
    names = {kernel[0] for kernel in met.seen}
    assert {"scaled_dot_product_attention", "contiguous", "categorical", "get", "set", "pad"} <= names


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
