"""Piper voices as a text-to-speech engine, without GPL code: own phonemes (:mod:`engines.tts.g2p`), onnxruntime.

A segment is one inference (VITS does not stream), cut into several only past :data:`MAX_PHONEMES`. Measured on one
thread, phonemes included: "Sure." 45 ms, a 47-character clause 0.22 s, 150 characters 0.6 s (0.08 of real time); in
memory 130 MB after the start, of which 19 MB are lexicons and network.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import structlog

from engines.api import EngineError, Pcm16
from engines.lane import CpuLane, LaneFull, Slot
from engines.tts.g2p.english import EnglishPhonemes, SpokenWord
from engines.tts.g2p.letters import LetterToSound
from engines.tts.g2p.lexicon import Lexicon
from engines.tts.piper_voice import PiperVoice, Speech
from streaming.jobs import Priority, Synthesis, SynthesisChunk, SynthesisFailed, Synthesize, WordEnd

RATE_HZ = 22_050
VOICES = ("joe",)
CHUNK_MS = 200
MAX_PHONEMES = 400
"""Longest inference: about 18 s of audio, 1.7 s of one core."""
MIN_SPEED, MAX_SPEED = 0.5, 2.0

GAIN = 1.2
"""The voice's loudest sentences peak at 0.79 of full scale; one gain for all keeps segments alike."""
MAX_PEAK = 0.97
MIN_PEAK = 0.01
_AUDIBLE_DB = -48.0
"""Against the segment's peak: quieter 5 ms frames at its edges are the model's own padding."""
_FRAME_MS = 5
_LEAD_MS = 10
_TAIL_MS = {"": 40, ",": 140, ":": 180, ";": 180, ".": 240, "!": 240, "?": 240}
_FADE_MS = 5

_log = structlog.get_logger(__name__)


class BadAudioError(Exception):
    """The model made NaN or silence."""


class Phonemes(Protocol):
    def words(self, text: str) -> list[SpokenWord]: ...


class Voice(Protocol):
    @property
    def rate_hz(self) -> int: ...

    def speak(self, words: Sequence[SpokenWord], speed: float) -> Speech: ...


@dataclass(frozen=True, slots=True)
class _Models:
    phonemes: Phonemes
    voice: Voice


@dataclass(eq=False, slots=True)
class _Job:
    request: Synthesize
    deliver: Callable[[Synthesis], None]
    loop: asyncio.AbstractEventLoop
    cancelled: bool = False
    groups: list[list[SpokenWord]] | None = None  # None until the text was turned into phonemes
    sent_samples: int = 0

    def is_dead(self) -> bool:
        return self.cancelled


@dataclass(frozen=True, slots=True)
class _Piece:
    """One inference's audio, ready to deliver."""

    chunks: list[bytes] = field(default_factory=list)
    words: tuple[WordEnd, ...] = ()
    more: bool = False
    """Whether the segment goes on after it."""


class PiperTts:
    """The folders hold the files of the catalogue's ``piper-joe``, ``misaki-en`` and ``g2p-en``. All work of all
    calls runs as jobs of ``lane``, which the owner closes after this engine."""

    rate_hz = RATE_HZ
    voices = VOICES

    def __init__(self, voice_dir: Path, lexicon_dir: Path, g2p_dir: Path, lane: CpuLane) -> None:
        self._voice_dir = voice_dir
        self._lexicon_dir = lexicon_dir
        self._g2p_dir = g2p_dir
        self._lane = lane
        self._models: _Models | None = None
        self._jobs: dict[tuple[str, int], set[_Job]] = {}

    async def start(self) -> None:
        try:
            models = await asyncio.to_thread(self._load)
        except Exception as error:  # a damaged file: onnxruntime, zipfile and json each raise their own
            raise EngineError("model_load_failed", f"Piper: {error}") from error
        if models.voice.rate_hz != RATE_HZ:
            raise EngineError("model_load_failed", f"Piper: the voice's rate is {models.voice.rate_hz} Hz")
        self._models = models

    async def close(self) -> None:
        for jobs in self._jobs.values():
            for job in jobs:
                job.cancelled = True
        self._jobs.clear()
        self._models = None

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        """Codes of a failure: ``unknown_voice``, ``unsupported_language``, ``not_started``, ``overloaded``,
        ``bad_audio``, ``synthesis_failed``."""
        loop = asyncio.get_running_loop()
        models = self._models
        job = _Job(request, deliver, loop)
        self._jobs.setdefault((request.call, request.epoch), set()).add(job)
        if request.voice not in VOICES:
            loop.call_soon(self._fail, job, "unknown_voice", f"no voice {request.voice!r}")
        elif request.language.partition("-")[0].lower() != "en":
            loop.call_soon(self._fail, job, "unsupported_language", "this voice speaks English only")
        elif models is None:
            loop.call_soon(self._fail, job, "not_started", "the engine was not started")
        else:
            self._submit(job, models, request.priority)

    def cancel(self, call: str, epoch: int) -> None:
        for job in self._jobs.pop((call, epoch), ()):
            job.cancelled = True

    def _load(self) -> _Models:
        english = EnglishPhonemes(Lexicon.load(self._lexicon_dir), LetterToSound.load(self._g2p_dir))
        voice = PiperVoice.load(self._voice_dir)
        # Shapes are dynamic, so one short and one long text warm all there is to warm: threads, arena, tables.
        for text in ("Sure.", "Yes, we are open on Saturday, Mr. Wojtkiewicz."):
            voice.speak(english.words(text), 1.0)
        return _Models(english, voice)

    def _submit(self, job: _Job, models: _Models, priority: Priority) -> None:
        def run(_slot: Slot) -> None:
            self._run(job, models)

        try:
            self._lane.submit(priority, job.request.deadline, run, abandoned=lambda: job.cancelled)
        except LaneFull as error:
            job.loop.call_soon(self._fail, job, "overloaded", str(error))

    def _run(self, job: _Job, models: _Models) -> None:
        """One inference, on a worker thread."""
        try:
            piece = _next_piece(job, models)
        except BadAudioError as error:
            self._answer(job, self._fail, job, "bad_audio", str(error))
        except Exception as error:  # noqa: BLE001  # whatever a model throws is this job's failure, no more
            _log.exception("speech synthesis failed", voice=job.request.voice)
            self._answer(job, self._fail, job, "synthesis_failed", str(error))
        else:
            self._answer(job, self._land, job, models, piece)

    @staticmethod
    def _answer(job: _Job, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is there to be told
            job.loop.call_soon_threadsafe(callback, *args)

    def _land(self, job: _Job, models: _Models, piece: _Piece) -> None:
        if job.cancelled:
            return
        request, last = job.request, len(piece.chunks) - 1
        if piece.more:
            self._submit(job, models, max(request.priority, Priority.PLAYOUT))
        for index, pcm in enumerate(piece.chunks):
            closing = index == last and not piece.more
            words = piece.words if index == 0 else ()
            if closing:
                self._forget(job)
            job.deliver(SynthesisChunk(request.epoch, request.segment, pcm, RATE_HZ, last=closing, words=words))
            if job.is_dead():  # by the receiver, on what it just got
                return

    def _fail(self, job: _Job, code: str, message: str) -> None:
        if job.cancelled:
            return
        self._forget(job)
        job.deliver(SynthesisFailed(job.request.epoch, job.request.segment, code, message))

    def _forget(self, job: _Job) -> None:
        key = (job.request.call, job.request.epoch)
        jobs = self._jobs.get(key)
        if jobs is not None:
            jobs.discard(job)
            if not jobs:
                del self._jobs[key]


def _next_piece(job: _Job, models: _Models) -> _Piece:
    request = job.request
    if job.groups is None:
        job.groups = groups(models.phonemes.words(request.text), MAX_PHONEMES)
    if not job.groups:
        return _Piece([b""])
    words = job.groups.pop(0)
    speed = min(max(request.speed, MIN_SPEED), MAX_SPEED) if math.isfinite(request.speed) else 1.0
    pcm, ends_ms = shape(models.voice.speak(words, speed), words[-1].pause)
    offset_ms = job.sent_samples * 1000 / RATE_HZ
    job.sent_samples += pcm.size
    ends = tuple(WordEnd(word.text_end, offset_ms + ms) for word, ms in zip(words, ends_ms, strict=False))
    step = RATE_HZ * CHUNK_MS // 1000
    chunks = [pcm[at : at + step].astype("<i2", copy=False).tobytes() for at in range(0, pcm.size, step)]
    return _Piece(chunks, ends, more=bool(job.groups))


def groups(words: Sequence[SpokenWord], max_phonemes: int) -> list[list[SpokenWord]]:
    """Words in runs of at most ``max_phonemes`` (a longer word is a run alone), cut after the last pause in the
    run's second half if there is one."""
    out: list[list[SpokenWord]] = []
    run: list[SpokenWord] = []
    size = 0
    for word in words:
        if run and size + len(word.ipa) > max_phonemes:
            pauses = [index for index, member in enumerate(run) if member.pause and index >= len(run) // 2]
            cut = pauses[-1] + 1 if pauses else len(run)
            out.append(run[:cut])
            run = run[cut:]
            size = sum(len(member.ipa) for member in run)
        run.append(word)
        size += len(word.ipa)
    return [*out, run] if run else out


def shape(speech: Speech, pause: str) -> tuple[Pcm16, list[float]]:
    """The model's samples as PCM: its padding cut to a 10 ms lead and a tail that suits the ``pause`` punctuation,
    one constant gain (less only where that would clip). Also where each word ends, in ms.

    Raises:
        BadAudioError: a sample is not finite, or nothing can be heard.
    """
    samples = speech.samples
    if not samples.size or not np.isfinite(samples).all():
        raise BadAudioError("the model made samples that are not numbers")
    peak = float(np.abs(samples).max())
    if peak < MIN_PEAK:
        raise BadAudioError("the model made silence")
    first, last = _audible(samples, peak)
    start = max(0, first - RATE_HZ * _LEAD_MS // 1000)
    end = last + RATE_HZ * _TAIL_MS[pause] // 1000
    cut = samples[start:end] * (min(GAIN, MAX_PEAK / peak) * 32767)
    fade = min(RATE_HZ * _FADE_MS // 1000, cut.size)
    cut[cut.size - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
    pcm = np.zeros(end - start, np.int16)
    pcm[: cut.size] = np.rint(cut)
    return pcm, [(min(max(at, start), last) - start) * 1000 / RATE_HZ for at in speech.word_ends]


def _audible(samples: np.ndarray[tuple[int], np.dtype[np.float32]], peak: float) -> tuple[int, int]:
    """The first and the end of what can be heard, as sample indexes."""
    frame = RATE_HZ * _FRAME_MS // 1000
    whole = samples.size // frame * frame
    loudness = np.abs(samples[:whole].reshape(-1, frame)).max(axis=1)
    audible = np.flatnonzero(loudness > peak * 10 ** (_AUDIBLE_DB / 20))
    if not audible.size:
        return 0, samples.size
    return int(audible[0]) * frame, (int(audible[-1]) + 1) * frame
