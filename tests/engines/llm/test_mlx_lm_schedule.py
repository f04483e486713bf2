"""How the mlx-lm engine shares the thread: whose quantum comes when, and whose thread it is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from engines.executor.policy import Choice, Key
from engines.executor.workload import EVICTED
from streaming.jobs import Priority, Token
from tests.engines.llm.mlx_bench import SYSTEM, Bench, bench, user
from tests.engines.tiny_llama import WORDS, needs_mlx

pytestmark = needs_mlx


class Log:
    """Every quantum from here on, and when each request reached the thread."""

    def __init__(self, b: Bench) -> None:
        self.events: list[tuple[str, tuple[str, ...]]] = []
        quantum, insert = b.rows.quantum, b.rows.insert

        def logged(choice: Choice) -> None:
            self.events.append((choice.kind.name, tuple(key.call for key in choice.keys)))
            quantum(choice)

        def inserted(request: Any) -> None:
            self.events.append(("insert", (request.call,)))
            insert(request)

        b.rows.quantum, b.rows.insert = logged, inserted

    def after(self, call: str) -> list[tuple[str, tuple[str, ...]]]:
        """What followed the call's insert."""
        return self.events[self.events.index(("insert", (call,))) + 1 :]


async def test_beside_a_reply_of_500_tokens_a_newcomers_first_quantum_is_the_next(endless: Bench) -> None:
    """So it waits for the quantum in flight at most, whoever else decodes."""
    long = [endless.ask([user("ma")], f"a{n}", max_tokens=500)[1] for n in range(3)]
    for reply in long:
        await reply.tokens(5)
    log = Log(endless)
    for n in range(4):
        await endless.answer([SYSTEM, user(*WORDS[: 20 + n])], f"b{n}", max_tokens=3)
        step, calls = log.after(f"b{n}")[0]
        assert (step, calls) == ("start", (f"b{n}",))
    assert not any(reply.ended for reply in long)


async def test_prompts_that_come_together_are_prefilled_and_join_together(endless_checkpoint: Path) -> None:
    made = await bench(endless_checkpoint, prefill_chunk_tokens=256)
    try:
        gate = threading.Event()
        held = asyncio.create_task(made.executor.run(lambda: gate.wait(20)))
        await asyncio.sleep(0)
        log = Log(made)
        asked = [made.ask([user(*WORDS[: 5 + n])], f"c{n}", max_tokens=4)[1] for n in range(6)]
        gate.set()
        await held
        for n, reply in enumerate(asked):
            await reply.end()
            assert reply.text == await made.alone([user(*WORDS[: 5 + n])], 4)
        names = [name for name, _ in log.events if name != "insert"]
        assert names.count("start") == names.count("prefill") == 1
        assert names.count("decode") <= 4 + 2
    finally:
        await made.close()


async def test_a_prompt_longer_than_a_quantum_comes_in_chunks(b: Bench) -> None:
    log = Log(b)
    messages = [user(*WORDS[:40])]
    reply = await b.answer(messages)
    assert reply.text == await b.alone(messages)
    assert [name for name, _ in log.events].count("prefill") == -(-(reply.usage.prompt_tokens - 1) // 8)


async def test_postponed_words_are_due_later_and_a_speculations_are_not_due_at_all(endless: Bench) -> None:
    rows, agenda = endless.rows, endless.executor.agenda
    guess, speculation = endless.ask([user("me")], "b", Priority.SPECULATIVE, max_tokens=4000)
    await speculation.tokens(1)  # first: it would wait for a live one to end
    epoch, reply = endless.ask([user("ma")], "a", max_tokens=4000)
    await reply.tokens(1)

    def job(call: str, epoch: int) -> tuple[Priority, float]:
        found = agenda._jobs[Key(rows.name, call, epoch)]
        return found.priority, found.deadline

    until = endless.executor.now() + 1.5
    endless.model.postpone("a", epoch, until)
    endless.model.postpone("b", guess, until)
    endless.model.postpone("a", 999, until)
    assert await endless.executor.run(partial(job, "a", epoch)) == (Priority.DECODE, until)
    assert (await endless.executor.run(partial(job, "b", guess)))[0] is Priority.SPECULATIVE
    endless.model.prioritize("b", guess)
    assert (await endless.executor.run(partial(job, "b", guess)))[0] is Priority.FIRST_AUDIO
    endless.model.postpone("b", guess, until)
    assert await endless.executor.run(partial(job, "b", guess)) == (Priority.DECODE, until)


async def test_jobs_that_lose_their_place_are_told_and_others_go_on(endless: Bench) -> None:
    _, kept = endless.ask([user("ma")], "a", max_tokens=40)
    epoch, evicted = endless.ask([user("me")], "b", max_tokens=2000)
    await kept.tokens(1)
    await evicted.tokens(1)

    def evict() -> None:
        rows = endless.rows
        key = Key(rows.name, "b", epoch)
        endless.executor.agenda.drop(key)
        rows.abandon(Choice(rows._step, (key,)), EVICTED)

    await endless.executor.run(evict)
    assert (await evicted.end()).code == "overloaded"
    assert (await kept.end()).text == await endless.alone([user("ma")], 40)


async def test_contexts_beyond_the_memory_for_them_are_refused_and_caches_make_way(endless_checkpoint: Path) -> None:
    made = await bench(endless_checkpoint, max_kv_bytes=450 * 512, max_generations=4)
    try:
        for n in range(8):  # caches at rest fill the memory and are dropped for new ones
            assert (await made.answer([user(*WORDS[:40])], f"c{n}", max_tokens=20)).usage.completion_tokens == 20
        assert await made.executor.run(lambda: made.rows.snapshot()["kept_evicted"]) > 0
        _, running = made.ask([user("ma")], "a", max_tokens=100)
        await running.tokens(1)
        _, refused = made.ask([user("ma")], "b", max_tokens=400)
        assert (await refused.end()).code == "overloaded"
        assert await made.executor.run(lambda: made.rows.snapshot()["refused_for_memory"]) == 1
        assert (await running.end()).usage.completion_tokens == 100
    finally:
        await made.close()


def _watch_mlx(seen: set[str]) -> Callable[[], None]:
    """Note the thread of every call of a function of ``mlx.core`` from here on. Returns what undoes it."""
    import mlx.core as mx

    real = {name: found for name, found in vars(mx).items() if type(found).__name__ == "nb_func"}
    assert len(real) > 200

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **settings: Any) -> Any:
            seen.add(threading.current_thread().name)
            return function(*args, **settings)

        return call

    for name, function in real.items():
        setattr(mx, name, watched(function))

    def undo() -> None:
        for name, function in real.items():
            setattr(mx, name, function)

    return undo


async def test_mlx_is_touched_on_its_thread_alone(endless_checkpoint: Path) -> None:
    made = await bench(endless_checkpoint)
    seen: set[str] = set()
    undo = await made.executor.run(partial(_watch_mlx, seen))
    try:
        epoch, reply = made.ask([SYSTEM, user("ma", "me")], "a", max_tokens=2000)
        other = made.ask([SYSTEM, user("mi")], "b", Priority.SPECULATIVE, max_tokens=20)[1]
        await reply.tokens(3)
        made.model.postpone("a", epoch, 0.0)
        made.model.cancel("a", epoch)
        await other.end()
        await made.answer([SYSTEM, user("ma", "me", "mo")], "a")
        made.model.forget("a")
        assert made.executor.healthy
        assert made.executor.snapshot.overruns >= 0
        assert all(isinstance(result.text, str) for result in reply.results if isinstance(result, Token))
        await made.close()
        assert seen == {"mlx-executor"}
        import mlx.core as mx

        mx.get_active_memory()  # so that this test is known to see it
        assert seen == {"mlx-executor", threading.current_thread().name}
    finally:
        undo()
        await made.close()
