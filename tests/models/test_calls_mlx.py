"""Whole calls with SmolLM2 on MLX through the executor: what was said before is not computed again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gateway.settings import AgentSettings
from tests.models.live import LiveGateway, live_gateway, ring, words

pytestmark = [pytest.mark.models, pytest.mark.slow, pytest.mark.timeout(300)]

INSTRUCTIONS = (
    "You are a helpful assistant on the telephone. Answer in one short and friendly sentence. "
    "The shop that you work for sells bread, cakes and pastries, and opens from Tuesday to Sunday. "
) * 3
"""Long enough for a prompt that is prefilled anew to show."""
NEW_TOKENS = 40
"""A question, the roles around it, and the last tokens of the answer before: the new text of a turn, generously."""


@pytest.fixture(autouse=True)
def no_leaks(no_leaked_tasks: None) -> None:
    """Engines start threads when they have work, not when they start: they are counted when the gateway ends."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with live_gateway("mlx-cpu", {"short": AgentSettings(instructions=INSTRUCTIONS, max_output_tokens=24)}) as served:
        yield served


async def test_three_turns_prefill_little_more_than_their_own_words(gateway: LiveGateway) -> None:
    said = ("My favorite color is blue.", "What is the capital of France?", "What is my favorite color?")
    report = await ring(gateway, *said, agent="short")
    assert [words(turn.heard_text) for turn in report.turns] == [words(text) for text in said]
    assert all(turn.agent_transcript for turn in report.turns)
    record = await asyncio.to_thread(gateway.ended_call, report.call_id)
    first, *later = record["turns"]
    assert first["prompt_tokens"] > 3 * NEW_TOKENS
    for turn in later:
        assert turn["prompt_tokens"] > first["prompt_tokens"]
        assert 0 < turn["prefilled_tokens"] <= NEW_TOKENS
    prompt = gateway.prompts(report.call_id)[-1].messages
    assert [(m.role, m.content) for m in prompt[1:]] == [(e["role"], e["text"]) for e in record["transcript"][:5]]
