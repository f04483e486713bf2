"""What warm-up leaves for segments to meet first: nothing. On a GPU that would be a stall of a second."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engines.executor.thread import MlxExecutor
from engines.tts.kokoro_text import KokoroInput
from engines.tts.mlx_kokoro_rows import Buckets, KokoroRows
from streaming.jobs import Priority, Synthesize
from tests.engines.kernels import Kernel, recorded, told
from tests.engines.tiny_llama import needs_mlx
from tests.engines.tts.tiny_kokoro import patch_decoder, write_tiny_kokoro

pytestmark = [needs_mlx, pytest.mark.timeout(120)]

BUCKETS = Buckets((8, 16), (32, 64, 192), (1, 2, 4), id_units=64, frame_units=192)


@pytest.fixture
async def executor() -> AsyncIterator[MlxExecutor]:
    made = MlxExecutor()
    await made.start()
    yield made
    await made.close()


async def test_segments_meet_no_kernel_and_no_shape_that_warm_up_has_not_run(
    executor: MlxExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tuple[set[Kernel], set[Kernel]]:
        patch_decoder(monkeypatch)
        write_tiny_kokoro(tmp_path)
        with recorded() as kernels:
            rows = KokoroRows(executor, BUCKETS, lambda *_: None)
            rows.load(tmp_path, ["af_heart", "am_adam"])
            for shape in BUCKETS.shapes():
                rows.warm(*shape)
            warmed = kernels.take()
            for seed in range(6):
                _traffic(rows, executor, random.Random(seed))
            return warmed, kernels.take()

    warmed, met = await executor.run(run)
    assert told(met - warmed) == ""
    assert {"conv1d", "rfft", "take_along_axis", "get", "stack"} <= {kernel[0] for kernel in met}


def _traffic(rows: KokoroRows, executor: MlxExecutor, chance: random.Random) -> None:
    """Segments of all lengths, at once and alone, spoken as the agenda has them, some of them cancelled."""
    for epoch in range(4):
        for segment in range(chance.randint(1, 7)):
            call = f"{id(chance):x}-{segment}"
            inputs = [_input(chance) for _ in range(chance.choice([1, 1, 2]))]
            voice, speed = chance.choice(["af_heart", "am_adam"]), chance.choice([0.8, 1.0, 1.5])
            request = Synthesize(call, epoch, segment, "", voice, Priority.PLAYOUT, 0.0)
            rows.insert(request, speed, inputs)
            if chance.random() < 0.1:
                rows.cancel(call, epoch)
        while (choice := executor.agenda.choose(executor.now())) is not None:
            rows.quantum(choice)


def _input(chance: random.Random) -> KokoroInput:
    count = chance.randint(1, BUCKETS.max_phonemes)
    return KokoroInput((0, *(chance.randint(1, 40) for _ in range(count)), 0), count, (), ".")
