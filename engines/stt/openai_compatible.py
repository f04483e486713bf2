"""Transcripts from any server with OpenAI's ``POST /audio/transcriptions``: WAV up, text back.

The server hears the whole utterance at each request, so a final costs an upload of all that was not committed yet. Long
speech is committed in pieces, cut at their quietest place and asked for while the caller still speaks; partials are off
unless asked for, as each is a request of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import structlog

from engines.api import EngineError, Pcm16
from engines.openai_connection import Connection, ConnectionOptions
from engines.openai_errors import ApiError
from engines.openai_http import OpenAiHttp, Patience, parse_json, read_bounded
from engines.running import Running, RunningSet
from engines.stt.plausible import loops, without_loop
from streaming.audio.level import quietest_dip, rms_dbfs
from streaming.audio.wav import encode_wav
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Transcript,
    TranscriptionFailed,
)

INAUDIBLE_DBFS = -65.0
LEAST_S = 0.5
"""Shorter clips are padded with silence: services refuse those under 100 ms, and models guess at them."""
WARM_S = 60.0
"""For the first answer of a server that loads its model only then."""
MAX_TEXT_BYTES = 128 * 1024
MAX_PIECES = 8
"""Of speech that waits for its text; the oldest is given up beyond it."""
_EARLIEST_CUT = 0.5
"""Of the longest piece: where the search for a quiet place begins."""

_log = structlog.get_logger(__name__)


class OpenAiSpeechToText:
    """A :class:`engines.api.SpeechToText`. ``languages`` (ISO 639-1) are those taken, all if empty; ``prompt`` helps
    with names; ``partials_every_ms`` of new audio a partial is asked for (0: never). The start has half a second of
    silence transcribed and gives that ``warm_s`` (0: it does not ask)."""

    def __init__(
        self,
        *,
        prompt: str = "",
        languages: tuple[str, ...] = (),
        partials_every_ms: int = 0,
        longest_s: float = 25.0,
        warm_s: float = WARM_S,
        jitter: Callable[[], float] = random.random,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        if partials_every_ms < 0 or not 2.0 <= longest_s <= 300.0:
            raise EngineError("bad_options", "longest_s is 2 to 300, partials_every_ms 0 or more")
        # A turn waits 5 s for its words: the code of a failure must be there before.
        defaults = {"connect_s": 2.0, "first_s": 4.5, "between_s": 4.5, "total_s": 4.5}
        self._http = OpenAiHttp(Connection.of(connection, **defaults), jitter=jitter)
        self._prompt = prompt
        self._warm_s = warm_s
        self._languages = frozenset(languages)
        self.partials_every = partials_every_ms * INPUT_RATE_HZ // 1000
        self.longest = int(longest_s * INPUT_RATE_HZ)
        self.requests = RunningSet(self._http.connection.max_running)
        self._open: set[_Utterance] = set()

    async def start(self) -> None:
        """Open the connection, and have the model answer once.

        Raises:
            EngineError: as :meth:`OpenAiHttp.start` and :meth:`OpenAiHttp.warm`.
        """
        await self._http.start()
        if self._warm_s > 0:
            silence = encode_wav([np.zeros(int(LEAST_S * INPUT_RATE_HZ), np.int16)], INPUT_RATE_HZ)
            await self._http.warm(lambda _: self._ask(silence, ""), self._warm_s)

    async def close(self) -> None:
        for utterance in list(self._open):
            utterance.close()
        await self.requests.close()
        await self._http.close()

    def open(self, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> _Utterance:
        """Codes of a failure: :mod:`engines.openai_errors`'s, ``not_started``, ``unsupported_language``,
        ``decode_failed``."""
        utterance = _Utterance(request, deliver, self, self._open.discard)
        self._open.add(utterance)
        return utterance

    def supports(self, language: str) -> bool:
        return not self._languages or _primary(language) in self._languages

    async def transcribe(self, pcm: Pcm16, language: str) -> str:
        """The words in a clip.

        Raises:
            ApiError: no words could be had.
        """
        if not pcm.size or rms_dbfs(pcm) < INAUDIBLE_DBFS:
            return ""
        least = int(LEAST_S * INPUT_RATE_HZ)
        wav = encode_wav([np.pad(pcm, (0, max(0, least - pcm.size)))], INPUT_RATE_HZ)
        async with Patience(self._http.connection) as patience:
            text = await self._http.attempt(lambda: self._ask(wav, language), patience)
        return without_loop(text) if loops(text) else text

    async def _ask(self, wav: bytes, language: str) -> str:
        form = {"model": self._http.model, "response_format": "json", "temperature": "0"}
        if language:
            form["language"] = _primary(language)
        if self._prompt:
            form["prompt"] = self._prompt
        files = {"file": ("speech.wav", wav, "audio/wav")}
        async with self._http.post("audio/transcriptions", data=form, files=files) as response:
            body = parse_json(await read_bounded(response, MAX_TEXT_BYTES))
        text = body.get("text") if isinstance(body, dict) else None
        if not isinstance(text, str):
            raise ApiError("bad_response", "the server's answer holds no text")
        # Half a character (JSON may hold one) could be sent to nobody, ever: the conversation keeps what was heard.
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return " ".join(whole.split())


@dataclass(eq=False, slots=True)
class _Piece:
    """Speech that is committed: its audio until its text is there."""

    pcm: Pcm16
    text: str | None = None
    failures: int = 0


@dataclass(eq=False, slots=True)
class _Final:
    request: FinalizeTranscription
    fed_samples: int
    running: Running | None = None


class _Utterance:
    """A :class:`engines.api.TranscriptionStream`."""

    def __init__(
        self,
        request: OpenTranscription,
        deliver: Callable[[Transcript], None],
        engine: OpenAiSpeechToText,
        closed: Callable[[_Utterance], None],
    ) -> None:
        self._request = request
        self._deliver = deliver
        self._engine = engine
        self._on_closed = closed
        self._key = (request.call, request.utterance)
        self._tail: list[Pcm16] = []
        self._tail_samples = 0
        self._fed_samples = 0
        self._pieces: deque[_Piece] = deque()
        self._committing: Running | None = None
        self._final: _Final | None = None
        self._last_final: tuple[int, str] | None = None
        self._partial: Running | None = None
        self._partial_at = 0
        self._last_partial = ""
        self._closed = False

    def feed(self, pcm: Pcm16) -> None:
        if self._closed or not pcm.size or not self._engine.supports(self._request.language):
            return
        self._tail.append(np.array(pcm, dtype=np.int16))
        self._tail_samples += pcm.size
        self._fed_samples += pcm.size
        while self._tail_samples > self._engine.longest:
            self._cut_piece()
        self._ask_partial()

    def finalize(self, request: FinalizeTranscription) -> None:
        if self._closed:
            return
        if not self._engine.supports(self._request.language):
            message = f"this model does not know the language {self._request.language!r}"
            self._soon(TranscriptionFailed(request.utterance, request.revision, "unsupported_language", message))
        elif self._last_final is not None and self._last_final[0] == self._fed_samples:
            self._soon(FinalTranscript(request.utterance, request.revision, self._last_final[1]))
        elif self._final is not None and self._final.fed_samples == self._fed_samples:
            self._final.request = request  # the answer to the same audio serves the newer revision
        else:
            self._begin_final(request)

    def close(self) -> None:
        self._closed = True
        _cancel(self._final, self._committing, self._partial)
        self._final = self._committing = self._partial = None
        self._tail.clear()
        self._pieces.clear()
        self._on_closed(self)

    def _begin_final(self, request: FinalizeTranscription) -> None:
        _cancel(self._final, self._partial)
        self._partial = None
        final = _Final(request, self._fed_samples)
        pieces, tail = list(self._pieces), list(self._tail)

        async def work(running: Running) -> None:
            try:
                text = await self._text_of(pieces, tail)
            except ApiError as error:
                _log.warning("a transcript failed", call=self._request.call, code=error.code)
                self._end_final(final, running, None, error)
            except Exception as error:  # noqa: BLE001 (the caller must hear of it)
                _log.error("a transcript failed by a defect", call=self._request.call, error_type=type(error).__name__)
                self._end_final(final, running, None, ApiError("decode_failed", type(error).__name__))
            else:
                self._end_final(final, running, text, None)

        self._final = final
        final.running = self._engine.requests.start(self._key, work)
        if final.running is None:
            self._final = None
            self._soon(
                TranscriptionFailed(request.utterance, request.revision, "overloaded", "too many requests under way")
            )

    def _end_final(self, final: _Final, running: Running, text: str | None, error: ApiError | None) -> None:
        if running.cancelled or self._closed or self._final is not final:
            return
        self._final = None
        utterance, revision = final.request.utterance, final.request.revision
        if error is not None:
            self._deliver(TranscriptionFailed(utterance, revision, error.code, str(error)))
        elif text is not None:
            self._last_final = (final.fed_samples, text)
            self._deliver(FinalTranscript(utterance, revision, text))

    async def _text_of(self, pieces: list[_Piece], tail: list[Pcm16]) -> str:
        """All words so far: pieces that are not known yet are asked for beside the tail."""
        audio = np.concatenate(tail) if tail else np.zeros(0, np.int16)
        unknown = [piece for piece in pieces if piece.text is None]
        language = self._request.language
        results = await asyncio.gather(
            self._engine.transcribe(audio, language),
            *(self._engine.transcribe(piece.pcm, language) for piece in unknown),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        words = [result for result in results if isinstance(result, str)]
        for piece, text in zip(unknown, words[1:], strict=True):
            piece.text = text
        return " ".join(filter(None, [*(piece.text for piece in pieces), words[0]]))

    def _cut_piece(self) -> None:
        audio = np.concatenate(self._tail)
        latest = self._engine.longest
        earliest = int(latest * _EARLIEST_CUT)
        cut = earliest + quietest_dip(audio[earliest:latest], INPUT_RATE_HZ)
        self._pieces.append(_Piece(audio[:cut].copy()))
        self._tail = [audio[cut:].copy()]
        self._tail_samples = audio.size - cut
        waiting = [piece for piece in self._pieces if piece.text is None]
        if len(waiting) > MAX_PIECES:
            waiting[0].text = ""
            waiting[0].pcm = waiting[0].pcm[:0]
            _log.warning("speech was given up: the server can't keep up", call=self._request.call)
        self._commit()

    def _commit(self) -> None:
        """Ask for the oldest piece without text, one at a time."""
        if self._committing is not None or self._closed:
            return
        piece = next((piece for piece in self._pieces if piece.text is None and piece.failures < 2), None)
        if piece is None:
            return

        async def work(running: Running) -> None:
            try:
                text = await self._engine.transcribe(piece.pcm, self._request.language)
            except ApiError:
                piece.failures += 1  # a final will ask for it again
            else:
                if piece.text is None:
                    piece.text = text
                piece.pcm = piece.pcm[:0].copy()
            if not running.cancelled:
                self._committing = None
                self._commit()

        self._committing = self._engine.requests.start(self._key, work)

    def _ask_partial(self) -> None:
        every = self._engine.partials_every
        due = every and self._request.partials and self._fed_samples - self._partial_at >= every
        if not due or self._partial is not None or self._final is not None:
            return
        self._partial_at = self._fed_samples
        fed, pieces, tail = self._fed_samples, list(self._pieces), np.concatenate(self._tail)

        async def work(running: Running) -> None:
            try:
                words = await self._engine.transcribe(tail, self._request.language)
            except ApiError:
                words = ""
            if running.cancelled:
                return
            self._partial = None
            overtaken = self._last_final is not None and self._last_final[0] >= fed
            text = " ".join(filter(None, [*(piece.text for piece in pieces), words]))
            if words and not overtaken and text != self._last_partial:
                self._last_partial = text
                self._deliver(PartialTranscript(self._request.utterance, text))

        self._partial = self._engine.requests.start(self._key, work)

    def _soon(self, transcript: Transcript) -> None:
        # Not inside the caller's own call: an engine answers later, always.
        asyncio.get_running_loop().call_soon(lambda: None if self._closed else self._deliver(transcript))


def _cancel(*work: _Final | Running | None) -> None:
    for each in work:
        running = each.running if isinstance(each, _Final) else each
        if running is not None:
            running.cancel()


def _primary(language: str) -> str:
    return language.partition("-")[0].lower()
