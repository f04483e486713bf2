"""Callers who talk over a reply of real models: the sound stops, and what was heard of it is known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gateway.settings import AgentSettings
from loadtest.script import Patience
from streaming import holding, turns
from tests.models.heard import was_heard
from tests.models.live import LiveGateway, dial, live_gateway, ring
from tests.models.speech import say

pytestmark = [pytest.mark.models, pytest.mark.timeout(300)]

STORY = "Tell me a story about a dog."
STOPPED_MS = 1_000.0
"""Far above the 250 ms that it takes on a quiet machine: a test may not depend on what else runs."""
UNTIL_ANSWERED = Patience(agent_turn_ms=4_000)
"""Longer than the greeting; what the agent says to the interruption need not be heard to its end."""


@pytest.fixture(autouse=True)
def no_leaks(no_leaked_tasks: None) -> None:
    """Engines start threads when they have work, not when they start: they are counted when the gateway ends."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    stories = AgentSettings(instructions="You tell long stories.", max_output_tokens=40)
    with live_gateway("embedded", {"stories": stories}) as served:
        yield served


@pytest.mark.parametrize("cut_in", ["Stop.", "Wait, one moment please."])
async def test_a_caller_who_cuts_in_is_given_silence_and_what_was_heard_is_kept(
    gateway: LiveGateway, cut_in: str
) -> None:
    # Later than the pause after a first "Once upon a time,": there the agent is silent anyway.
    report = await ring(
        gateway, STORY, agent="stories", barge_in_after_ms=3_000, barge_in_text=cut_in, patience=UNTIL_ANSWERED
    )
    told, interrupted = report.turns
    assert report.errors == []
    assert interrupted.stop_ms is None or interrupted.stop_ms <= STOPPED_MS
    record = await asyncio.to_thread(gateway.ended_call, report.call_id)
    first = next(entry for entry in record["transcript"] if entry["role"] == "assistant")
    assert first["cut"]
    assert first["text"] in (told.agent_transcript or "")
    # The word under the cut may be lost to an ear, which takes the one before it, too, for another, and goes on with a
    # guess: all that comes before them was heard.
    assert was_heard(" ".join(first["text"].split()[:-2]), told.agent_text, cut=True)
    prompt = gateway.prompts(report.call_id)[-1].messages
    kept = first["text"].rstrip(".,;:!? ")
    assert [(m.role, m.content) for m in prompt[2:3]] == [("assistant", kept + "…")]
    assert prompt[-1].role == "user"


async def test_nothing_of_an_interrupted_reply_is_sent_after_its_end(gateway: LiveGateway) -> None:
    async with dial(gateway, agent="stories") as caller:
        await caller.speak(say(STORY))
        await caller.until("response.output_audio.delta", 60)  # 1.2 s of it
        await caller.speak(say("Wait, one moment please."))
        done = await caller.until("response.done")
        response_id = done["response"]["id"]
        await caller.until("response.output_audio.delta", len(caller.of("response.output_audio.delta")) + 10)
    assert (done["response"]["status"], done["response"]["status_details"]["reason"]) == ("cancelled", "turn_detected")
    end = caller.events.index(done)
    assert {e.get("response_id") for e in caller.events[end + 1 :] if "delta" in e} - {None, response_id} != set()
    assert not [e["type"] for e in caller.events[end + 1 :] if e.get("response_id") == response_id]


@pytest.mark.parametrize("murmur", ["Yeah.", "Okay."])
async def test_a_murmur_over_a_reply_lets_it_go_on(
    gateway: LiveGateway, murmur: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The words decide, however long a busy machine takes for them.
    monkeypatch.setattr(turns, "HOLD_MS", 20_000)
    monkeypatch.setattr(holding, "HOLD_MS", 20_000)
    async with dial(gateway, agent="stories") as caller:
        await caller.speak(say(STORY))
        await caller.until("response.output_audio.delta", 60)
        await caller.speak(say(murmur))
        done = await caller.until("response.done")
    assert caller.of("input_audio_buffer.speech_started")[1:]
    assert done["response"]["status"] in ("completed", "incomplete")
    assert done["response"]["status_details"] is None or done["response"]["status_details"]["reason"] != "turn_detected"
    assert len(caller.of("response.created")) == 1
