"""Speech-to-text with faster-whisper's pieces on CTranslate2: partials while a caller speaks, finals when asked.

Whisper is no streaming model: each job decodes the utterance so far. What keeps that cheap is the short mel window
(:mod:`engines.stt.whisper_decoder`) and that long audio is committed piece by piece (:mod:`engines.stt.utterance`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from engines.api import EngineError, Pcm16
from engines.in_flight import InFlight
from engines.lane import CpuLane
from engines.stt.clip_lane import ClipLane
from engines.stt.plausible import audible, verdict
from engines.stt.utterance import Utterance
from engines.stt.whisper_decoder import FINAL, PARTIAL, RETRY, DecodeOptions, Device, Hypothesis, WhisperDecoder
from streaming.jobs import OpenTranscription, Transcript


class ClipDecoder(Protocol):
    """What turns a clip into a hypothesis: :class:`WhisperDecoder`, or a stand-in under test."""

    def supports(self, language: str) -> bool: ...

    def decode(self, pcm: Pcm16, options: DecodeOptions, language: str = "en") -> Hypothesis: ...

    def warm(self) -> None: ...

    def close(self) -> None: ...


class FasterWhisper:
    """A :class:`engines.api.SpeechToText`. All decoding runs on ``lane``, one core a job; with CUDA, clips of jobs that
    run at once are one batch. ``device`` and what follows are :class:`WhisperDecoder`'s.

    ``load(model_dir, threads)`` makes the decoder, ``threads`` being how many may call it at once.
    """

    def __init__(
        self,
        model_dir: Path,
        lane: CpuLane,
        *,
        device: Device = "cpu",
        compute_type: str = "",
        full_window: bool | None = None,
        batch: int = 8,
        load: Callable[[Path, int], ClipDecoder] | None = None,
    ) -> None:
        if device not in ("auto", "cpu", "cuda") or batch < 1:
            raise EngineError("bad_options", "device is auto, cpu or cuda; batch 1 or more")
        self._model_dir = model_dir
        self._lane = lane
        self._load: Callable[[Path, int], ClipDecoder] = load or partial(
            WhisperDecoder, device=device, compute_type=compute_type, full_window=full_window, batch=batch
        )
        self._decoder: ClipDecoder | None = None
        self._workplace: ClipLane | None = None
        self._in_flight = InFlight()
        self._open: set[Utterance] = set()

    async def start(self) -> None:
        self._decoder = await asyncio.to_thread(self._load_and_warm)
        self._workplace = ClipLane(asyncio.get_running_loop(), self._lane, self._in_flight, self._transcribe)

    def open(self, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> Utterance:
        if self._decoder is None or self._workplace is None:
            raise EngineError("not_started", "the speech-to-text engine is not running")
        utterance = Utterance(
            request,
            deliver,
            self._workplace,
            supported=self._decoder.supports(request.language),
            closed=self._open.discard,
        )
        self._open.add(utterance)
        return utterance

    async def close(self) -> None:
        for utterance in list(self._open):
            utterance.close()
        await self._in_flight.drain()
        decoder, self._decoder = self._decoder, None
        if decoder is not None:
            await asyncio.to_thread(decoder.close)

    def _load_and_warm(self) -> ClipDecoder:
        decoder = self._load(self._model_dir, self._lane.slots)
        decoder.warm()
        return decoder

    def _transcribe(self, pcm: Pcm16, language: str, partial: bool) -> str:
        """The words spoken in a clip. Runs on a lane thread, inside the in-flight count."""
        decoder = self._decoder
        if decoder is None or not audible(pcm):
            return ""
        text = verdict(decoder.decode(pcm, PARTIAL if partial else FINAL, language), partial=partial)
        if text is None:
            text = verdict(decoder.decode(pcm, RETRY, language), partial=partial, retried=True)
        return text or ""
