"""What the engines behind an OpenAI-compatible server share: one warm connection pool, time limits, retries, codes.

The paths and shapes are those of the OpenAI API reference (``/models``, ``/chat/completions``,
``/audio/transcriptions``, ``/audio/speech``), which vLLM, llama.cpp, Ollama, ``mlx_lm.server``, Groq and others serve
too. Everything lives on the event loop: the work is elsewhere. A request is bounded from its first byte to its last
(:class:`Patience`) and tried again only while nothing of it was used. No key and no body ever reaches a log or a
message: of an error only its status and its code, if that is a plain identifier.

Codes of :class:`ApiError`: ``timeout``, ``rate_limited``, ``unauthorized``, ``refused`` (nobody answers at that
address), ``connection_lost``, ``server_error``, ``bad_request`` (the server won't do this), ``context_too_long``,
``content_filter``, ``bad_response``, ``overloaded`` (too many requests of our own).
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import ipaddress
import json
import os
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, cast
from urllib.parse import urlsplit

import httpx
import structlog

from engines.api import EngineError

MAX_ERROR_BYTES = 16_384
"""Of an error's body; what is beyond it is not read."""
MAX_LISTED_BYTES = 1 << 20
"""Of the list of models: some services list thousands."""
KEEP_ALIVE_S = 300.0

_PLAIN = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
_TOO_LONG = re.compile(
    r"context[ _](?:length|window|size)|maximum context|too many tokens|prompt is too long"
    r"|exceeds? the (?:available )?context"
)
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class ApiError(Exception):
    """A request that came to nothing. ``detail`` is what the server wrote: to be searched, never shown or logged."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retry: bool = False,
        retry_after_s: float | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry = retry
        self.retry_after_s = retry_after_s
        self.detail = detail


class ConnectionOptions(TypedDict, total=False):
    """Options of every OpenAI-compatible engine, as a preset or the settings give them; see :class:`Connection`."""

    base_url: str
    model: str
    api_key_env: str
    headers: Mapping[str, str]
    headers_from_env: Mapping[str, str]
    connect_s: float
    first_s: float
    between_s: float
    total_s: float
    attempts: int
    max_running: int


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a server is and how long it may take. Limits are seconds and hold whatever the server does."""

    base_url: str = "https://api.openai.com/v1"
    model: str = ""
    """Empty: the first that the server lists."""
    api_key_env: str = ""
    """The environment variable that holds the bearer key; empty: no key is sent."""
    headers: Mapping[str, str] = field(default_factory=dict)
    headers_from_env: Mapping[str, str] = field(default_factory=dict)
    """Header name to the environment variable with its value, for servers that take their key elsewhere."""
    connect_s: float = 3.0
    first_s: float = 15.0
    """To the first token, sound or text, all attempts and waits together."""
    between_s: float = 10.0
    total_s: float = 120.0
    attempts: int = 2
    max_running: int = 256

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise EngineError("bad_options", "base_url must be like https://host/v1")
        if parts.username is not None or parts.password is not None:
            raise EngineError("bad_options", "base_url must hold no credentials: name them by api_key_env")
        if min(self.connect_s, self.first_s, self.between_s, self.total_s) <= 0:
            raise EngineError("bad_options", "time limits must be above 0")
        if self.attempts < 1 or self.max_running < 1:
            raise EngineError("bad_options", "attempts and max_running must be at least 1")

    @classmethod
    def of(cls, options: ConnectionOptions, **defaults: Any) -> Connection:
        """``options`` over a stage's own ``defaults``.

        Raises:
            EngineError: ``bad_options``.
        """
        unknown = set(options) - {known.name for known in fields(cls)}
        if unknown:
            raise EngineError("bad_options", f"no such option: {', '.join(sorted(unknown))}")
        return cls(**{**defaults, **options})

    @property
    def is_loopback(self) -> bool:
        host = urlsplit(self.base_url).hostname or ""
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host).is_loopback
        return host == "localhost"


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
        headers = _headers(self.connection)
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
        with _translated():
            async with self._client.stream("POST", path, **body) as response:
                if response.status_code != 200:
                    raise await _error_of(response)
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
                    raise await _error_of(response)
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


def api_error(status: int, body: object, *, retry_after_s: float | None = None) -> ApiError:
    """The failure that a status and an error object (``{"error": {…}}`` and its variants) tell of."""
    found = body.get("error", body) if isinstance(body, dict) else body
    detail = json.dumps(found)[:MAX_ERROR_BYTES].lower() if found else ""
    name = ""
    if isinstance(found, dict):
        named = [found.get("code"), found.get("type")]
        name = next((value for value in named if isinstance(value, str) and _PLAIN.fullmatch(value)), "")
    message = f"the server answered {status}" + (f" ({name})" if name else "")
    if status in (401, 403):
        return ApiError("unauthorized", message)
    if status == 429:
        spent = name == "insufficient_quota"
        return ApiError("rate_limited", message, retry=not spent, retry_after_s=retry_after_s)
    if status in (408, 504):
        return ApiError("timeout", message, retry=True)
    if status == 413 or (status < 500 and _TOO_LONG.search(detail)) or name == "context_length_exceeded":
        return ApiError("context_too_long", message)
    if status >= 500:
        return ApiError("server_error", message, retry=True, retry_after_s=retry_after_s)
    if status >= 400:
        return ApiError("bad_request", message, detail=detail)
    return ApiError("bad_response", message)


@contextlib.asynccontextmanager
async def _stream(client: httpx.AsyncClient, path: str) -> AsyncIterator[httpx.Response]:
    with _translated():
        async with client.stream("GET", path) as response:
            yield response


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """httpx's exceptions as ours. Their texts may hold addresses, but never keys or bodies; they stay as causes."""
    try:
        yield
    except httpx.PoolTimeout as error:
        raise ApiError("overloaded", "too many requests to this server are under way") from error
    except httpx.ConnectTimeout as error:
        raise ApiError("timeout", "the server did not take the connection in time", retry=True) from error
    except httpx.ConnectError as error:
        raise ApiError("refused", "the server can't be reached", retry=True) from error
    except httpx.DecodingError as error:
        raise ApiError("bad_response", "the server's answer can't be decoded") from error
    except httpx.LocalProtocolError as error:
        raise ApiError("bad_request", "the request can't be sent") from error
    except httpx.TransportError as error:
        raise ApiError("connection_lost", "the connection was lost", retry=True) from error


async def _error_of(response: httpx.Response) -> ApiError:
    content = bytearray()
    async with blocks_of(response) as blocks:
        async for block in blocks:
            content += block
            if len(content) > MAX_ERROR_BYTES:
                break
    body: object = None
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(bytes(content[:MAX_ERROR_BYTES]))
    if body is None:
        body = bytes(content[:MAX_ERROR_BYTES]).decode("utf-8", "replace")
    return api_error(response.status_code, body, retry_after_s=_retry_after_s(response.headers))


def _retry_after_s(headers: httpx.Headers) -> float | None:
    """RFC 9110, 10.2.3: seconds, or a date; and the ``retry-after-ms`` that some send beside it."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(ValueError):
            seconds = float(headers.get(name, "")) * unit_s
            if 0 <= seconds < 86_400:  # false for NaN too
                return seconds
    with contextlib.suppress(ValueError, TypeError, IndexError):
        when = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, when.timestamp() - time.time())
    return None


def _names(body: object) -> list[str]:
    listed = body.get("data") if isinstance(body, dict) else None
    entries = listed if isinstance(listed, list) else []
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str) and name]


def _headers(connection: Connection) -> dict[str, str]:
    headers = dict(connection.headers)
    for name, variable in connection.headers_from_env.items():
        headers[name] = _secret(variable)
    if connection.api_key_env:
        headers["Authorization"] = f"Bearer {_secret(connection.api_key_env)}"
    return headers


_HINTS = {"OPENAI_API_KEY": ": set it, or give the URL of a server of your own (stt_url, llm_url, tts_url)"}


def _secret(variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise EngineError("no_api_key", f"the environment variable {variable} is not set{_HINTS.get(variable, '')}")
    if not (value.isascii() and value.isprintable()):
        raise EngineError("no_api_key", f"the environment variable {variable} holds no key")
    return value
