"""The mlx-lm engine on a tiny random llama, and the truth beside it: what ``mlx_lm.stream_generate`` makes of the same
prompt alone, without a cache."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engines.executor.thread import MlxExecutor
from engines.llm.mlx_lm import MlxLanguageModel
from streaming.jobs import Generate, Generation, GenerationDone, GenerationFailed, Message, Priority, Token, Usage

SYSTEM = Message("system", "ba be bi bo bu")
PLAIN = 3
"""Tokens of a message beside its words: start, role, end."""
ASK = 2
"""Tokens that ask for a reply: start, "assistant"."""
USER = 2
"""Tokens that begin a user's message."""
SYSTEM_TOKENS = PLAIN + 5
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4
"""Keys and values of a token: two layers of two heads of 16 floats."""
MAX_TOKENS = 24


class Reply:
    """What one generation delivered."""

    def __init__(self) -> None:
        self.results: list[Generation] = []
        self._changed = asyncio.Event()

    def deliver(self, result: Generation) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert not self.ended, "a result after the end"
        self.results.append(result)
        self._changed.set()

    @property
    def ended(self) -> bool:
        return bool(self.results) and not isinstance(self.results[-1], Token)

    @property
    def text(self) -> str:
        return "".join(result.text for result in self.results if isinstance(result, Token))

    @property
    def usage(self) -> Usage:
        assert isinstance(self.results[-1], GenerationDone), self.results[-1:]
        return self.results[-1].usage

    @property
    def code(self) -> str:
        assert isinstance(self.results[-1], GenerationFailed), self.results[-1:]
        return self.results[-1].code

    async def tokens(self, count: int) -> Reply:
        return await self._until(lambda: self.ended or len(self.results) >= count)

    async def end(self) -> Reply:
        return await self._until(lambda: self.ended)

    async def _until(self, condition: Callable[[], bool]) -> Reply:
        async with asyncio.timeout(30):
            while not condition():
                self._changed.clear()
                await self._changed.wait()
        return self


class Bench:
    """The engine under test, and the truth beside it."""

    def __init__(self, model: MlxLanguageModel, executor: MlxExecutor) -> None:
        self.model = model
        self.executor = executor
        self.rows: Any = model._rows
        self._epochs = 0

    def ask(
        self,
        messages: Sequence[Message],
        call: str = "a",
        priority: Priority = Priority.FIRST_AUDIO,
        max_tokens: int = MAX_TOKENS,
        temperature: float = 0.0,
    ) -> tuple[int, Reply]:
        self._epochs += 1
        reply = Reply()
        deadline = self.executor.now() + 0.5
        request = Generate(call, self._epochs, tuple(messages), priority, deadline, max_tokens, temperature)
        self.model.generate(request, reply.deliver)
        return self._epochs, reply

    async def answer(self, messages: Sequence[Message], call: str = "a", max_tokens: int = MAX_TOKENS) -> Reply:
        return await self.ask(messages, call, max_tokens=max_tokens)[1].end()

    async def alone(self, messages: Sequence[Message], max_tokens: int = MAX_TOKENS) -> str:
        """The reply by mlx-lm's own single-stream generator."""
        return await self.executor.run(partial(self._alone, tuple(messages), max_tokens))

    def _alone(self, messages: Sequence[Message], max_tokens: int) -> str:
        from mlx_lm import stream_generate

        loaded = self.rows._loaded
        prompt = loaded.words.encode(messages)
        stream = stream_generate(loaded.model, loaded.tokenizer, prompt, max_tokens=max_tokens)
        tokens = [response.token for response in stream]
        words = [token for token in tokens if token not in loaded.words.special_tokens]
        text: str = loaded.tokenizer.decode(words)
        return text

    async def close(self) -> None:
        await self.model.close()
        await self.executor.close()

    async def kept_tokens(self, call: str) -> int:
        def count() -> int:
            kept = self.rows._loaded.contexts.kept._kept.get(call)
            return len(kept.tokens) if kept is not None else 0

        return await self.executor.run(count)


async def bench(folder: Path, **settings: Any) -> Bench:
    executor = MlxExecutor()
    model = MlxLanguageModel(folder, executor, **({"warm_s": 0.0} | settings))
    try:
        await model.start()
    except BaseException:
        await model.close()
        await executor.close()
        raise
    return Bench(model, executor)


def user(*words: str) -> Message:
    return Message("user", " ".join(words))


def said(text: str) -> Message:
    return Message("assistant", text)
