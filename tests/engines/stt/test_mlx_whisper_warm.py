"""What warm-up leaves for clips to meet first: nothing. On a GPU that would be a stall of up to seconds."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from engines.api import Pcm16
from engines.executor.thread import MlxExecutor
from engines.stt.convert import whisper_mlx
from engines.stt.mlx_whisper_batch import DecodeBatch, Row
from engines.stt.mlx_whisper_model import WhisperModel
from engines.stt.mlx_whisper_warm import warm
from engines.stt.whisper_decoder import FRAME_SAMPLES
from streaming.jobs import INPUT_RATE_HZ
from tests.engines.kernels import Kernel, recorded, told
from tests.engines.stt.tiny_whisper import needs_mlx_whisper, write_tiny_whisper

pytestmark = needs_mlx_whisper

WINDOWS = (200, 1000, 3000)
"""Mel frames: one window of each length that a padded batch rounds up to."""
MOST_ROWS = 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = (tmp_path_factory.mktemp(name) for name in ("ct2", "mlx"))
    whisper_mlx(write_tiny_whisper(source), out)
    return out


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    made = MlxExecutor()
    await made.start()
    yield made
    await made.close()


def audio(seconds: float, seed: int) -> Pcm16:
    """Noise that a random network hears something in."""
    return np.asarray(np.random.default_rng(seed).normal(0, 5000, int(seconds * INPUT_RATE_HZ)), np.int16)


def clock() -> float:
    return 0.0


async def test_clips_meet_no_kernel_and_no_shape_that_warm_up_has_not_run(
    executor: MlxExecutor, checkpoint: Path
) -> None:
    def run() -> tuple[set[Kernel], set[Kernel]]:
        with recorded() as kernels:
            model = WhisperModel(checkpoint)
            batch = DecodeBatch(model, pad=True)
            assert len(list(warm(model, batch, clock, WINDOWS, MOST_ROWS, 60.0))) == len(WINDOWS) + 4
            assert len(batch) == 0
            warmed = kernels.take()
            for seed in range(4):
                _traffic(model, batch, random.Random(seed))
            return warmed, kernels.take()

    warmed, met = await executor.run(run)
    assert told(met - warmed) == ""
    assert {"scaled_dot_product_attention", "get", "set", "pad", "concatenate", "rfft"} <= {one[0] for one in met}


def _traffic(model: WhisperModel, batch: DecodeBatch, chance: random.Random) -> None:
    """Clips of all lengths join in groups of all sizes and leave in any order."""
    here: list[Row] = []
    for _ in range(12):
        coming = chance.randint(0, MOST_ROWS - len(here))
        rows = [_row(model, chance) for _ in range(coming)]
        batch.join(rows)
        here += rows
        for _ in range(chance.choice([1, 3, 40])):
            if here:
                batch.step()
        leaving = [row for row in here if row.ended or chance.random() < 0.3]
        batch.leave(leaving)
        here = [row for row in here if row not in leaving]
    batch.leave(here)


def _row(model: WhisperModel, chance: random.Random) -> Row:
    frames = chance.choice(WINDOWS)
    seconds = chance.uniform(0.1, frames * FRAME_SAMPLES / INPUT_RATE_HZ)
    penalty = chance.choice([1.0, 1.1, 1.3])
    return Row(model.encode(audio(seconds, chance.randint(0, 5)), frames), model.prompt("en"), 60, penalty)


async def test_dead_rows_change_no_words(executor: MlxExecutor, checkpoint: Path) -> None:
    """A padded batch says what an unpadded one does."""

    def said(pad: bool) -> list[list[int]]:
        model = WhisperModel(checkpoint)
        batch = DecodeBatch(model, pad=pad)
        rows = [Row(model.encode(audio(1.5, seed), 200 + 100 * seed), model.prompt("en"), 30) for seed in range(7)]
        for some in _groups(rows):
            batch.join(some)
            batch.step()
        batch.leave(rows[2:4])
        while not all(row.ended for row in rows[:2] + rows[4:]):
            batch.step()
        return [row.tokens for row in rows]

    assert await executor.run(lambda: said(True)) == await executor.run(lambda: said(False))


def _groups(rows: list[Row]) -> Iterator[list[Row]]:
    yield rows[:3]
    yield rows[3:4]
    yield rows[4:]
