"""Smart Turn with its real weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from engines import fetch
from engines.api import Pcm16
from engines.turn.smart_turn import SmartTurn
from streaming.jobs import EndOfTurnScored, ScoreEndOfTurn
from tests.models.speech import noise, say

pytestmark = pytest.mark.models

QUESTION = "What are your opening hours on Saturday morning?"


@pytest_asyncio.fixture
async def turn() -> AsyncIterator[SmartTurn]:
    detector = SmartTurn(await asyncio.to_thread(fetch.ensure, "smart-turn"))
    await detector.start()
    yield detector
    await detector.close()


async def probability(turn: SmartTurn, audio: Pcm16) -> float:
    answer: asyncio.Future[EndOfTurnScored] = asyncio.get_running_loop().create_future()
    turn.score(ScoreEndOfTurn(1, 2, 0, len(audio)), audio, answer.set_result)
    async with asyncio.timeout(30):
        scored = await answer
    assert (scored.utterance, scored.revision) == (1, 2)
    return scored.probability


async def test_a_question_sounds_finished_and_a_filler_does_not(turn: SmartTurn) -> None:
    # The model goes by melody, and a synthesiser ends any text as if it were a sentence: a filler is what even a
    # synthesised caller can sound unfinished with.
    silence = noise(0.4, 12)
    asked = await probability(turn, np.concatenate([say(QUESTION), silence]))
    thinking = await probability(turn, np.concatenate([say("So what I wanted to ask was, um"), silence]))
    assert 0.5 < asked <= 1.0
    assert 0.0 <= thinking < 0.2


async def test_only_the_last_eight_seconds_count(turn: SmartTurn) -> None:
    tail = np.concatenate([noise(8.0, 12), say(QUESTION), noise(0.2, 12)])[-128_000:]
    longer = np.concatenate([say("I was there."), tail])
    assert await probability(turn, longer) == await probability(turn, tail)
