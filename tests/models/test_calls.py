"""Whole calls with the embedded preset's real models: heard right, answered in sentences, by what was said before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gateway.settings import AgentSettings
from loadtest.measure import voiced_spans
from tests.models.heard import was_heard
from tests.models.live import PCMU, LiveGateway, dial, ears, live_gateway, read_stereo, ring, words
from tests.models.speech import say

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]

HOURS = "What are your opening hours?"
ASSISTANT = "You are a helpful assistant. Answer in one short sentence."


@pytest.fixture(autouse=True)
def no_leaks(no_leaked_tasks: None) -> None:
    """Engines start threads when they have work, not when they start: they are counted when the gateway ends."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    agents = {
        "short": AgentSettings(instructions=ASSISTANT, max_output_tokens=24),
        "long": AgentSettings(instructions="You tell long stories.", max_output_tokens=250),
    }
    with live_gateway("embedded", agents) as served:
        yield served


async def test_a_question_is_heard_and_answered_in_sentences(gateway: LiveGateway, tmp_path: Path) -> None:
    recording = tmp_path / "call.wav"
    report = await ring(gateway, HOURS, agent="default", record=recording)
    assert (report.answered, report.end_cause, report.errors) == (True, "hangup", [])
    (turn,) = report.turns
    assert words(turn.heard_text) == words(HOURS)
    transcript = turn.agent_transcript or ""
    assert len(words(transcript)) >= 3
    assert transcript.strip()[0].isupper()
    assert transcript.strip()[-1] in ".!?"
    assert was_heard(transcript, turn.agent_text)
    assert report.greeting is not None
    assert was_heard(report.greeting.agent_transcript, report.greeting.agent_text)
    caller, agent, rate_hz = read_stereo(recording)
    asked, spoken = voiced_spans(caller, rate_hz, 500), voiced_spans(agent, rate_hz, 500)
    assert len(asked) == 1
    assert spoken[0].end < asked[0].start  # the greeting
    assert asked[0].end < spoken[-1].start


async def test_the_third_prompt_holds_the_first_turn_as_it_was_heard(gateway: LiveGateway) -> None:
    said = ("My favorite color is blue.", "What is the capital of France?", "What is my favorite color?")
    report = await ring(gateway, *said, agent="short")
    assert [words(turn.heard_text) for turn in report.turns] == [words(text) for text in said]
    record = await asyncio.to_thread(gateway.ended_call, report.call_id)
    prompt = gateway.prompts(report.call_id)[-1].messages
    entries = record["transcript"]
    assert [entry["role"] for entry in entries] == ["user", "assistant"] * 3
    assert [(m.role, m.content) for m in prompt[1:]] == [(entry["role"], entry["text"]) for entry in entries[:5]]
    assert prompt[0].content == ASSISTANT
    for turn, entry in zip(report.turns, entries[1::2], strict=True):
        assert turn.agent_transcript == entry["text"]
        assert not entry["cut"]


async def test_two_callers_are_each_answered_while_the_other_is(gateway: LiveGateway) -> None:
    """The second rings while the first is being told a long story, and does not wait for its end."""
    async with dial(gateway, agent="long") as first, dial(gateway, agent="short") as second:
        await first.speak(say("Tell me a story about a dog."))
        await first.until("response.output_audio.delta")
        await second.speak(say("What is the capital of France?"))
        await second.until("response.output_audio.delta")
        assert "response.done" not in first.types()
        done = await second.until("response.done")
        assert "response.done" not in first.types()
    assert [words(text) for text in first.heard_texts()] == [words("Tell me a story about a dog.")]
    assert [words(text) for text in second.heard_texts()] == [words("What is the capital of France?")]
    assert done["response"]["status"] == "completed"
    assert "paris" in words(second.of("response.output_audio_transcript.done")[0]["transcript"])
    for caller, question in ((first, "story"), (second, "France")):
        prompt = gateway.prompts(caller.call_id)[-1].messages
        assert [question in message.content for message in prompt if message.role == "user"] == [True]


async def test_a_phone_line_is_understood_and_answered(gateway: LiveGateway) -> None:
    async with dial(gateway, agent="short", wire=PCMU) as caller:
        await caller.speak(say("What is the capital of France?"))
        done = await caller.until("response.done")
        assert words(caller.heard_texts()[0]) == words("What is the capital of France?")
        answer = done["response"]["output"][0]["content"][0]["transcript"]
        heard = await asyncio.to_thread(ears().text_of, caller.agent_audio(), PCMU.rate_hz)
    assert "paris" in words(answer)
    assert was_heard(answer, heard)
    assert np.abs(caller.agent_audio().astype(int)).max() < 32_000
