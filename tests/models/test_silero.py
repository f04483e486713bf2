"""Silero VAD with its real weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from engines import fetch
from engines.api import Pcm16
from engines.onnx import open_session
from engines.vad.silero import CONTEXT_SAMPLES, WINDOW_SAMPLES, SileroVad
from tests.models.speech import noise, say

pytestmark = pytest.mark.models


@pytest_asyncio.fixture
async def vad() -> AsyncIterator[SileroVad]:
    detector = SileroVad(await asyncio.to_thread(fetch.ensure, "silero-vad"))
    await detector.start()
    yield detector
    await detector.close()


async def scores_of(vad: SileroVad, audio: Pcm16, block_samples: int = 320) -> list[float]:
    wanted = len(audio) // WINDOW_SAMPLES
    scores: list[float] = []
    done = asyncio.Event()

    def deliver(probability: float, end_samples: int) -> None:
        scores.append(probability)
        assert end_samples == len(scores) * WINDOW_SAMPLES
        if len(scores) == wanted:
            done.set()

    stream = vad.open(deliver)
    for start in range(0, len(audio), block_samples):
        stream.feed(audio[start : start + block_samples])
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await done.wait()
    stream.close()
    return scores


def alone(audio: Pcm16) -> list[float]:
    """The same audio through a session of its own, a window at a time, with nothing of ours but the file."""
    session = open_session(fetch.ensure("silero-vad") / "silero_vad.onnx")
    state: Any = np.zeros((2, 1, 128), np.float32)
    context: Any = np.zeros(CONTEXT_SAMPLES, np.float32)
    scores = []
    for start in range(0, len(audio) - WINDOW_SAMPLES + 1, WINDOW_SAMPLES):
        window = audio[start : start + WINDOW_SAMPLES].astype(np.float32) / 32768
        row = np.concatenate([context, window])[np.newaxis]
        probability, state = session.run(None, {"input": row, "state": state, "sr": np.array(16_000, np.int64)})
        context = window[-CONTEXT_SAMPLES:]
        scores.append(float(probability[0, 0]))
    return scores


async def test_calls_in_shared_batches_score_as_each_would_alone(vad: SileroVad) -> None:
    lines = ["What are your opening hours?", "I would like to book a table for four.", "No.", "Good morning, hello."]
    calls = [np.concatenate([noise(0.3, 20, n), say(line), noise(0.3, 20, n)]) for n, line in enumerate(lines)]
    got = await asyncio.gather(*(scores_of(vad, audio, 320 + 64 * n) for n, audio in enumerate(calls)))
    assert vad.snapshot().largest_batch > 1
    for audio, scores in zip(calls, got, strict=True):
        np.testing.assert_allclose(scores, alone(audio), atol=1e-4)


async def test_speech_is_told_from_quiet_and_noise(vad: SileroVad) -> None:
    quiet, loud = noise(2.0, 10), noise(2.0, 1500, seed=1)
    speech = say("My name is Eleanor, and I am calling about the delivery on Thursday.")
    assert max(await scores_of(vad, quiet)) < 0.3
    assert max(await scores_of(vad, loud)) < 0.5
    spoken = np.array(await scores_of(vad, speech))
    assert np.mean(spoken > 0.5) > 0.7
