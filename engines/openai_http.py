"""What the engines behind an OpenAI-compatible server share: one warm connection pool, time limits, retries.

The paths and shapes are those of the OpenAI API reference (``/models``, ``/chat/completions``,
``/audio/transcriptions``, ``/audio/speech``), which vLLM, llama.cpp, Ollama, ``mlx_lm.server``, Groq and others serve
too. Everything lives on the event loop: the work is elsewhere. A request is bounded from its first byte to its last
(:class:`Patience`) and tried again only while nothing of it was used. What goes wrong has a code of
:mod:`engines.openai_errors`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import httpx
import structlog

from engines.api import EngineError
from engines.openai_connection import Connection, headers_of
from engines.openai_errors import MAX_ERROR_BYTES, ApiError, error_of, translated

MAX_LISTED_BYTES = 1 << 20
"""Of the list of models: some services list thousands."""
KEEP_ALIVE_S = 300.0

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class Patience:
    """The time limits of one request: an ``async with`` that ends it with ``timeout``, and moves on with progress."""

    def __init__(self, connection: Connection) -> None:
        self._between_s = connection.between_s
        now = asyncio.get_running_loop().time()
        self._end = now + connection.total_s
        self._scope = asyncio.timeout_at(min(now + connection.first_s, self._end))
        self.begun = False
        """Whether something was used: from then on the request can't be made again."""

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as late:
            stage = "the next piece" if self.begun else "the first answer"
            raise ApiError("timeout", f"the server took too long over {stage}") from late

    def progress(self) -> None:
        """Something of use has come: the wait for the next begins."""
        self.begun = True
        self._scope.reschedule(min(asyncio.get_running_loop().time() + self._between_s, self._end))

    def settle(self) -> None:
        """All of use is there; what is still read is bounded by its reader."""
        self.begun = True
        self._scope.reschedule(None)

    @property
    def left_s(self) -> float:
        until = self._scope.when()
        return 0.0 if until is None else until - asyncio.get_running_loop().time()


class OpenAiHttp:
    """One server's connection pool. ``jitter`` gives numbers in 0..1 that spread retries."""

    def __init__(self, connection: Connection, *, jitter: Callable[[], float] = random.random) -> None:
        self.connection = connection
        self.model = connection.model
        self._jitter = jitter
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Open the pool and see that the server answers and takes the key.

        Raises:
            EngineError: ``no_api_key``, ``bad_options``, ``unauthorized``, ``unreachable``, ``no_model``.
        """
        headers = headers_of(self.connection)
        secret = bool(self.connection.api_key_env or self.connection.headers_from_env)
        if secret and self.connection.base_url.startswith("http:") and not self.connection.is_loopback:
            _log.warning("a key is sent over a connection without TLS")
        # Reading the certificates of the system takes tens of milliseconds.
        self._client = await asyncio.to_thread(self._open, headers)
        try:
            listed = await self._models()
        except ApiError as error:
            await self.close()
            code = "unauthorized" if error.code == "unauthorized" else "unreachable"
            raise EngineError(code, f"{self.connection.base_url}: {error}") from error
        if not self.model and not listed:
            await self.close()
            raise EngineError(
                "no_model", f"{self.connection.base_url} lists no models: name one (stt_model, llm_model, tts_model)"
            )
        if self.model and listed and self.model not in listed:
            _log.warning("the server does not list this model", model=self.model)
        self.model = self.model or listed[0]

    async def warm(self, ask: Callable[[Patience], Awaitable[object]], within_s: float) -> None:
        """Have one small request answered, so that no caller waits while the server loads its model, or is the first
        to hear that it has none. What may pass, and an answer that is late, is no reason not to start.

        Raises:
            EngineError: ``unauthorized``, ``no_model``; it is closed then.
        """
        limits = replace(self.connection, first_s=within_s, between_s=within_s, total_s=within_s)
        try:
            async with Patience(limits) as patience:
                await self.attempt(lambda: ask(patience), patience)
        except ApiError as error:
            if error.code not in ("unauthorized", "no_model"):
                _log.warning("the server did not answer a first request", model=self.model, code=error.code)
                return
            await self.close()
            where = f"{self.connection.base_url}, model {self.model!r}"
            raise EngineError(error.code, f"{where}: {error}") from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def attempt(self, once: Callable[[], Awaitable[_T]], patience: Patience) -> _T:
        """Run ``once``, and again after a failure that may pass, while nothing was used and time is left."""
        waited = False
        for number in range(1, self.connection.attempts + 1):
            try:
                return await once()
            except ApiError as error:
                delay_s = self._delay_s(error, number, waited)
                if patience.begun or delay_s is None or delay_s >= patience.left_s:
                    raise
                waited = waited or error.retry_after_s is not None
                _log.info("a request is made again", code=error.code, attempt=number)
                await asyncio.sleep(delay_s)
        raise AssertionError  # the last attempt returned or raised

    @contextlib.asynccontextmanager
    async def post(self, path: str, **body: Any) -> AsyncIterator[httpx.Response]:
        """A response whose status is 200 and whose body is not read yet; left early, its connection is closed.
        ``body`` is httpx's ``json``, or ``data`` and ``files``.

        Raises:
            ApiError: what went wrong, also of reading the response inside the block.
        """
        if self._client is None:
            raise ApiError("not_started", "the engine was not started")
        with translated():
            async with self._client.stream("POST", path, **body) as response:
                if response.status_code != 200:
                    raise await _refusal(response)
                if response.headers.get("content-encoding", "identity") != "identity":  # it would be heard as noise
                    raise ApiError("bad_response", "the server compressed its answer, which it was asked not to")
                yield response

    def _open(self, headers: dict[str, str]) -> httpx.AsyncClient:
        limits = self.connection
        return httpx.AsyncClient(
            base_url=limits.base_url,
            headers={"Accept-Encoding": "identity", **headers},  # no decompressor holds tokens back
            # Reads and writes are bounded by Patience.
            timeout=httpx.Timeout(None, connect=limits.connect_s, pool=limits.connect_s),
            limits=httpx.Limits(
                max_connections=limits.max_running,
                max_keepalive_connections=limits.max_running,
                keepalive_expiry=KEEP_ALIVE_S,
            ),
            trust_env=not limits.is_loopback,
        )

    async def _models(self) -> list[str]:
        """Names of the models listed; a server without a list, or busy, is none the worse."""
        client = self._client
        assert client is not None
        try:
            async with Patience(self.connection), _stream(client, "models") as response:
                if response.status_code in (401, 403):
                    raise await _refusal(response)
                content = await read_bounded(response, MAX_LISTED_BYTES)
                if response.status_code != 200:
                    _log.info("the server lists no models", status=response.status_code)
                    return []
            # A long list takes longer than the loop may be held.
            return _names(await asyncio.to_thread(parse_json, content))
        except ApiError as error:
            if error.code != "bad_response":
                raise
            return []

    def _delay_s(self, error: ApiError, number: int, waited: bool) -> float | None:
        """How long to wait before the next attempt; None: there is none."""
        if number >= self.connection.attempts or not error.retry:
            return None
        if error.retry_after_s is not None:
            return None if waited else error.retry_after_s
        return 0.1 * 2.0 ** (number - 1) * (0.5 + self._jitter())


def blocks_of(response: httpx.Response) -> contextlib.aclosing[AsyncGenerator[bytes, None]]:
    """The body as it comes, for ``async with``: a reader that leaves early must not leave its generators behind."""
    return contextlib.aclosing(cast(AsyncGenerator[bytes, None], response.aiter_raw()))


async def read_bounded(response: httpx.Response, limit_bytes: int) -> bytes:
    """The whole body. More than the limit is :class:`ApiError` ``bad_response``."""
    content = bytearray()
    async with blocks_of(response) as blocks:
        async for block in blocks:
            content += block
            if len(content) > limit_bytes:
                raise ApiError("bad_response", f"the server sent more than {limit_bytes} bytes")
    return bytes(content)


def parse_json(content: bytes | str) -> Any:
    """Raises :class:`ApiError` ``bad_response``."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ApiError("bad_response", "the server's answer is no JSON") from error


@contextlib.asynccontextmanager
async def _stream(client: httpx.AsyncClient, path: str) -> AsyncIterator[httpx.Response]:
    with translated():
        async with client.stream("GET", path) as response:
            yield response


async def _refusal(response: httpx.Response) -> ApiError:
    content = bytearray()
    async with blocks_of(response) as blocks:
        async for block in blocks:
            content += block
            if len(content) > MAX_ERROR_BYTES:
                break
    return error_of(response.status_code, bytes(content[:MAX_ERROR_BYTES]), response.headers)


def _names(body: object) -> list[str]:
    listed = body.get("data") if isinstance(body, dict) else None
    entries = listed if isinstance(listed, list) else []
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str) and name]
