"""The loudness fake."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from engines.vad.scripted import EnergyVad


def tone(dbfs: float, samples: int) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """A square wave, whose RMS is its peak."""
    level = 32768 * 10 ** (dbfs / 20)
    return np.where(np.arange(samples) % 32 < 16, level, -level).astype(np.int16)


@pytest.mark.parametrize(("dbfs", "probability"), [(-44.0, 1.0), (-46.0, 0.0), (-6.0, 1.0), (-90.0, 0.0)])
async def test_loud_is_speech(dbfs: float, probability: float) -> None:
    vad = EnergyVad()
    await vad.start()
    scores: list[tuple[float, int]] = []
    stream = vad.open(lambda *score: scores.append(score))
    stream.feed(tone(dbfs, 1100))
    assert scores == [], "delivered before feed returned"
    assert stream.backlog_samples == 1100
    await asyncio.sleep(0)
    assert scores == [(probability, 512), (probability, 1024)]
    assert stream.backlog_samples == 76
    await vad.close()


async def test_pieces_make_the_same_windows_and_close_silences() -> None:
    vad = EnergyVad()
    scores: list[tuple[float, int]] = []
    stream = vad.open(lambda *score: scores.append(score))
    audio = np.concatenate([tone(-90.0, 512), tone(-6.0, 512)])
    for start in range(0, 1024, 100):
        stream.feed(audio[start : start + 100])
    await asyncio.sleep(0)
    assert scores == [(0.0, 512), (1.0, 1024)]
    stream.feed(audio)
    stream.close()
    stream.feed(audio)
    await asyncio.sleep(0)
    assert len(scores) == 2
