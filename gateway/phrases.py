"""Speech that is known before a call comes: greetings, apologies and the farewell, made once at warm-up.

So a greeting costs a caller nothing, and an engine that is down is heard as a sentence, not as silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from engines.api import TextToSpeech
from streaming.jobs import Priority, Synthesis, SynthesisChunk, SynthesisFailed, Synthesize
from streaming.text.clauses import ClauseSplitter
from streaming.text.speakable import speakable

_log = structlog.get_logger(__name__)

MAX_SEGMENTS = 500
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

    def get(self, request: Synthesize) -> tuple[SynthesisChunk, ...] | None:
        """The request's speech, tagged for it; None if it was not prepared."""
        made = self._segments.get(_Key(request.text, request.voice, request.speed, request.language))
        if made is None:
            return None
        return tuple(
            SynthesisChunk(request.epoch, request.segment, chunk.pcm, chunk.rate_hz, chunk.last, chunk.words)
            for chunk in made
        )

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
