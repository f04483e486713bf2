"""The engines of a stage as one: each request goes to the first that can serve it, and moves on when that one fails.

A request moves on only while nothing of it was delivered: no word is said twice. A transcription always may, for its
result replaces what came before; its audio so far is played to the next engine again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial

import msgspec
import structlog

from engines.api import LanguageModel, Pcm16, SpeechToText, TextToSpeech, TranscriptionStream
from engines.chain import Attempt, Chain, Link
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    FinalTranscript,
    Generate,
    Generation,
    GenerationDone,
    GenerationFailed,
    OpenTranscription,
    Priority,
    Synthesis,
    SynthesisFailed,
    Synthesize,
    Token,
    ToolCalled,
    Transcript,
    TranscriptionFailed,
)

MAX_REPLAY_S = 30.0
"""Of an utterance's latest audio is kept for an engine that has to begin with it anew."""
MAX_REMEMBERED_EPOCHS = 1024
SILENT_FINAL_S = 4.0
"""As :data:`engines.chain.SILENT_S`, of a transcript that the turn waits for."""

_log = structlog.get_logger(__name__)


class FallbackLanguageModel:
    """:class:`engines.api.LanguageModel` over a chain of them."""

    def __init__(self, chain: Chain[LanguageModel]) -> None:
        self._chain = chain
        self._live: dict[tuple[str, int], _Reply] = {}

    async def start(self) -> None:
        await self._chain.start()

    async def close(self) -> None:
        for reply in self._live.values():
            reply.cancel()
        self._live.clear()
        await self._chain.close()

    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        key = (request.call, request.epoch)
        if key in self._live:
            failure = GenerationFailed(request.epoch, "invalid_request", "this epoch is already being generated")
            asyncio.get_running_loop().call_soon(deliver, failure)
            return
        self._live[key] = reply = _Reply(request, deliver, self._chain, partial(self._live.pop, key, None))
        reply.attempt.go()

    def prioritize(self, call: str, epoch: int) -> None:
        if reply := self._live.get((call, epoch)):
            reply.prioritize()

    def postpone(self, call: str, epoch: int, until: float) -> None:
        if reply := self._live.get((call, epoch)):
            reply.postpone(until)

    def cancel(self, call: str, epoch: int) -> None:
        if reply := self._live.pop((call, epoch), None):
            reply.cancel()

    def forget(self, call: str) -> None:
        for key in [key for key in self._live if key[0] == call]:
            self.cancel(*key)
        for link in self._chain.links:  # any of them may hold a cache of this call
            if link.engine is not None:
                link.engine.forget(call)


class _Reply:
    def __init__(
        self,
        request: Generate,
        deliver: Callable[[Generation], None],
        chain: Chain[LanguageModel],
        ended: Callable[[], object],
    ) -> None:
        self._request = request
        self._deliver = deliver
        self._ended = ended
        self._begun = False
        self._until: float | None = None
        self.attempt = Attempt(chain, self._ask, self._give_up)

    def prioritize(self) -> None:
        self._request = msgspec.structs.replace(self._request, priority=Priority.DECODE)
        self.attempt.awaits()
        if self.attempt.engine is not None:
            self.attempt.engine.prioritize(self._request.call, self._request.epoch)

    def postpone(self, until: float) -> None:
        self._until = until
        if self.attempt.engine is not None:
            self.attempt.engine.postpone(self._request.call, self._request.epoch, until)

    def cancel(self) -> None:
        engine = self.attempt.drop()
        if engine is not None:
            engine.cancel(self._request.call, self._request.epoch)

    def _ask(self, engine: LanguageModel) -> None:
        engine.generate(self._request, partial(self._on_result, engine))
        if self._request.priority is not Priority.SPECULATIVE:
            self.attempt.awaits()
        if self._until is not None:
            engine.postpone(self._request.call, self._request.epoch, self._until)

    def _on_result(self, engine: LanguageModel, result: Generation) -> None:
        if self.attempt.engine is not engine:
            return
        if isinstance(result, Token | ToolCalled):
            if not self._begun:
                self._begun = True
                self.attempt.works()
            self._deliver(result)
        elif isinstance(result, GenerationDone) and not self._begun and self.attempt.may_move_on:
            self.attempt.failed("empty_reply", "the language model gave no text")
        elif isinstance(result, GenerationDone):
            self.attempt.finish()
            self._ended()
            self._deliver(result)
        else:
            self.attempt.failed(result.code, result.message, begun=self._begun)

    def _give_up(self, code: str, message: str) -> None:
        self._ended()
        self._deliver(GenerationFailed(self._request.epoch, code, message))


class FallbackTextToSpeech:
    """:class:`engines.api.TextToSpeech` over a chain of them. The voices are the first's; another engine speaks in a
    voice of the same name if it has one, else in its default, and keeps to the end a reply that it spoke a part of.
    Chunks have the rate of the engine that made them."""

    def __init__(self, chain: Chain[TextToSpeech]) -> None:
        self._chain = chain
        self._live: dict[tuple[str, int], dict[int, _Segment]] = {}
        self._spoken_by: OrderedDict[tuple[str, int], Link[TextToSpeech]] = OrderedDict()

    @property
    def rate_hz(self) -> int:
        return self._chain.first.rate_hz

    @property
    def voices(self) -> tuple[str, ...]:
        return self._chain.first.voices

    async def start(self) -> None:
        await self._chain.start()

    async def close(self) -> None:
        for call, epoch in list(self._live):
            self.cancel(call, epoch)
        await self._chain.close()

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        key = (request.call, request.epoch)
        segments = self._live.setdefault(key, {})
        if request.segment in segments:
            message = "this segment is already being spoken"
            failure = SynthesisFailed(request.epoch, request.segment, "invalid_request", message)
            asyncio.get_running_loop().call_soon(deliver, failure)
            return
        segments[request.segment] = segment = _Segment(request, deliver, self._chain, self._ended)
        segment.attempt.go(wanted=self._spoken_by.get(key))

    def cancel(self, call: str, epoch: int) -> None:
        self._spoken_by.pop((call, epoch), None)
        engines: list[TextToSpeech] = []
        for segment in self._live.pop((call, epoch), {}).values():
            engine = segment.attempt.drop()
            if engine is not None and engine not in engines:
                engines.append(engine)
        for engine in engines:
            engine.cancel(call, epoch)

    def _ended(self, request: Synthesize, spoken_by: Link[TextToSpeech] | None) -> None:
        key = (request.call, request.epoch)
        if segments := self._live.get(key):
            segments.pop(request.segment, None)
            if not segments:
                del self._live[key]
        if spoken_by is not None and spoken_by is not self._chain.links[0]:
            self._spoken_by[key] = spoken_by
            if len(self._spoken_by) > MAX_REMEMBERED_EPOCHS:
                self._spoken_by.popitem(last=False)


class _Segment:
    def __init__(
        self,
        request: Synthesize,
        deliver: Callable[[Synthesis], None],
        chain: Chain[TextToSpeech],
        ended: Callable[[Synthesize, Link[TextToSpeech] | None], None],
    ) -> None:
        self._request = request
        self._deliver = deliver
        self._ended = ended
        self._begun = False
        self.attempt = Attempt(chain, self._ask, self._give_up, request.language)

    def _ask(self, engine: TextToSpeech) -> None:
        request = self._request
        if request.voice not in engine.voices:
            request = msgspec.structs.replace(request, voice=engine.voices[0])
        engine.synthesize(request, partial(self._on_result, engine))
        self.attempt.awaits()

    def _on_result(self, engine: TextToSpeech, result: Synthesis) -> None:
        if self.attempt.engine is not engine:
            return
        if isinstance(result, SynthesisFailed):
            self.attempt.failed(result.code, result.message, begun=self._begun)
            return
        self._begun = self._begun or bool(result.pcm)
        self.attempt.answered()
        if result.last:
            link = self.attempt.link
            self.attempt.finish()
            self._ended(self._request, link)
        self._deliver(result)

    def _give_up(self, code: str, message: str) -> None:
        self._ended(self._request, None)
        self._deliver(SynthesisFailed(self._request.epoch, self._request.segment, code, message))


class FallbackSpeechToText:
    """:class:`engines.api.SpeechToText` over a chain of them."""

    def __init__(self, chain: Chain[SpeechToText]) -> None:
        self._chain = chain
        self._open: set[FallbackTranscription] = set()

    async def start(self) -> None:
        await self._chain.start()

    async def close(self) -> None:
        for utterance in list(self._open):
            utterance.close()
        await self._chain.close()

    def open(self, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> FallbackTranscription:
        utterance = FallbackTranscription(request, deliver, self._chain, self._open.discard)
        self._open.add(utterance)
        return utterance


class FallbackTranscription:
    """One utterance: its audio, kept for whoever may have to begin with it anew, and what is asked of it."""

    def __init__(
        self,
        request: OpenTranscription,
        deliver: Callable[[Transcript], None],
        chain: Chain[SpeechToText],
        closed: Callable[[FallbackTranscription], None],
    ) -> None:
        self._request = request
        self._deliver = deliver
        self._chain = chain
        self._on_closed = closed
        self._kept: deque[Pcm16] = deque()
        self._kept_samples = 0
        self._lost_samples = 0
        self._wanted: FinalizeTranscription | None = None
        self._stream: TranscriptionStream | None = None
        self._closed = False
        self._attempt = self._new_attempt()

    def feed(self, pcm: Pcm16) -> None:
        if self._closed or not pcm.size:
            return
        self._kept.append(pcm.copy())
        self._kept_samples += pcm.size
        while self._kept_samples > MAX_REPLAY_S * INPUT_RATE_HZ:
            lost = self._kept.popleft().size
            self._kept_samples -= lost
            self._lost_samples += lost
        if self._stream is not None:
            self._stream.feed(pcm)

    def finalize(self, request: FinalizeTranscription) -> None:
        if self._closed:
            return
        self._wanted = request
        if self._stream is not None:
            self._stream.finalize(request)
            self._await_final(request)
        elif self._attempt.ended:  # all failed a revision before this one: perhaps they don't any more
            self._attempt = self._new_attempt()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._attempt.drop()
        self._close_stream()
        self._kept.clear()
        self._on_closed(self)

    def _new_attempt(self) -> Attempt[SpeechToText]:
        language = self._request.language
        self._attempt = Attempt(self._chain, self._ask, self._give_up, language, silent_s=SILENT_FINAL_S)
        self._attempt.go()
        return self._attempt

    def _ask(self, engine: SpeechToText) -> None:
        stream = self._stream = engine.open(self._request, partial(self._on_result, engine))
        if self._kept and self._lost_samples:
            _log.warning("the fallback misses the beginning of an utterance", lost_samples=self._lost_samples)
        for pcm in self._kept:
            stream.feed(pcm)
        if self._wanted is not None:
            stream.finalize(self._wanted)
            self._await_final(self._wanted)

    def _on_result(self, engine: SpeechToText, result: Transcript) -> None:
        if self._closed or self._attempt.engine is not engine:
            return
        if isinstance(result, TranscriptionFailed):
            if self._wanted is None or result.revision >= self._wanted.revision:  # an older one is wanted no more
                self._close_stream()
                self._attempt.failed(result.code, result.message)
            return
        self._attempt.works()
        if isinstance(result, FinalTranscript) and self._wanted and result.revision >= self._wanted.revision:
            self._wanted = None
        self._deliver(result)

    def _give_up(self, code: str, message: str) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._deliver(TranscriptionFailed(wanted.utterance, wanted.revision, code, message))

    def _await_final(self, request: FinalizeTranscription) -> None:
        self._attempt.answered()  # whether it was or not: an older revision need not be
        if request.priority is Priority.FINAL:
            self._attempt.awaits()

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
