"""FAKE text-to-speech for tests and the ``null`` preset: no model, a tone for each word, timing to the millisecond.
A code word (:mod:`streaming.audio.code_words`) is sung as such.

Everything is delivered by ``loop.call_later``, so under a virtual clock it is exact. What a session must survive can
be scripted by segment: a failure, silence for ever, and audio that still comes after its epoch was cancelled.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence
from dataclasses import dataclass, field

import numpy as np

from streaming.audio.code_words import number_of, speak
from streaming.jobs import Synthesis, SynthesisChunk, SynthesisFailed, Synthesize, WordEnd

CHUNK_MS = 200
NEVER = "never"
"""As a failure code in ``fail_segments``: the segment is never answered."""

_LOWEST_HZ = 300
_STEPS = 61
_STEP_HZ = 50
_AMPLITUDE = 8000
_RAMP_MS = 5


def word_tone_hz(word: str) -> int:
    """The frequency a word is "spoken" at: 300 to 3300 Hz in steps of 50, from a hash of the word as written, lower
    case, without punctuation at its ends. Different words may share one (1 in 61)."""
    digest = hashlib.sha256(_plain(word).encode()).digest()
    return _LOWEST_HZ + _STEP_HZ * (int.from_bytes(digest[:4], "big") % _STEPS)


def _plain(word: str) -> str:
    return word.strip(".,;:!?\"'()").lower()


@dataclass(eq=False, slots=True)
class _Job:
    request: Synthesize
    deliver: Callable[[Synthesis], None]
    timers: set[asyncio.TimerHandle] = field(default_factory=set)


class ScriptedTts:
    """A FAKE engine. Each whitespace-separated word lasts exactly ``word_ms``; a code word as long as it is.

    ``first_chunk_delay_s`` after the request the first 200 ms come, and every further chunk ``realtime_factor``
    times its own length after the one before (0: all at once; 1: as fast as it is heard). ``fail_segments`` maps a
    segment number to a failure code, delivered in place of its first chunk; :data:`NEVER` delivers nothing at all.
    ``failing_after_chunks`` makes such failures come after that many chunks, as a model that turns to NaN does.
    ``ignores_cancel`` breaks the contract on purpose: stale audio keeps coming after a cancel. ``requests`` and
    ``cancelled`` record what was asked of it, unless ``records`` is False: a server that runs for days keeps no lists.
    """

    def __init__(
        self,
        word_ms: int = 250,
        *,
        first_chunk_delay_s: float = 0.0,
        realtime_factor: float = 0.0,
        rate_hz: int = 24_000,
        voices: tuple[str, ...] = ("tone",),
        fail_segments: Mapping[int, str] | None = None,
        failing_after_chunks: int = 0,
        ignores_cancel: bool = False,
        records: bool = True,
    ) -> None:
        if word_ms <= 0 or word_ms * rate_hz % 1000:
            raise ValueError("a word must be a whole number of samples")
        self._word_ms = word_ms
        self._first_chunk_delay_s = first_chunk_delay_s
        self._realtime_factor = realtime_factor
        self._rate_hz = rate_hz
        self._voices = voices
        self._fail_segments = dict(fail_segments or {})
        self._failing_after_chunks = failing_after_chunks
        self._ignores_cancel = ignores_cancel
        self._jobs: dict[tuple[str, int], set[_Job]] = {}
        self.requests: MutableSequence[Synthesize] = [] if records else deque(maxlen=0)
        self.cancelled: MutableSequence[tuple[str, int]] = [] if records else deque(maxlen=0)

    @property
    def rate_hz(self) -> int:
        return self._rate_hz

    @property
    def voices(self) -> tuple[str, ...]:
        return self._voices

    @property
    def open_segments(self) -> int:
        """Segments asked for and neither finished nor cancelled."""
        return sum(map(len, self._jobs.values()))

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        for jobs in self._jobs.values():
            for job in jobs:
                _stop(job)
        self._jobs.clear()

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        self.requests.append(request)
        job = _Job(request, deliver)
        self._jobs.setdefault((request.call, request.epoch), set()).add(job)
        code = self._fail_segments.get(request.segment)
        if code == NEVER:
            return
        answers: list[Synthesis] = list(self._chunks(request))
        if request.voice not in self._voices:
            answers = [_failure(request, "unknown_voice")]
        elif code is not None:
            answers = [*answers[: self._failing_after_chunks], _failure(request, code)]
        self._schedule(job, answers)

    def cancel(self, call: str, epoch: int) -> None:
        self.cancelled.append((call, epoch))
        if self._ignores_cancel:
            return
        for job in self._jobs.pop((call, epoch), ()):
            _stop(job)

    def _schedule(self, job: _Job, answers: list[Synthesis]) -> None:
        loop = asyncio.get_running_loop()
        delay_s = self._first_chunk_delay_s
        for index, answer in enumerate(answers):
            final = index == len(answers) - 1
            job.timers.add(loop.call_later(delay_s, self._hand_over, job, answer, final))
            if isinstance(answer, SynthesisChunk):
                delay_s += len(answer.pcm) / 2 / self._rate_hz * self._realtime_factor

    def _hand_over(self, job: _Job, answer: Synthesis, final: bool) -> None:
        if final:
            key = (job.request.call, job.request.epoch)
            jobs = self._jobs.get(key, set())
            jobs.discard(job)
            if not jobs:
                self._jobs.pop(key, None)
        job.deliver(answer)

    def _chunks(self, request: Synthesize) -> list[SynthesisChunk]:
        found = list(re.finditer(r"\S+", request.text))
        sounds = [self._sound(word[0]) for word in found]
        ends_ms = [bytes_so_far * 500 / self._rate_hz for bytes_so_far in itertools.accumulate(map(len, sounds))]
        pcm = b"".join(sounds)
        step = self._rate_hz * CHUNK_MS // 1000 * 2
        blocks = [pcm[at : at + step] for at in range(0, len(pcm), step)] or [b""]
        chunks = []
        for index, block in enumerate(blocks):
            begin_ms, end_ms = index * CHUNK_MS, (index + 1) * CHUNK_MS
            words = tuple(
                WordEnd(word.end(), at_ms)
                for word, at_ms in zip(found, ends_ms, strict=True)
                if begin_ms < at_ms <= end_ms
            )
            last = index == len(blocks) - 1
            chunks.append(SynthesisChunk(request.epoch, request.segment, block, self._rate_hz, last=last, words=words))
        return chunks

    def _sound(self, word: str) -> bytes:
        plain = _plain(word)
        if number_of(plain) is None:
            return _tone(word_tone_hz(word), self._word_ms * self._rate_hz // 1000, self._rate_hz)
        return speak(plain, self._rate_hz).astype("<i2").tobytes()


@functools.lru_cache(maxsize=4 * _STEPS)
def _tone(frequency_hz: int, samples: int, rate_hz: int) -> bytes:
    ramp = min(rate_hz * _RAMP_MS // 1000, samples // 2)
    tone = np.sin(np.arange(samples) * (2 * math.pi * frequency_hz / rate_hz)) * _AMPLITUDE
    tone[:ramp] *= np.linspace(0, 1, ramp)
    tone[samples - ramp :] *= np.linspace(1, 0, ramp)
    pcm: bytes = np.rint(tone).astype("<i2").tobytes()
    return pcm


def _stop(job: _Job) -> None:
    for timer in job.timers:
        timer.cancel()


def _failure(request: Synthesize, code: str) -> SynthesisFailed:
    return SynthesisFailed(request.epoch, request.segment, code, "scripted failure")
