"""Speech from any server with OpenAI's ``POST /audio/speech``, streamed as 16-bit PCM; WAV is taken too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Unpack

import structlog

from engines.api import EngineError
from engines.openai_connection import Connection, ConnectionOptions
from engines.openai_errors import ApiError
from engines.openai_http import OpenAiHttp, Patience, blocks_of
from engines.running import Running, RunningSet
from engines.tts.streamed_pcm import BadStreamError, StreamedPcm
from streaming.jobs import Synthesis, SynthesisChunk, SynthesisFailed, Synthesize

MAX_SEGMENT_S = 120.0
"""A voice that goes on beyond this has lost its way."""
_NO_PCM = ("application/json", "text/", "audio/mpeg", "audio/mp3", "audio/aac", "audio/ogg", "audio/opus", "audio/flac")
_YIELD_EVERY = 8
"""Chunks handed on at once before the loop's other work has its turn."""

_log = structlog.get_logger(__name__)


class OpenAiTextToSpeech:
    """A :class:`engines.api.TextToSpeech`. ``voices`` are the names that calls may ask for, the first being the
    default; ``rate_hz`` is what the server's ``pcm`` has (the format does not say)."""

    def __init__(
        self,
        *,
        voices: Sequence[str] = ("alloy",),
        rate_hz: int = 24_000,
        response_format: Literal["pcm", "wav"] = "pcm",
        extra_body: Mapping[str, Any] | None = None,
        jitter: Callable[[], float] = random.random,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        if not voices or not 8_000 <= rate_hz <= 96_000 or response_format not in ("pcm", "wav"):
            raise EngineError("bad_options", "speech needs a voice, a rate of 8 to 96 kHz, and the format pcm or wav")
        defaults = {"first_s": 8.0, "between_s": 8.0, "total_s": 60.0}
        self._http = OpenAiHttp(Connection.of(connection, **defaults), jitter=jitter)
        self._voices = tuple(voices)
        self._rate_hz = rate_hz
        self._format = response_format
        self._extra_body = dict(extra_body or {})
        self._running = RunningSet(self._http.connection.max_running)

    @property
    def rate_hz(self) -> int:
        return self._rate_hz

    @property
    def voices(self) -> tuple[str, ...]:
        return self._voices

    async def start(self) -> None:
        await self._http.start()

    async def close(self) -> None:
        await self._running.close()
        await self._http.close()

    @property
    def running(self) -> int:
        """Requests whose connection is still in use."""
        return len(self._running)

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        """Codes of a failure: :mod:`engines.openai_errors`'s, ``unknown_voice``, ``bad_audio``, ``not_started``,
        ``synthesis_failed``."""

        async def work(running: Running) -> None:
            await self._run(request, deliver, running)

        if self._running.start((request.call, request.epoch), work) is None:
            failed = SynthesisFailed(request.epoch, request.segment, "overloaded", "too many segments are under way")
            asyncio.get_running_loop().call_soon(deliver, failed)

    def cancel(self, call: str, epoch: int) -> None:
        self._running.cancel((call, epoch))

    async def _run(self, request: Synthesize, deliver: Callable[[Synthesis], None], running: Running) -> None:
        def tell(result: Synthesis) -> None:
            if not running.cancelled:
                deliver(result)

        try:
            if request.voice not in self._voices:
                raise ApiError("unknown_voice", f"no voice {request.voice!r}")
            if not any(character.isalnum() for character in request.text):
                tell(self._chunk(request, b"", last=True))
                return
            async with Patience(self._http.connection) as patience:

                async def once() -> None:
                    await self._request(request, tell, patience)

                await self._http.attempt(once, patience)
        except ApiError as error:
            if not running.cancelled:
                _log.warning("speech synthesis failed", call=request.call, epoch=request.epoch, code=error.code)
            tell(SynthesisFailed(request.epoch, request.segment, error.code, str(error)))
        except Exception as error:  # noqa: BLE001 (the caller must hear of it; its own text may hold theirs)
            _log.error("speech synthesis failed by a defect", call=request.call, error_type=type(error).__name__)
            tell(SynthesisFailed(request.epoch, request.segment, "synthesis_failed", type(error).__name__))

    async def _request(self, request: Synthesize, tell: Callable[[Synthesis], None], patience: Patience) -> None:
        body: dict[str, Any] = {
            "model": self._http.model,
            "input": request.text,
            "voice": request.voice,
            "response_format": self._format,
        }
        if request.speed != 1.0:
            body["speed"] = min(max(request.speed, 0.25), 4.0)
        speech = StreamedPcm(self._rate_hz)
        async with (
            self._http.post("audio/speech", json=body | self._extra_body) as response,
            blocks_of(response) as blocks,
        ):
            kind = response.headers.get("content-type", "")
            if kind.startswith(_NO_PCM):
                raise ApiError("bad_response", "the server sent something else than PCM")
            try:
                async for block in blocks:
                    for number, pcm in enumerate(speech.feed(block), start=1):
                        patience.progress()
                        tell(self._chunk(request, pcm, last=False))
                        if number % _YIELD_EVERY == 0:
                            await asyncio.sleep(0)
                    if speech.samples > MAX_SEGMENT_S * self._rate_hz:
                        raise ApiError("bad_audio", "the server's speech does not end")
                rest = speech.end()
            except BadStreamError as error:
                raise ApiError("bad_response", str(error)) from error
        if not speech.audible:
            raise ApiError("bad_audio", "the server sent no sound", retry=True)
        tell(self._chunk(request, rest, last=True))

    def _chunk(self, request: Synthesize, pcm: bytes, *, last: bool) -> SynthesisChunk:
        return SynthesisChunk(request.epoch, request.segment, pcm, self._rate_hz, last=last)
