"""The KV caches of the mlx-lm engine: what a turn has to prefill."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

from streaming.jobs import Message, Priority
from tests.engines.llm.mlx_bench import (
    ASK,
    PLAIN,
    SYSTEM,
    SYSTEM_TOKENS,
    TOKEN_BYTES,
    USER,
    Bench,
    bench,
    said,
    user,
)
from tests.engines.tiny_llama import WORDS, needs_mlx

pytestmark = needs_mlx


async def test_later_turns_prefill_only_what_is_new(b: Bench) -> None:
    messages = [SYSTEM, user(*WORDS[:20])]
    first = await b.answer(messages)
    assert first.usage.prefilled_tokens == first.usage.prompt_tokens == SYSTEM_TOKENS + PLAIN + 20 + ASK
    previous = first
    for words in (("ma", "me"), ("ta", "te", "ti")):
        messages += [said(previous.text), user(*words)]
        reply = await b.answer(messages)
        assert reply.text == await b.alone(messages)
        stopped = previous.results[-1].reason == "stop"  # type: ignore[union-attr]
        cached = previous.usage.prompt_tokens + previous.usage.completion_tokens + stopped
        assert reply.usage.prefilled_tokens == reply.usage.prompt_tokens - cached
        # The end of the reply if it was cut, then: start, "user", the words, end; start, "assistant".
        assert reply.usage.prefilled_tokens == (not stopped) + PLAIN + len(words) + ASK
        previous = reply


async def test_a_reply_cut_where_it_was_heard_is_reused_up_to_there(endless: Bench) -> None:
    messages = [SYSTEM, user("ma", "me", "mi")]
    first = await endless.answer(messages)
    assert first.usage.completion_tokens >= 4
    heard = first.text.split()[:2]
    messages += [said(" ".join(heard)), user("ta")]
    second = await endless.answer(messages)
    assert second.text == await endless.alone(messages)
    assert second.usage.prefilled_tokens == second.usage.prompt_tokens - (first.usage.prompt_tokens + 2)


async def test_asking_the_same_again_computes_one_token(b: Bench) -> None:
    messages = [SYSTEM, user("ma", "me")]
    first = await b.answer(messages)
    again = await b.answer(messages)
    assert again.text == first.text
    assert (again.usage.prompt_tokens, again.usage.prefilled_tokens) == (first.usage.prompt_tokens, 1)


async def test_calls_share_the_system_message_and_nothing_else(b: Bench) -> None:
    messages = [SYSTEM, user("ma", "me")]
    assert (await b.answer(messages, "a")).usage.prefilled_tokens == SYSTEM_TOKENS + PLAIN + 2 + ASK
    reply = await b.answer(messages, "b")
    assert reply.usage.prefilled_tokens == PLAIN + 2 + ASK - USER
    assert reply.text == await b.alone(messages)


async def test_without_a_system_message_calls_share_nothing(b: Bench) -> None:
    for call in "ab":
        assert (await b.answer([user("ma", "me")], call)).usage.prefilled_tokens == PLAIN + 2 + ASK
    assert await b.executor.run(lambda: len(b.rows._loaded.contexts.shared)) == 0


async def test_what_calls_share_holds_no_word_of_a_caller(b: Bench) -> None:
    rng = random.Random(3)
    systems = [Message("system", " ".join(rng.choices(WORDS, k=6))) for _ in range(3)]
    asked = [
        b.ask([rng.choice(systems), user(*rng.choices(WORDS, k=rng.randint(1, 12)))], f"call{n}", max_tokens=6)[1]
        for n in range(24)
    ]
    for reply in asked:
        await reply.end()

    def shared() -> list[list[int]]:
        return [list(prefix) for prefix in b.rows._loaded.contexts.shared._entries]

    def lengths() -> list[int]:
        return [
            int(kv.arrays[0][0].shape[2])
            for cache in b.rows._loaded.contexts.shared._entries.values()
            for kv in cache.layers
        ]

    def allowed() -> list[list[int]]:
        words = b.rows._loaded.words
        return [words.encode([system])[:-ASK] + words.encode([user("ma")])[:USER] for system in systems]

    found = await b.executor.run(shared)
    assert sorted(found) == sorted(await b.executor.run(allowed))
    assert await b.executor.run(lengths) == [len(prefix) for prefix in found]  # nor behind the last token


async def test_a_prefix_is_dropped_for_another_and_computed_again(checkpoint: Path) -> None:
    made = await bench(checkpoint, max_kv_bytes=8 * 40 * TOKEN_BYTES)
    try:
        for n, name in enumerate("abcdabcd"):
            messages = [Message("system", " ".join(["ba", *WORDS[ord(name) :][:20]])), user("ma")]
            assert (await made.answer(messages, f"call{n}")).text == await made.alone(messages)
        assert 1 <= await made.executor.run(lambda: len(made.rows._loaded.contexts.shared)) < 4
    finally:
        await made.close()


async def test_a_cancelled_speculation_leaves_its_prefix_to_the_real_turn(endless: Bench) -> None:
    words = WORDS[:20]
    epoch, speculation = endless.ask([SYSTEM, user(*words)], priority=Priority.SPECULATIVE, max_tokens=500)
    await speculation.tokens(2)
    endless.model.cancel("a", epoch)
    messages = [SYSTEM, user(*words, "ma", "me")]
    reply = await endless.answer(messages)
    assert reply.text == await endless.alone(messages)
    assert reply.usage.prefilled_tokens == 2 + 1 + ASK  # the two words and the end of their message


class HalfWay:
    """Stops the thread inside the second prefill chunk from here on, until :attr:`go_on` is set."""

    def __init__(self, b: Bench) -> None:
        self.reached, self.go_on = asyncio.Event(), threading.Event()
        self.chunks: list[int] = []
        batch, loop = b.rows._loaded.batch, asyncio.get_running_loop()
        real = batch.prefill

        def prefill(prompts: Any, most: Any) -> list[int]:
            counts: list[int] = real(prompts, most)
            self.chunks += counts
            if len(self.chunks) == 2:
                loop.call_soon_threadsafe(self.reached.set)
                self.go_on.wait(20)
            return counts

        batch.prefill = prefill


async def test_a_prompt_cancelled_half_way_leaves_what_it_computed(b: Bench) -> None:
    half_way = HalfWay(b)
    messages = [user(*WORDS[:40])]
    epoch, lost = b.ask(messages)
    await half_way.reached.wait()
    b.model.cancel("a", epoch)
    half_way.go_on.set()
    reply = await b.answer(messages)
    assert lost.results == []
    assert half_way.chunks[:2] == [8, 8]
    assert reply.text == await b.alone(messages)
    assert reply.usage.prefilled_tokens == reply.usage.prompt_tokens - 16


async def test_a_prompt_beside_one_half_way_copies_what_that_computed(b: Bench) -> None:
    half_way = HalfWay(b)
    messages = [user(*WORDS[:40])]
    _, first = b.ask(messages, priority=Priority.PLAYOUT)
    await half_way.reached.wait()
    longer = [user(*WORDS[:41])]
    elsewhere = [Message("system", "no"), user("ma")]
    asked = [b.ask(longer)[1], b.ask(longer)[1], b.ask(elsewhere)[1]]
    half_way.go_on.set()
    for reply, prompt in zip([first, *asked], [messages, longer, longer, elsewhere], strict=True):
        await reply.end()
        assert reply.text == await b.alone(prompt)
    assert first.usage.prefilled_tokens == first.usage.prompt_tokens
    assert asked[0].usage.prompt_tokens - asked[0].usage.prefilled_tokens >= 16


async def test_a_speculation_beside_the_running_reply_copies_its_cache(endless: Bench) -> None:
    messages = [SYSTEM, user(*WORDS[:20])]
    epoch, running = endless.ask(messages, max_tokens=2000)
    await running.tokens(3)
    heard = running.text.split()[:2]
    asked = [*messages, said(" ".join(heard)), user("ta")]
    second = await endless.answer(asked)
    assert second.text == await endless.alone(asked)
    assert second.usage.prefilled_tokens == second.usage.prompt_tokens - (SYSTEM_TOKENS + PLAIN + 20 + ASK + 2)
    so_far = running.text
    endless.model.cancel("a", epoch)
    assert (await endless.alone(messages, max_tokens=2000)).startswith(so_far)


async def test_a_forgotten_call_keeps_nothing(endless: Bench) -> None:
    messages = [SYSTEM, user("ma")]
    await endless.answer(messages)
    assert await endless.kept_tokens("a") > 0
    _, reply = endless.ask(messages, max_tokens=2000)
    await reply.tokens(1)
    endless.model.forget("a")
    count = len(reply.results)
    assert await endless.kept_tokens("a") == 0
    assert (await endless.answer(messages)).usage.prefilled_tokens == PLAIN + 1 + ASK - USER  # but for the shared
    assert len(reply.results) == count
