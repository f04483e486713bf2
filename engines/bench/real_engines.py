"""Speech-to-text, a language model and text-to-speech on one real executor, of real shapes and random weights."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engines.bench import random_kokoro, random_whisper
from engines.bench.kokoro import REAL_SIZE
from engines.bench.random_kokoro import RandomKokoro
from engines.bench.random_llama import random_checkpoint
from engines.bench.random_whisper import RandomWhisper, write_random_whisper
from engines.bench.stalls import Stalls, watched
from engines.bench.watched import Ledger, Watched
from engines.executor.thread import MlxExecutor
from engines.llm.mlx_lm import MlxLanguageModel
from engines.stt.whisper_decoder import FINAL_PAD_FRAMES

WINDOW_S = 4 + FINAL_PAD_FRAMES // 100
"""What an utterance of four seconds is encoded in."""


@dataclass(frozen=True, slots=True)
class Shape:
    llm: str
    whisper: dict[str, int]
    kokoro: dict[str, Any]


SHAPES = {
    "3b": Shape("3b", random_whisper.TURBO, REAL_SIZE),
    "tiny": Shape("tiny", random_whisper.NARROW, random_kokoro.NARROW),
}


@dataclass(slots=True)
class RealEngines:
    executor: MlxExecutor
    stt: RandomWhisper
    llm: MlxLanguageModel
    tts: RandomKokoro
    started_s: dict[str, float]
    """What loading and warming took, by stage."""
    device: str
    stalls: Stalls
    """Since all were warm."""

    async def schedule_by(self, policy: str) -> None:
        """From now on, with what was learned of costs. Nothing must be running."""

        def swap() -> None:
            executor = self.executor
            if len(executor.agenda):
                raise RuntimeError(f"{len(executor.agenda)} jobs are still running")
            executor.agenda = Watched(policy, executor.agenda.costs)

        await self.executor.run(swap)

    async def ledger(self) -> Ledger:
        """The scheduler's, as it stands."""

        def read() -> Ledger:
            agenda = self.executor.agenda
            return agenda.ledger if isinstance(agenda, Watched) else Ledger()

        return await self.executor.run(read)

    async def quiet(self) -> None:
        """Until what was cancelled has left."""
        while await self.executor.run(lambda: len(self.executor.agenda)):  # noqa: ASYNC110 (the thread knows, not the loop)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def real_engines(
    shape: str, lengths: list[tuple[int, int]], say: Callable[[str], None], *, max_calls: int = 64
) -> AsyncIterator[RealEngines]:
    """All three, loaded and warm; closed at the end. ``lengths``: phonemes and milliseconds of the segments."""
    models = SHAPES[shape]
    executor = MlxExecutor()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        stt = RandomWhisper(path, executor, (WINDOW_S,))
        llm = MlxLanguageModel(path, executor, load=partial(_load, models.llm), max_generations=max(64, max_calls))
        tts = RandomKokoro(executor, models.kokoro, lengths)
        try:
            await executor.start()
            started: dict[str, float] = {}
            began = time.monotonic()
            await executor.run(partial(write_random_whisper, path, models.whisper))
            for name, start in (("stt", stt.start), ("llm", llm.start), ("tts", tts.start)):
                await start()
                started[name] = round(time.monotonic() - began, 1)
                say(f"{name} is loaded and warm after {started[name]} s")
                began = time.monotonic()
            for workload in (stt._clips, llm._rows, tts._rows):
                await executor.run(partial(_time_settling, executor, workload))
            device = await executor.run(_device)
            with watched(Stalls(lambda: executor.last_beat, executor.now)) as stalls:
                yield RealEngines(executor, stt, llm, tts, started, device, stalls)
        finally:
            await stt.close()
            await llm.close()
            await tts.close()
            await executor.close()


def _load(shape: str, folder: Path) -> tuple[Any, Any]:
    return random_checkpoint(shape)


def _time_settling(executor: MlxExecutor, workload: Any) -> None:
    """Rows leave between quanta, where no scheduler sees it."""
    stage, settle = workload.name.partition("-")[0], workload.settle

    def timed() -> None:
        began = time.monotonic()
        settle()
        if isinstance(executor.agenda, Watched):
            executor.agenda.ledger.note_settling(stage, time.monotonic() - began)

    workload.settle = timed


def _device() -> str:
    import mlx.core as mx

    info = mx.device_info()
    name = str(info.get("device_name", ""))
    version = f"mlx {getattr(mx, '__version__', '?')}, Python {sys.version_info.major}.{sys.version_info.minor}"
    return f"{mx.default_device()} {name}".strip() + f", {version}"
