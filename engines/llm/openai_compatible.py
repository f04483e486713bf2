"""Replies from any server with OpenAI's chat completions (``POST /chat/completions``, streamed).

Servers differ in what they take: the dialect (:class:`_Dialect`) is learned from refusals, once, and kept. The
request's ``deadline`` is for schedulers on this machine; how long a server may take is said by the options.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

import httpx
import structlog

from engines.llm.history import ContextTooLongError, bounded
from engines.llm.openai_tools import CallAssembler, show_message, show_tool
from engines.llm.written_tools import written_out
from engines.openai_connection import Connection, ConnectionOptions
from engines.openai_errors import ApiError
from engines.openai_http import OpenAiHttp, Patience, blocks_of, read_bounded
from engines.openai_sse import ChatPiece, EventReader, WholeCharacters, chat_piece
from engines.running import Running, RunningSet
from streaming.jobs import (
    Generate,
    Generation,
    GenerationDone,
    GenerationFailed,
    Message,
    Priority,
    Token,
    ToolCalled,
    Usage,
)

MAX_WHOLE_BYTES = 128 * 1024
"""Of a reply that a server sent in one piece, though asked to stream."""
MAX_STREAM_BYTES = 16 << 20
MAX_CHARACTERS_A_TOKEN = 32
"""A reply longer than its token limit can mean is ended here: the server does not keep to it."""
TAIL_S = 1.0
"""How long the counts may come after the end of the text, and the end of the stream after them."""
WARM_S = 60.0
"""For the first token of a server that loads its model only then."""
_BURST = 32
"""Pieces that came at once and are handed on before the loop's other work has its turn."""

_NOBODY = "warm-up"
_DONE = ChatPiece(finish="stop")
"""The end of the stream: it ends a reply too, with servers that give no reason."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What a server was found to take."""

    usage: bool = True
    temperature: bool = True
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    tools: bool = True
    """False: tools are written into the prompt, and read out of the reply."""

    def after(self, refusal: ApiError, *, with_tools: bool) -> _Dialect | None:
        """The dialect to try next; None when the refusal is not about it. ``with_tools``: the request had some."""
        if refusal.code != "bad_request":
            return None
        if self.usage and "stream_options" in refusal.detail:
            return replace(self, usage=False)
        if self.limit == "max_tokens" and "max_completion_tokens" in refusal.detail:
            return replace(self, limit="max_completion_tokens")
        if self.temperature and "temperature" in refusal.detail:
            return replace(self, temperature=False)
        if self.tools and with_tools and "tool" in refusal.detail.lower():
            return replace(self, tools=False)
        return replace(self, usage=False) if self.usage else None


class _Reply:
    """What has come of one reply."""

    def __init__(self, max_characters: int) -> None:
        self._characters = WholeCharacters()
        self._left = max_characters
        self._pieces = 0
        self._calls = CallAssembler()
        self.finish: str | None = None
        self._usage: Usage | None = None

    def take(self, piece: ChatPiece) -> str:
        """The text to deliver."""
        self._usage = piece.usage or self._usage
        if self.finish is not None or (piece is _DONE and not self._pieces and not self._calls):
            return ""
        for part in piece.calls:
            self._calls.feed(part)
        text = self._characters.feed(piece.text)[: self._left]
        self._left -= len(text)
        self._pieces += bool(text)
        self.finish = piece.finish or ("length" if self._left <= 0 else None)
        return text

    @property
    def complete(self) -> bool:
        return self.finish is not None and self._usage is not None

    @property
    def cut(self) -> bool:
        """Ended here, by its length: the server may go on for ever."""
        return self._left <= 0

    def calls(self, epoch: int) -> list[ToolCalled]:
        """The tools called, once the reply is over."""
        return self._calls.calls(epoch)

    def done(self, epoch: int) -> Generation:
        if self.finish == "content_filter" and not self._pieces:
            raise ApiError("content_filter", "the server withheld the reply")
        # Without counts: a piece is a token with nearly every server, and the prompt's length is not known.
        usage = self._usage or Usage(completion_tokens=self._pieces)
        return GenerationDone(epoch, "length" if self.finish == "length" else "stop", usage)


class OpenAiLanguageModel:
    """A :class:`engines.api.LanguageModel`. ``extra_body`` is merged into each request's body and wins;
    a conversation is sent as its newest turns, at most so many messages and characters. The start asks for one token
    and gives it ``warm_s`` (0: it does not ask)."""

    def __init__(
        self,
        *,
        extra_body: Mapping[str, Any] | None = None,
        history_messages: int = 60,
        history_characters: int = 24_000,
        prompt_characters: int = 200_000,
        warm_s: float = WARM_S,
        jitter: Callable[[], float] = random.random,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        self._http = OpenAiHttp(Connection.of(connection), jitter=jitter)
        self._extra_body = dict(extra_body or {})
        self._history_messages = history_messages
        self._history_characters = history_characters
        self._prompt_characters = prompt_characters
        self._warm_s = warm_s
        self._running = RunningSet(self._http.connection.max_running)
        self._dialect = _Dialect()

    async def start(self) -> None:
        """Open the connection, and have the model answer once: the form of request it takes is known then, too.

        Raises:
            EngineError: as :meth:`OpenAiHttp.start` and :meth:`OpenAiHttp.warm`.
        """
        await self._http.start()
        if self._warm_s > 0:
            await self._http.warm(self._warm, self._warm_s)

    async def _warm(self, patience: Patience) -> None:
        one = Generate(_NOBODY, 0, (Message("user", "Hi"),), Priority.FIRST_AUDIO, math.inf, max_tokens=1)
        await self._in_dialect(one, lambda _: None, patience)

    async def close(self) -> None:
        await self._running.close()
        await self._http.close()

    @property
    def running(self) -> int:
        """Requests whose connection is still in use."""
        return len(self._running)

    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        """Codes of a failure: :mod:`engines.openai_errors`'s, ``not_started``, ``generation_failed``."""

        async def work(running: Running) -> None:
            await self._run(request, deliver, running)

        if self._running.start((request.call, request.epoch), work) is None:
            failed = GenerationFailed(request.epoch, "overloaded", "too many replies are under way")
            asyncio.get_running_loop().call_soon(deliver, failed)

    def prioritize(self, call: str, epoch: int) -> None:
        """Nothing waits here: the server has no classes."""

    def postpone(self, call: str, epoch: int, until: float) -> None:
        """Nothing to give way to."""

    def cancel(self, call: str, epoch: int) -> None:
        self._running.cancel((call, epoch))

    def forget(self, call: str) -> None:
        self._running.forget(call)

    async def _run(self, request: Generate, deliver: Callable[[Generation], None], running: Running) -> None:
        def tell(result: Generation) -> None:
            if not running.cancelled:
                deliver(result)

        try:
            async with Patience(self._http.connection) as patience:

                async def once() -> None:
                    await self._in_dialect(request, tell, patience)

                await self._http.attempt(once, patience)
        except ContextTooLongError as error:
            tell(GenerationFailed(request.epoch, "context_too_long", str(error)))
        except ApiError as error:
            if not running.cancelled:
                _log.warning("a reply failed", call=request.call, epoch=request.epoch, code=error.code)
            tell(GenerationFailed(request.epoch, error.code, str(error)))
        except Exception as error:  # noqa: BLE001 (the caller must hear of it; its text may hold the prompt)
            _log.error("a reply failed by a defect", call=request.call, error_type=type(error).__name__)
            tell(GenerationFailed(request.epoch, "generation_failed", type(error).__name__))

    def _prompt(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        fitting = bounded(
            messages,
            lambda message: len(message.content),
            history_tokens=self._history_characters,
            max_tokens=self._prompt_characters,
        )
        head = next((index for index, message in enumerate(fitting) if message.role != "system"), len(fitting))
        tail = fitting[head:]
        if len(tail) > self._history_messages:
            tail = tail[-self._history_messages :]
            first = next((index for index, message in enumerate(tail) if message.role == "user"), 0)
            tail = tail[first:]
        return [show_message(message) for message in [*fitting[:head], *tail]]

    async def _in_dialect(self, request: Generate, tell: Callable[[Generation], None], patience: Patience) -> None:
        """One attempt. A refusal that another dialect may cure costs no attempt; what cured it is remembered."""
        dialect = self._dialect
        while True:
            try:
                await self._request(request, dialect, tell, patience)
            except ApiError as error:
                changed = None if patience.begun else dialect.after(error, with_tools=bool(request.tools))
                if changed is None:
                    raise
                dialect = changed
            else:
                break
        if dialect != self._dialect:
            _log.info(
                "the server takes another form of request",
                usage=dialect.usage,
                limit=dialect.limit,
                tools=dialect.tools,
            )
            self._dialect = dialect

    async def _request(
        self,
        request: Generate,
        dialect: _Dialect,
        tell: Callable[[Generation], None],
        patience: Patience,
    ) -> None:
        if not dialect.tools:
            request, tell = written_out(request, tell)
        body: dict[str, Any] = {
            "model": self._http.model,
            "messages": self._prompt(request.messages),
            "stream": True,
            dialect.limit: request.max_tokens,
        }
        if dialect.temperature:
            body["temperature"] = request.temperature
        if request.tools:
            body["tools"] = [show_tool(tool) for tool in request.tools]
        if dialect.usage:
            body["stream_options"] = {"include_usage": True}
        reply = _Reply(max(request.max_tokens, 1) * MAX_CHARACTERS_A_TOKEN)
        async with (
            self._http.post("chat/completions", json=body | self._extra_body) as response,
            contextlib.aclosing(_pieces(response)) as pieces,
        ):
            async for piece in pieces:
                text = reply.take(piece)
                if text or piece.calls:
                    patience.progress()
                if text:
                    tell(Token(request.epoch, text))
                if reply.finish is not None:
                    break
            if reply.finish is None:
                raise ApiError("connection_lost", "the stream ended before the reply did", retry=True)
            patience.settle()
            for call in reply.calls(request.epoch):
                tell(call)
            if not reply.complete and not reply.cut:
                await _until(pieces, lambda piece: reply.take(piece) == "" and reply.complete)
            tell(reply.done(request.epoch))
            if not reply.cut:
                await _until(pieces, lambda _: False)  # read to its end, the connection serves the next request


async def _until(pieces: AsyncIterator[ChatPiece], found: Callable[[ChatPiece], bool]) -> None:
    """What comes after a reply's text may fail or be late: the reply is whole without it."""
    with contextlib.suppress(TimeoutError, ApiError, httpx.HTTPError):
        async with asyncio.timeout(TAIL_S):
            async for piece in pieces:
                if found(piece):
                    return


async def _pieces(response: httpx.Response) -> AsyncGenerator[ChatPiece, None]:
    kind = response.headers.get("content-type", "")
    if kind.startswith("text/html"):
        raise ApiError("bad_response", "the server sent a page instead of a reply")
    if kind.startswith("application/json"):
        yield chat_piece(await read_bounded(response, MAX_WHOLE_BYTES))
        return
    reader, received = EventReader(), 0
    async with blocks_of(response) as blocks:
        async for block in blocks:
            received += len(block)
            if received > MAX_STREAM_BYTES:
                raise ApiError("bad_response", "the server sends without end")
            for number, data in enumerate(reader.feed(block), start=1):
                yield _piece(data)
                if number % _BURST == 0:
                    await asyncio.sleep(0)
    for data in reader.end():
        yield _piece(data)


def _piece(data: bytes) -> ChatPiece:
    return _DONE if data.strip() == b"[DONE]" else chat_piece(data)
