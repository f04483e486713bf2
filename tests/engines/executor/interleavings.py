"""Random insert/cancel interleavings on the real thread, as a process of its own: ``python -m
tests.engines.executor.interleavings COUNT FOLDER [pad]``. Ends with "done" and exit code 0 when every greedy reply was
what the library says alone, no result came after a cancel, and KV caches and memory were back to base.

``pad`` rounds shapes up, and joins projections, as on a GPU.
"""

from __future__ import annotations

import asyncio
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

from engines.executor.thread import MlxExecutor
from engines.llm.mlx_lm import MlxLanguageModel
from streaming.jobs import Message, Priority
from tests.engines.llm.mlx_bench import SYSTEM, Bench, said, user
from tests.engines.tiny_llama import WORDS, write_tiny_llama

_AT_ONCE = 12
_PROMPTS = 10
_MOST_TOKENS = 20
_LEAKED_BYTES = 64 * 1024
"""More than this over the base is a leak: one row's context is over 100 kB."""


class Interleavings:
    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self.bench = bench
        self.rng = rng
        self.truths: dict[tuple[str, ...], str] = {}
        self.cancelled = self.finished = 0
        self.prompts = [rng.choices(WORDS, k=rng.choice([1, 3, 12, 40])) for _ in range(_PROMPTS)]

    async def truth(self, messages: list[Message]) -> str:
        key = tuple(message.content for message in messages)
        if key not in self.truths:
            self.truths[key] = await self.bench.alone(messages, _MOST_TOKENS)
        return self.truths[key]

    async def prepare(self) -> None:
        for words in self.prompts:
            for system in ([], [SYSTEM]):
                first = [*system, user(*words)]
                reply = await self.truth(first)
                await self.truth(self.second(first, reply))

    def second(self, first: list[Message], reply: str) -> list[Message]:
        return [*first, said(" ".join(reply.split()[:2])), user("ma", "me")]

    async def call(self, name: str) -> None:
        """Up to two turns, each of which may be cut at any moment."""
        rng = self.rng
        first = [*rng.choice([[], [SYSTEM]]), user(*rng.choice(self.prompts))]
        for messages in [first, self.second(first, await self.truth(first))][: rng.randint(1, 2)]:
            limit = rng.choice([_MOST_TOKENS, _MOST_TOKENS, rng.randint(1, _MOST_TOKENS)])
            priority = rng.choice([Priority.FIRST_AUDIO, Priority.SPECULATIVE])
            epoch, reply = self.bench.ask(messages, name, priority, limit)
            words = (await self.truth(messages)).split()
            if rng.random() < 0.5:
                await reply.tokens(rng.randint(0, 8))
                self.bench.model.cancel(name, epoch)
                results = list(reply.results)
                await asyncio.sleep(0)
                assert reply.results == results, "a result after the cancel"
                assert reply.text.split() == words[: len(reply.text.split())], (messages, reply.text, words)
                self.cancelled += 1
            else:
                self.bench.model.prioritize(name, epoch)
                await reply.end()
                assert reply.text.split() == words[:limit][: len(reply.text.split())], (messages, reply.text, words)
                assert limit < _MOST_TOKENS or reply.text.split() == words, (messages, reply.text, words)
                self.finished += 1
        if rng.random() < 0.5:
            self.bench.model.forget(name)
        self.bench.model.postpone(name, 1, 0.0)

    async def run(self, count: int) -> None:
        left = iter(range(count))

        async def line() -> None:
            for number in left:
                await self.call(f"call{number}")

        await asyncio.gather(*(line() for _ in range(_AT_ONCE)))
        for number in range(count):
            self.bench.model.forget(f"call{number}")
            if number % 100 == 99:  # the inbox is bounded
                await self.bench.executor.run(lambda: None)


def _at_rest(bench: Bench) -> dict[str, int]:
    """What is held when nobody calls. On the thread."""
    import mlx.core as mx

    rows: Any = bench.rows
    loaded = rows._loaded
    return {
        "rows": len(rows._rows) + len(rows._by_uid) + len(rows._leaving),
        "open": rows.open_streams,
        "batch": len(loaded.batch) + loaded.batch.width + loaded.batch.nbytes,
        "kept": loaded.contexts.kept.nbytes + len(loaded.contexts.kept),
        "jobs": len(bench.executor.agenda),
        "active": int(mx.get_active_memory()),
    }


async def _settled(bench: Bench) -> dict[str, int]:
    await bench.executor.run(lambda: None)
    await bench.executor.run(lambda: None)
    return await bench.executor.run(partial(_at_rest, bench))


async def main(count: int, folder: Path, pad: bool) -> None:
    executor = MlxExecutor()
    model = MlxLanguageModel(write_tiny_llama(folder), executor, prefill_chunk_tokens=32, warm_s=0.0, pad=pad)
    await model.start()
    bench = Bench(model, executor)
    run = Interleavings(bench, random.Random(count))
    await run.prepare()
    await run.run(20)
    base = await _settled(bench)
    assert sum(base.values()) == base["active"], base
    await run.run(count)
    end = await _settled(bench)
    assert end["active"] - base["active"] < _LEAKED_BYTES, (base, end)
    assert end | {"active": 0} == base | {"active": 0}, (base, end)
    assert run.cancelled > count // 4
    assert run.finished > count // 4
    await model.close()
    await executor.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), "pad" in sys.argv[3:]))
    print("done")
