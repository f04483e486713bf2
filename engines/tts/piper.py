"""Piper voices as a text-to-speech engine, without GPL code: own phonemes (:mod:`engines.tts.g2p`), onnxruntime.

A segment is one inference (VITS does not stream), cut into several only past :data:`MAX_PHONEMES`. Measured on one
thread, phonemes included: "Sure." 45 ms, a 47-character clause 0.22 s, 150 characters 0.6 s (0.08 of real time); in
memory 130 MB after the start, of which 19 MB are lexicons and network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engines.api import EngineError, Pcm16
from engines.lane import CpuLane
from engines.tts.g2p.english import EnglishPhonemes, Phonemes, SpokenWord
from engines.tts.g2p.letters import LetterToSound
from engines.tts.g2p.lexicon import Lexicon
from engines.tts.g2p.runs import runs_of
from engines.tts.lane_segments import Inferences, LaneSegments
from engines.tts.piper_voice import PiperVoice, Speech
from engines.tts.spoken_audio import bounded_speed, chunks, trimmed
from streaming.jobs import Synthesis, SynthesisChunk, Synthesize

RATE_HZ = 22_050
VOICES = ("joe",)
MAX_PHONEMES = 400
"""Longest inference: about 18 s of audio, 1.7 s of one core."""

GAIN = 1.2
"""The voice's loudest sentences peak at 0.79 of full scale; one gain for all keeps segments alike."""
MIN_PEAK = 0.01


class Voice(Protocol):
    @property
    def rate_hz(self) -> int: ...

    def speak(self, words: Sequence[SpokenWord], speed: float) -> Speech: ...


@dataclass(frozen=True, slots=True)
class _Models:
    phonemes: Phonemes
    voice: Voice


class PiperTts:
    """The folders hold the files of the catalogue's ``piper-joe``, ``misaki-en`` and ``g2p-en``. All work of all
    calls runs as jobs of ``lane``, which the owner closes after this engine."""

    rate_hz = RATE_HZ
    voices = VOICES

    def __init__(self, voice_dir: Path, lexicon_dir: Path, g2p_dir: Path, lane: CpuLane) -> None:
        self._voice_dir = voice_dir
        self._lexicon_dir = lexicon_dir
        self._g2p_dir = g2p_dir
        self._models: _Models | None = None
        self._segments = LaneSegments(lane)

    async def start(self) -> None:
        try:
            models = await asyncio.to_thread(self._load)
        except Exception as error:  # a damaged file: onnxruntime, zipfile and json each raise their own
            raise EngineError("model_load_failed", f"Piper: {error}") from error
        if models.voice.rate_hz != RATE_HZ:
            raise EngineError("model_load_failed", f"Piper: the voice's rate is {models.voice.rate_hz} Hz")
        self._models = models

    async def close(self) -> None:
        self._segments.clear()
        self._models = None

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        """Codes of a failure: ``unknown_voice``, ``unsupported_language``, ``not_started``, ``overloaded``,
        ``bad_audio``, ``synthesis_failed``."""
        if request.voice not in VOICES:
            self._segments.refuse(request, deliver, "unknown_voice", f"no voice {request.voice!r}")
        elif request.language.partition("-")[0].lower() != "en":
            self._segments.refuse(request, deliver, "unsupported_language", "this voice speaks English only")
        elif self._models is None:
            self._segments.refuse(request, deliver, "not_started", "the engine was not started")
        else:
            self._segments.speak(request, deliver, _inferences(request, self._models))

    def cancel(self, call: str, epoch: int) -> None:
        self._segments.cancel(call, epoch)

    def _load(self) -> _Models:
        english = EnglishPhonemes(Lexicon.load(self._lexicon_dir), LetterToSound.load(self._g2p_dir))
        voice = PiperVoice.load(self._voice_dir)
        # Shapes are dynamic, so one short and one long text warm all there is to warm: threads, arena, tables.
        for text in ("Sure.", "Yes, we are open on Saturday, Mr. Wojtkiewicz."):
            voice.speak(english.words(text), 1.0)
        return _Models(english, voice)


def _inferences(request: Synthesize, models: _Models) -> Inferences:
    runs, sent_samples = runs_of(models.phonemes.words(request.text), MAX_PHONEMES, _size), 0
    if not runs:
        yield [SynthesisChunk(request.epoch, request.segment, b"", RATE_HZ, last=True)]
    for number, words in enumerate(runs, start=1):
        speech = models.voice.speak(words, bounded_speed(request.speed))
        pcm, ends_ms = spoken_pcm(speech, words[-1].pause)
        last = number == len(runs)
        yield chunks(request, pcm, RATE_HZ, last=last, words=words, ends_ms=ends_ms, before_samples=sent_samples)
        sent_samples += pcm.size


def _size(words: Sequence[SpokenWord]) -> int:
    return sum(len(word.ipa) for word in words)


def spoken_pcm(speech: Speech, pause: str) -> tuple[Pcm16, list[float]]:
    """The PCM of one inference, at one constant gain, and where each of its words ends in it, in ms. ``pause`` is the
    punctuation heard after it. Raises :class:`engines.tts.spoken_audio.BadAudioError`."""
    return trimmed(speech.samples, speech.word_ends, pause, RATE_HZ, min_peak=MIN_PEAK, gain=GAIN)
