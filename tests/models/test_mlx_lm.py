"""SmolLM2 on mlx-lm with real weights: three turns of one call, and two calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engines import fetch
from engines.executor.thread import MlxExecutor
from engines.llm.convert import smollm2_mlx
from engines.llm.mlx_lm import MlxLanguageModel
from streaming.jobs import Generate, Generation, GenerationDone, Message, Priority, Token, Usage
from tests.engines.tiny_llama import needs_mlx

pytestmark = [
    needs_mlx,
    pytest.mark.models,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

SYSTEM = Message("system", "You answer questions about geography in one short sentence.")
QUESTIONS = ("What is the capital of France?", "And what is the capital of Italy?", "Thank you. Which one is bigger?")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[MlxLanguageModel]:
    gguf = fetch.ensure("smollm2-gguf")
    executor = MlxExecutor()
    made = MlxLanguageModel(fetch.derived("smollm2-mlx-float32-1", lambda into: smollm2_mlx(gguf, into)), executor)
    await made.start()
    yield made
    await made.close()
    await executor.close()


async def answer(model: MlxLanguageModel, call: str, epoch: int, messages: list[Message]) -> tuple[str, Usage]:
    ended: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
    pieces: list[str] = []

    def deliver(result: Generation) -> None:
        if isinstance(result, Token):
            pieces.append(result.text)
        else:
            ended.set_result(result)

    deadline = asyncio.get_running_loop().time() + 1.0
    model.generate(Generate(call, epoch, tuple(messages), Priority.FIRST_AUDIO, deadline, max_tokens=24), deliver)
    result = await ended
    assert isinstance(result, GenerationDone), result
    return "".join(pieces), result.usage


async def test_three_turns_make_sense_and_prefill_only_what_is_new(model: MlxLanguageModel) -> None:
    messages = [SYSTEM]
    counts: list[Usage] = []
    texts: list[str] = []
    for epoch, question in enumerate(QUESTIONS):
        messages.append(Message("user", question))
        text, usage = await answer(model, "a", epoch, messages)
        # What a caller who interrupts would have heard: all but the last word.
        messages.append(Message("assistant", text.rsplit(" ", 1)[0]))
        counts.append(usage)
        texts.append(text)
        print(f"turn {epoch + 1}: {usage} {text!r}")
    assert "Paris" in texts[0]
    # All of it, or what follows the instructions if another test's call had them read already.
    assert 10 <= counts[0].prefilled_tokens <= counts[0].prompt_tokens
    for usage in counts[1:]:
        # The question (10 tokens at most), the template around it, and the token or two at the cut.
        assert usage.prefilled_tokens <= 24 < usage.prompt_tokens
    model.forget("a")


async def test_two_calls_at_once_each_get_their_own_answer(model: MlxLanguageModel) -> None:
    asked = [[SYSTEM, Message("user", QUESTIONS[0])], [SYSTEM, Message("user", "What is the capital of Italy?")]]
    together = await asyncio.gather(*(answer(model, f"c{n}", 1, asked[n]) for n in range(2)))
    alone = [await answer(model, f"d{n}", 1, asked[n]) for n in range(2)]
    assert [text for text, _ in together] == [text for text, _ in alone]
    assert "Paris" in together[0][0]
    assert "Rome" in together[1][0]
