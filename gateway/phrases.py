"""Speech that is known before a call comes: greetings, apologies and the farewell, made once at warm-up.

So a greeting costs a caller nothing, and an engine that is down is heard as a sentence, not as silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import structlog

from engines.api import TextToSpeech
from streaming.audio.resample import Resampler
from streaming.jobs import Priority, Synthesis, SynthesisChunk, SynthesisFailed, Synthesize
from streaming.text.clauses import ClauseSplitter
from streaming.text.speakable import speakable

_log = structlog.get_logger(__name__)

MAX_SEGMENTS = 500
LINE_RATES_HZ = (8_000, 16_000, 24_000)
"""At these calls ask for speech: phones, wideband phones, the Realtime protocol's PCM."""
MAX_RESAMPLED_BYTES = 32 * 1024 * 1024
"""Of speech at the rates that calls asked for: half an hour for telephones. What was asked for last stays."""
WARM_UP_CALL = "warm-up"
SYNTHESIS_BOUND_S = 30.0


class _Key(NamedTuple):
    text: str
    voice: str
    speed: float
    language: str


class Phrase(NamedTuple):
    """A text that some agent says word for word."""

    text: str
    voice: str
    speed: float
    language: str


class Phrases:
    """Segments of speech by what they say and how. Bounded by :data:`MAX_SEGMENTS`; what doesn't fit is made when
    it is needed."""

    def __init__(self) -> None:
        self._segments: dict[_Key, tuple[SynthesisChunk, ...]] = {}
        self._resampled: dict[tuple[_Key, int], tuple[SynthesisChunk, ...]] = {}
        """The one asked for last at the end."""
        self._resampled_bytes = 0

    def get(self, request: Synthesize, rate_hz: int) -> tuple[SynthesisChunk, ...] | None:
        """The request's speech at this rate, tagged for it; None if it was not prepared. Where a rate is none of
        :data:`LINE_RATES_HZ` the first call that asks pays for its resampling (a millisecond or two a sentence)."""
        key = _Key(request.text, request.voice, request.speed, request.language)
        made = self._at_rate(key, rate_hz)
        if made is None:
            return None
        return tuple(
            SynthesisChunk(request.epoch, request.segment, chunk.pcm, chunk.rate_hz, chunk.last, chunk.words)
            for chunk in made
        )

    def _at_rate(self, key: _Key, rate_hz: int) -> tuple[SynthesisChunk, ...] | None:
        made = self._segments.get(key)
        if made is None or made[0].rate_hz == rate_hz:
            return made
        kept = self._resampled.pop((key, rate_hz), None)
        if kept is not None:
            self._resampled[key, rate_hz] = kept
            return kept
        try:
            kept = _resampled(made, rate_hz)
        except ValueError:
            return made  # half a sample, or no rate: whoever plays it says so
        self._keep(key, kept)
        return kept

    def _keep(self, key: _Key, resampled: tuple[SynthesisChunk, ...]) -> None:
        self._resampled[key, resampled[0].rate_hz] = resampled
        self._resampled_bytes += _size(resampled)
        while self._resampled_bytes > MAX_RESAMPLED_BYTES:
            self._resampled_bytes -= _size(self._resampled.pop(next(iter(self._resampled))))

    async def prepare(self, phrases: Iterable[Phrase], tts: TextToSpeech) -> None:
        """Make every segment of the phrases. One that fails is left out, with a warning."""
        keys = dict.fromkeys(key for phrase in phrases for key in _segments_of(phrase))
        for number, key in enumerate(keys):
            if key in self._segments:
                continue
            if len(self._segments) >= MAX_SEGMENTS:
                _log.warning("phrases beyond the limit are made when needed", limit=MAX_SEGMENTS)
                return
            made = await _synthesize(tts, key, number)
            if made is not None:
                self._segments[key] = made
                await self._resample(key, made)

    async def _resample(self, key: _Key, made: tuple[SynthesisChunk, ...]) -> None:
        """For the calls to come, off the loop, as far as there is room: a long sentence takes more than 5 ms."""
        for rate_hz in LINE_RATES_HZ:
            if rate_hz != made[0].rate_hz and self._resampled_bytes < MAX_RESAMPLED_BYTES:
                with contextlib.suppress(ValueError):  # whoever asks is told
                    self._keep(key, await asyncio.to_thread(_resampled, made, rate_hz))


def _resampled(chunks: tuple[SynthesisChunk, ...], rate_hz: int) -> tuple[SynthesisChunk, ...]:
    """As one stream, of the first one's rate, that ends with the last of them."""
    resampler = Resampler(chunks[0].rate_hz, rate_hz)
    made = []
    for chunk in chunks:
        pcm = resampler.process(np.frombuffer(chunk.pcm, "<i2").astype(np.int16, copy=False))
        if chunk.last:
            pcm = np.concatenate((pcm, resampler.flush()))
        data = pcm.astype("<i2", copy=False).tobytes()
        made.append(SynthesisChunk(chunk.epoch, chunk.segment, data, rate_hz, chunk.last, chunk.words))
    return tuple(made)


def _size(chunks: tuple[SynthesisChunk, ...]) -> int:
    return sum(len(chunk.pcm) for chunk in chunks)


def _segments_of(phrase: Phrase) -> list[_Key]:
    splitter = ClauseSplitter()
    segments = [*splitter.feed(phrase.text), *splitter.flush()]
    texts = (speakable(segment.text, phrase.language).text for segment in segments)
    return [_Key(text, phrase.voice, phrase.speed, phrase.language) for text in texts if text]


async def _synthesize(tts: TextToSpeech, key: _Key, number: int) -> tuple[SynthesisChunk, ...] | None:
    loop = asyncio.get_running_loop()
    chunks: list[SynthesisChunk] = []
    done: asyncio.Future[bool] = loop.create_future()

    def deliver(result: Synthesis) -> None:
        if done.done():
            return
        if isinstance(result, SynthesisFailed):
            _log.warning("a phrase could not be prepared", code=result.code)
            done.set_result(False)
            return
        chunks.append(result)
        if result.last:
            done.set_result(True)

    request = Synthesize(
        WARM_UP_CALL, number, 0, key.text, key.voice, Priority.PLAYOUT, loop.time() + 1.0, key.speed, key.language
    )
    try:
        tts.synthesize(request, deliver)
        async with asyncio.timeout(SYNTHESIS_BOUND_S):
            whole = await done
    except TimeoutError:
        _log.warning("a phrase took too long to prepare")
        return None
    except Exception:  # noqa: BLE001 (a voice that breaks down now may speak later: the gateway starts without the phrase)
        _log.exception("a phrase could not be prepared")
        return None
    finally:
        if not done.done() or done.cancelled():
            tts.cancel(WARM_UP_CALL, number)
    if whole and not any(chunk.pcm for chunk in chunks):
        _log.warning("a phrase came out silent")
        return None
    return tuple(chunks) if whole else None
