"""The mlx-lm engine's bounds."""

from __future__ import annotations

from pathlib import Path

from engines.executor.policy import Choice
from streaming.jobs import Generate, GenerationDone, Message, Priority
from tests.engines.llm.mlx_bench import ASK, PLAIN, SYSTEM, SYSTEM_TOKENS, TOKEN_BYTES, Bench, Reply, bench, said, user
from tests.engines.tiny_llama import WORDS, needs_mlx

pytestmark = needs_mlx


async def test_a_long_history_loses_its_oldest_turns_and_still_answers(checkpoint: Path) -> None:
    made = await bench(checkpoint, max_context_tokens=60)
    try:
        messages = [SYSTEM]
        for turn in range(8):
            messages.append(user(*WORDS[turn : turn + 6]))
            reply = await made.answer(messages, max_tokens=5)
            assert reply.usage.prompt_tokens <= 60
            messages.append(said(reply.text))
        assert reply.usage.prefilled_tokens < reply.usage.prompt_tokens
    finally:
        await made.close()


async def test_a_system_message_over_the_budget_fails_with_a_code(checkpoint: Path) -> None:
    made = await bench(checkpoint, max_context_tokens=15)
    try:
        reply = await made.answer([Message("system", "ba " * 30), user("ma")])
        assert reply.code == "context_too_long"
        assert (await made.answer([SYSTEM, user("ma")])).usage.prompt_tokens == SYSTEM_TOKENS + PLAIN + 1 + ASK
    finally:
        await made.close()


async def test_too_many_generations_are_refused_at_once(endless_checkpoint: Path) -> None:
    made = await bench(endless_checkpoint, max_generations=2)
    try:
        running = [made.ask([user("ma")], call, max_tokens=2000) for call in "ab"]
        _, refused = made.ask([user("ma")], "c")
        assert refused.results == []  # never from inside generate()
        assert (await refused.end()).code == "overloaded"
        made.model.cancel("a", running[0][0])
        await made.answer([user("ma")], "c")
    finally:
        await made.close()


async def test_a_long_row_makes_room_for_all_of_them_within_the_memory_for_it(endless_checkpoint: Path) -> None:
    """All rows of the batch have the room of the longest: what a row more takes is not only its own tokens."""
    most_bytes = 4096 * TOKEN_BYTES
    made = await bench(endless_checkpoint, max_kv_bytes=most_bytes, max_context_tokens=2048, max_generations=32)
    try:
        held: list[int] = []
        real = made.rows.quantum

        def quantum(choice: Choice) -> None:
            real(choice)
            held.append(made.rows._loaded.batch.nbytes)

        made.rows.quantum = quantum
        replies = [made.ask([user(*WORDS * 8)], "long", max_tokens=50)[1]]
        replies += [made.ask([user("ma")], f"c{n}", max_tokens=50)[1] for n in range(20)]
        ended = [(await reply.end()).results[-1] for reply in replies]
        assert 1 <= sum(isinstance(result, GenerationDone) for result in ended) < len(ended)
        assert 0 < max(held) <= most_bytes
        assert await made.executor.run(lambda: made.rows._loaded.batch.nbytes) == 0
    finally:
        await made.close()


async def test_impossible_requests_are_refused_with_a_code(endless: Bench) -> None:
    assert (await endless.ask([user("ma")], max_tokens=0)[1].end()).code == "invalid_request"
    epoch, first = endless.ask([user("ma")])
    twice = Reply()
    endless.model.generate(Generate("a", epoch, (user("ma"),), Priority.FIRST_AUDIO, 0.0), twice.deliver)
    assert (await twice.end()).code == "invalid_request"
    assert (await first.end()).usage.completion_tokens > 0
