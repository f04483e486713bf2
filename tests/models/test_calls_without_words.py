"""Silence, coughs, noise and music on the line of real models: no turn, no words, no reply, and the call stays well."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gateway.settings import AgentSettings
from tests.models.live import LiveGateway, dial, live_gateway, words
from tests.models.sounds import WORDLESS
from tests.models.speech import say

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]

QUESTION = "What is the capital of France?"
INSTRUCTIONS = "You are a helpful assistant. Answer in one short sentence."
OF_A_TURN = (
    "input_audio_buffer.committed",
    "conversation.item.input_audio_transcription.delta",
    "conversation.item.input_audio_transcription.completed",
    "conversation.item.added",
    "response.created",
    "error",
)


@pytest.fixture(autouse=True)
def no_leaks(no_leaked_tasks: None) -> None:
    """Engines start threads when they have work, not when they start: they are counted when the gateway ends."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    with live_gateway("embedded", {"short": AgentSettings(instructions=INSTRUCTIONS, max_output_tokens=16)}) as served:
        yield served


@pytest.mark.parametrize("agent", [None, "short"], ids=["plain client", "agent"])
async def test_sounds_without_words_are_no_turn(gateway: LiveGateway, agent: str | None) -> None:
    """All sounds at once, each on a call of its own; then each caller asks something, a few at a time."""
    asking = asyncio.Semaphore(5)
    results = await asyncio.gather(*(_call(gateway, agent, sound, asking) for sound in WORDLESS))
    assert {sound: found for sound, found in zip(WORDLESS, results, strict=True) if found} == {}


async def _call(gateway: LiveGateway, agent: str | None, sound: str, asking: asyncio.Semaphore) -> list[str]:
    """What was wrong with it."""
    session = None if agent else {"instructions": INSTRUCTIONS, "max_output_tokens": 16}
    async with dial(gateway, agent=agent, session=session) as caller:
        await caller.speak(WORDLESS[sound]())
        await asyncio.sleep(1.5)  # for a turn to be made of it
        problems = [f"{event['type']} {event.get('transcript', '')}" for event in caller.events if _is_of_a_turn(event)]
        if problems:
            return problems
        async with asking:
            await caller.speak(say(QUESTION))
            await caller.until("response.output_audio.delta")
        heard = [words(text) for text in caller.heard_texts()]
        return [] if heard == [words(QUESTION)] else [f"heard {heard}"]


def _is_of_a_turn(event: dict[str, object]) -> bool:
    return event["type"] in OF_A_TURN
