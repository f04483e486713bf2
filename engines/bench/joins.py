"""What joins, leaves, prefill and a decode step cost a batch of calls: ``python -m engines.bench.joins``.

Warm figures, on the executor's thread, of the two batches of :mod:`engines.executor.batch`: ``slots`` and mlx-lm's own
classes; ``eager`` is ``slots`` whose steps are not compiled. A join counts its stall of the others: what it takes, and
the step after it beyond a plain step. ``--separate`` leaves projections as they were loaded; else those of a GPU are
joined, as in a gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from engines.bench.random_llama import SHAPES, random_llama
from engines.executor.batch import Joining, Prompt, TokenBatch
from engines.executor.thread import MlxExecutor
from engines.llm.mlx_fused import fuse

_PROMPT_TOKENS = 128
_NEVER = 1 << 30
BATCHES = ("slots", "library")
MORE_BATCHES = ("eager",)
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""``cpu`` is the process's: on a busy machine without a GPU it is the steadier one."""
_clock_name = ["wall"]


class Measured:
    """One batch class on one model. For the MLX thread."""

    def __init__(self, model: Any, kind: str, repeats: int) -> None:
        self._model = model
        self._kind = kind
        self._repeats = repeats
        self._vocabulary = int(model.args.vocab_size)
        self._random = random.Random(7)

    def batch(self) -> TokenBatch:
        from engines.executor.library_batch import LibraryBatch
        from engines.executor.slots import SlotBatch

        if self._kind == "library":
            return LibraryBatch(self._model, ())
        return SlotBatch(self._model, (), compiled=False if self._kind == "eager" else None)

    def prompts(self, batch: TokenBatch, count: int, tokens: int) -> list[Prompt]:
        return [
            Prompt(batch.new_cache(), [self._random.randrange(self._vocabulary) for _ in range(tokens + 1)])
            for _ in range(count)
        ]

    def ready(self, batch: TokenBatch, count: int, tokens: int = _PROMPT_TOKENS) -> list[Joining]:
        """Prompts with one token left."""
        prompts = self.prompts(batch, count, tokens)
        batch.prefill(prompts, [tokens] * count)
        return [Joining(prompt, _NEVER, 0.0) for prompt in prompts]

    def filled(self, calls: int) -> TokenBatch:
        batch = self.batch()
        while len(batch) < calls:
            batch.join(self.ready(batch, min(8, calls - len(batch))))
        for _ in range(4):
            batch.step()
        return batch

    def decode(self, calls: int) -> dict[str, float]:
        batch = self.filled(calls)
        step_ms = _median_ms(batch.step, max(self._repeats * 3, 10))
        result = {"decode_step_ms": step_ms}
        for count in (1, 4, 8):
            result |= self._join(batch, count, step_ms)
        for count in (1, 4):
            if count < calls:
                result |= self._leave(batch, count, step_ms)
        return result

    def _join(self, batch: TokenBatch, count: int, step_ms: float) -> dict[str, float]:
        joins, after = [], []
        for _ in range(self._repeats + 1):
            joining = self.ready(batch, count)
            uids: list[int] = []
            joins.append(_ms(partial(_join_into, uids, batch, joining)))
            after.append(_ms(batch.step))
            batch.step()
            batch.leave(uids)
            batch.tidy()
            for _ in range(3):
                batch.step()
        return {
            f"join_{count}_ms": _median(joins[1:]),
            f"join_{count}_stall_ms": _median(
                [j + max(a - step_ms, 0.0) for j, a in zip(joins, after, strict=True)][1:]
            ),
        }

    def _leave(self, batch: TokenBatch, count: int, step_ms: float) -> dict[str, float]:
        leaves, after = [], []
        for _ in range(self._repeats + 1):
            uids = batch.join(self.ready(batch, count))
            for _ in range(4):
                batch.step()
            leaves.append(_ms(partial(batch.leave, uids)))
            after.append(_ms(batch.step))
            batch.tidy()
            for _ in range(3):
                batch.step()
        return {
            f"leave_{count}_ms": _median(leaves[1:]),
            f"leave_{count}_stall_ms": _median(
                [j + max(a - step_ms, 0.0) for j, a in zip(leaves, after, strict=True)][1:]
            ),
        }

    def prefill(self, shapes: Iterable[tuple[int, int]]) -> dict[str, float]:
        result: dict[str, float] = {}
        for count, tokens in shapes:
            batch = self.batch()
            times = []
            for _ in range(self._repeats + 1):
                prompts = self.prompts(batch, count, tokens)
                times.append(_ms(partial(batch.prefill, prompts, [tokens] * count)))
            result[f"prefill_{count}x{tokens}_ms"] = _median(times[1:])
            result[f"prefill_{count}x{tokens}_first_ms"] = round(times[0], 2)
        return result

    def clone(self, tokens: int) -> dict[str, float]:
        batch = self.batch()
        (joining,) = self.ready(batch, 1, tokens)
        return {f"clone_{tokens}_ms": _median([_ms(lambda: batch.clone(joining.prompt.cache)) for _ in range(5)])}


def measure(
    shape: str, calls: Sequence[int], kinds: Sequence[str] = BATCHES, repeats: int = 5, *, separate: bool = False
) -> dict[str, Any]:
    """The figures of a shape, by batch class. For the MLX thread."""
    import mlx.core as mx

    model = random_llama(shape)
    on_cpu = mx.default_device() == mx.cpu
    saved = 0 if separate or on_cpu else fuse(model)
    long = 64 if shape == "small" and on_cpu else 512
    result: dict[str, Any] = {
        "shape": shape,
        "device": str(mx.default_device()),
        "products_saved": saved,
        "batches": {},
    }
    for kind in kinds:
        measured = Measured(model, kind, repeats)
        figures: dict[str, Any] = measured.prefill([(1, 64), (4, 64), (8, long)]) | measured.clone(512)
        for count in calls:
            mx.reset_peak_memory()
            figures[f"calls_{count}"] = measured.decode(count) | {"peak_mb": mx.get_peak_memory() >> 20}
        result["batches"][kind] = figures
        mx.clear_cache()
    return result


async def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    executor = MlxExecutor(cache_limit_bytes=4 * 2**30)
    await executor.start()
    try:
        calls = [int(count) for count in arguments.calls.split(",")]
        kinds = arguments.batch.split(",")
        measured = partial(measure, arguments.shape, calls, kinds, arguments.repeats, separate=arguments.separate)
        return await executor.run(measured)
    finally:
        await executor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--calls", default="1,8,32", help="rows in the batch, separated by commas")
    parser.add_argument("--batch", default=",".join(BATCHES), help=f"of {', '.join((*BATCHES, *MORE_BATCHES))}")
    parser.add_argument("--separate", action="store_true", help="leave projections of one input apart")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    _clock_name[0] = arguments.clock
    result = asyncio.run(_run(arguments))
    if arguments.json:
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
        return
    for kind, figures in result["batches"].items():
        flat = {k: v for k, v in figures.items() if not isinstance(v, dict)}
        sys.stdout.write(f"{kind}: {flat}\n")
        for calls, row in figures.items():
            if isinstance(row, dict):
                sys.stdout.write(f"  {calls}: {row}\n")


def _join_into(uids: list[int], batch: TokenBatch, joining: Sequence[Joining]) -> None:
    uids += batch.join(joining)


def _ms(act: Callable[[], object]) -> float:
    clock = CLOCKS[_clock_name[0]]
    begun = clock()
    act()
    return (clock() - begun) * 1e3


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 2)


def _median_ms(act: Callable[[], object], repeats: int) -> float:
    return _median([_ms(act) for _ in range(repeats)])


if __name__ == "__main__":
    main()
