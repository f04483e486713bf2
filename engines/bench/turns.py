"""Simulated calls on a random llama on the real executor: what soaks and slow neighbours are made of."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from engines.bench.random_llama import random_checkpoint, word
from engines.executor.thread import MlxExecutor
from engines.llm.mlx_lm import MlxLanguageModel
from streaming.jobs import Generate, Generation, GenerationDone, GenerationFailed, Message, Priority, Token

_FIRST_WORD, _WORDS = 6, 200
_FIRST_AUDIO_S = 0.8


@dataclass(slots=True)
class Reply:
    """What came of one generation, with the time of each token on the executor's clock."""

    asked: float
    times: list[float] = field(default_factory=list)
    text: str = ""
    failure: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    def deliver(self, result: Generation) -> None:
        match result:
            case Token(text=text):
                self.times.append(time.monotonic())
                self.text += text
            case GenerationDone():
                self.ended = True
            case GenerationFailed(code=code):
                self.ended, self.failure = True, code
        self.changed.set()

    async def tokens(self, count: int) -> None:
        """Wait for so many tokens, or the end."""
        while len(self.times) < count and not self.ended:
            self.changed.clear()
            await self.changed.wait()

    async def end(self) -> None:
        while not self.ended:
            self.changed.clear()
            await self.changed.wait()


class Talk:
    """Asks a model for turns of calls."""

    def __init__(self, model: MlxLanguageModel, rng: random.Random) -> None:
        self.model = model
        self.rng = rng
        self._epochs = 0

    def words(self, count: int) -> str:
        return " ".join(word(self.rng.randrange(_FIRST_WORD, _WORDS)) for _ in range(count))

    def ask(
        self,
        call: str,
        messages: list[Message],
        max_tokens: int,
        priority: Priority = Priority.FIRST_AUDIO,
    ) -> tuple[int, Reply]:
        """Returns the epoch and its reply."""
        self._epochs += 1
        now = time.monotonic()
        reply = Reply(now)
        request = Generate(call, self._epochs, tuple(messages), priority, now + _FIRST_AUDIO_S, max_tokens)
        self.model.generate(request, reply.deliver)
        return self._epochs, reply


@asynccontextmanager
async def talking(
    shape: str, cache_limit_bytes: int | None = None, seed: int = 7
) -> AsyncIterator[tuple[MlxExecutor, Talk]]:
    """An executor with a random model of that shape, warm; closed at the end."""
    executor = MlxExecutor(cache_limit_bytes=cache_limit_bytes)
    model = MlxLanguageModel(Path.cwd(), executor, load=partial(_load, shape))
    try:
        await model.start()
        yield executor, Talk(model, random.Random(seed))
    finally:
        await model.close()
        await executor.close()


def _load(shape: str, folder: Path) -> tuple[object, object]:
    return random_checkpoint(shape)
