"""A whole spoken turn by phone: baresip asks, real models answer, and both are judged by what the other heard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.api import Pcm16
from gateway.settings import AgentSettings
from loadtest.hearing import hear_spans
from loadtest.measure import Span
from tests.e2e.baresip_peer import needs_baresip, phone
from tests.models.heard import was_heard
from tests.models.live import ANSWER_S, LiveGateway, ears, live_gateway
from tests.models.speech import resampled, say

pytestmark = [pytest.mark.e2e, pytest.mark.models, pytest.mark.timeout(300), needs_baresip]

GREETING = "Hello, how can I help you?"
QUESTION = "What are your opening hours?"
RATE_HZ = 8_000
GREETING_S, REST_S = 4.0, 60.0
"""The caller is silent for so long before the question, and after it."""
DESK = AgentSettings(
    instructions="You are a helpful assistant. Answer in one short sentence.",
    greeting=GREETING,
    max_output_tokens=24,
)


@pytest.fixture(autouse=True)
def no_leaks(no_leaked_tasks: None) -> None:
    """Engines start threads when they have work, not when they start: they are counted when the gateway ends."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    sip = {"enabled": True, "port": 0, "codecs": ["g722", "pcmu"]}
    with live_gateway("embedded", {"desk": DESK}, sip=sip) as served:
        yield served


def silence(seconds: float) -> Pcm16:
    return np.zeros(int(seconds * RATE_HZ), np.int16)


def calls(gateway: LiveGateway) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = json.loads(gateway.get("/v1/calls"))["data"]
    return shown


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(ANSWER_S):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 (it is asked over HTTP)
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("codec", ["pcmu", "g722"])
async def test_a_question_is_heard_and_its_answer_too(gateway: LiveGateway, tmp_path: Path, codec: str) -> None:
    question = resampled(say(QUESTION), 16_000, RATE_HZ)
    said = np.concatenate((silence(GREETING_S), question, silence(REST_S)))
    async with phone(tmp_path, said, codec) as caller:
        await caller.do("dial", f"sip:desk@127.0.0.1:{gateway.sip_port}")
        await caller.until("CALL_ESTABLISHED")
        (call,) = [call["id"] for call in await asyncio.to_thread(calls, gateway) if call["state"] != "ended"]

        def answered() -> bool:
            shown = json.loads(gateway.get(f"/v1/calls/{call}"))
            return len(shown["transcript"]) == 3 and shown["phase"] == "waiting"

        await until(answered)
        await caller.do("hangup")
        await caller.until("CALL_CLOSED")
    record = await asyncio.to_thread(gateway.ended_call, call)
    greeting, asked, answer = record["transcript"]
    assert [entry["role"] for entry in (greeting, asked, answer)] == ["assistant", "user", "assistant"]
    assert was_heard(QUESTION, asked["text"])
    assert not answer["cut"]
    heard = caller.heard()
    middle = int(GREETING_S * RATE_HZ) + len(question) // 2
    spans = [Span(0, middle), Span(middle, len(heard))]
    heard_greeting, heard_answer = await asyncio.to_thread(hear_spans, heard, RATE_HZ, spans, ears())
    assert was_heard(GREETING, heard_greeting)
    assert was_heard(answer["text"], heard_answer)
    assert (record["quality"]["lost"], record["quality"]["late"]) == (0, 0)
