"""Chats with the OpenAI-compatible engine over real sockets: one that asks, and servers that answer."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

from engines.llm.openai_compatible import OpenAiLanguageModel
from streaming.jobs import Generate, Generation, GenerationDone, GenerationFailed, Message, Priority, Token, ToolCalled
from tests.engines.http_server import Handler, Seen, Server, Wire, serving

SHORT: Any = {"connect_s": 5.0, "first_s": 5.0, "between_s": 5.0, "total_s": 9.0}
HELLO = (Message("system", "Be brief."), Message("user", "Hello?"))


class Heard:
    """What one generation delivered."""

    def __init__(self) -> None:
        self.results: list[Generation] = []
        self.on_token: Callable[[], None] = lambda: None
        self.within_s = 10.0
        self._changed = asyncio.Event()

    def deliver(self, result: Generation) -> None:
        assert not self.ended, "a result after the end"
        self.results.append(result)
        self._changed.set()
        if isinstance(result, Token):
            self.on_token()

    @property
    def ended(self) -> bool:
        return bool(self.results) and not isinstance(self.results[-1], Token | ToolCalled)

    @property
    def text(self) -> str:
        return "".join(result.text for result in self.results if isinstance(result, Token))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(self.within_s):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def end(self) -> Generation:
        await self.until(lambda: self.ended)
        return self.results[-1]

    async def done(self) -> GenerationDone:
        end = await self.end()
        assert isinstance(end, GenerationDone), end
        return end

    async def code(self) -> str:
        end = await self.end()
        assert isinstance(end, GenerationFailed), end
        return end.code


def ask(model: OpenAiLanguageModel, *, epoch: int = 1, call: str = "call", **fields: Any) -> Heard:
    heard = Heard()
    values = {"messages": HELLO, "priority": Priority.FIRST_AUDIO, "deadline": math.inf, **fields}
    model.generate(Generate(call=call, epoch=epoch, **values), heard.deliver)
    return heard


@contextlib.asynccontextmanager
async def talking(handler: Handler | None, **options: Any) -> AsyncIterator[tuple[OpenAiLanguageModel, Server]]:
    async with serving(handler) as server:
        model = OpenAiLanguageModel(
            **{"base_url": server.url, "jitter": lambda: 0.0, "warm_s": 0.0, **SHORT, **options}
        )
        await model.start()
        try:
            yield model, server
        finally:
            await model.close()


def words(*texts: str, finish: str | None = "stop") -> list[dict[str, Any]]:
    said = [{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts]
    return [*said, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}] if finish else said


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
}


async def say(wire: Wire, *chunks: object) -> None:
    await wire.begin()
    for chunk in chunks:
        await wire.event(chunk)
    await wire.event("[DONE]")
    await wire.end()


async def polite(_: Seen, wire: Wire) -> None:
    await say(wire, {"choices": [{"delta": {"role": "assistant"}}]}, *words("Good ", "day."), USAGE)


def in_turn(*handlers: Handler) -> Handler:
    """The first request to the first, and so on; the last serves the rest."""
    left = list(handlers)

    async def handle(seen: Seen, wire: Wire) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(seen, wire)

    return handle


def status(code: int, body: object = "", **headers: str) -> Handler:
    async def handle(_: Seen, wire: Wire) -> None:
        await wire.reply(code, body, headers=headers)

    return handle


async def silent(_: Seen, wire: Wire) -> None:
    await wire.until_closed()
