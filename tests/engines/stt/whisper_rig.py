"""Sounds for a Whisper with tiny random weights, and what one utterance of it is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from engines.api import Pcm16
from engines.executor.policy import Choice
from engines.executor.thread import MlxExecutor
from engines.stt.mlx_whisper import MlxWhisper
from engines.stt.mlx_whisper_batch import DecodeBatch, Row
from engines.stt.mlx_whisper_model import WhisperModel
from streaming.jobs import (
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    Priority,
    Transcript,
)

T = TypeVar("T")
SECOND = 16_000
WINDOWS_S = (2, 4, 12)


def audio(seconds: float, seed: int = 0) -> Pcm16:
    """Something a random network can tell from other such somethings: tones that change every 100 ms."""
    chance = np.random.default_rng(seed)
    count = int(seconds * SECOND)
    hertz = np.exp(chance.uniform(np.log(80), np.log(7000), (3, count // 1600 + 1))).repeat(1600, axis=1)[:, :count]
    waves = np.sin(2 * np.pi * hertz.cumsum(axis=1) / SECOND).sum(axis=0)
    return np.asarray(waves * 5000, np.int16)


async def alone(executor: MlxExecutor, checkpoint: Path, use: Callable[[WhisperModel], T]) -> T:
    """``use(model)`` on the executor's thread."""
    return await executor.run(lambda: use(WhisperModel(checkpoint)))


def decode(model: WhisperModel, row: Row) -> Row:
    batch = DecodeBatch(model)
    batch.join([row])
    while not row.ended:
        batch.step()
    return row


def fresh(model: WhisperModel, seed: int, frames: int, penalty: float = 1.0) -> Row:
    return Row(model.encode(audio(1.5, seed), frames), model.prompt("en"), 12 + seed % 7, penalty)


class Heard:
    """What one utterance delivered."""

    def __init__(self) -> None:
        self.got: list[Transcript] = []
        self.changed = asyncio.Event()

    def deliver(self, transcript: Transcript) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.got.append(transcript)
        self.changed.set()

    async def until(self, kind: type[Transcript], count: int = 1) -> Any:
        while len(found := [each for each in self.got if isinstance(each, kind)]) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 20)
        return found[count - 1]


def final(revision: int = 1, utterance: int = 1) -> FinalizeTranscription:
    return FinalizeTranscription(utterance, revision, Priority.FINAL, 0.0)


async def text_of(whisper: MlxWhisper, pcm: Pcm16, call: str = "a") -> str:
    heard = Heard()
    stream = whisper.open(OpenTranscription(call, 1, 0, partials=False), heard.deliver)
    stream.feed(pcm)
    stream.finalize(final())
    result: FinalTranscript = await heard.until(FinalTranscript)
    stream.close()
    return result.text


_KINDS = ("encode", "transcribe")


class Quanta:
    """Counts what the workload is given to do, and can have things done between two quanta."""

    def __init__(self, whisper: MlxWhisper, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, int]] = []
        self.fail: set[str] = set()
        self.tokens: list[int] = []
        clips, real, batch = whisper._clips, whisper._clips.quantum, whisper._clips._loaded
        assert batch is not None
        step, steps = batch.batch.step, [0]

        def counted() -> None:
            steps[0] += 1
            step()

        def quantum(choice: Choice) -> None:
            self.seen.append((choice.kind.name, len(choice.keys)))
            self._loop.call_soon_threadsafe(self._began[choice.kind.name].set)
            if choice.kind.name in self.fail:
                raise RuntimeError("the model is broken")
            steps[0] = 0
            real(choice)
            self.tokens.append(steps[0])

        monkeypatch.setattr(batch.batch, "step", counted)
        monkeypatch.setattr(clips, "quantum", quantum)
        self._loop, self._began = asyncio.get_running_loop(), {name: asyncio.Event() for name in _KINDS}

    async def until(self, kind: str) -> None:
        """Until the first quantum of that kind begins."""
        await asyncio.wait_for(self._began[kind].wait(), 20)
