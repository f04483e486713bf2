"""What stands behind the wire: an agent that talks without end, or the caller's own words; heard by Silero, or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from engines.api import EngineSet, Pcm16, VadStream, VoiceActivityDetector
from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from engines.vad.silero import WINDOW_SAMPLES, SileroVad
from gateway.state import Gateway
from gateway.switchboard import Admission
from gateway.transports.phone.ear import Ear
from gateway.transports.phone.line import Incoming, PhoneLine

WORD_MS = 250
SENTENCE_WORDS = 12
SENTENCES = 120
"""Of the greeting: six minutes, which is longer than any measurement."""

GREETING = " ".join(
    " ".join(f"word{word}" for word in range(at, at + SENTENCE_WORDS)) + "."
    for at in range(0, SENTENCES * SENTENCE_WORDS, SENTENCE_WORDS)
)


class Heard:
    """How much of the callers' audio came as far as the detector, and how much it has judged, in samples at 16 kHz."""

    def __init__(self) -> None:
        self.fed_samples = 0
        self.scored_samples = 0


class CountedVad:
    """Another detector, counted; or one that never hears anybody, at no cost."""

    def __init__(self, heard: Heard, behind: VoiceActivityDetector | None) -> None:
        self._heard = heard
        self._behind = behind

    async def start(self) -> None:
        if self._behind is not None:
            await self._behind.start()

    async def close(self) -> None:
        if self._behind is not None:
            await self._behind.close()

    def open(self, deliver: Callable[[float, int], None]) -> VadStream:
        return _Counted(self._heard, self._behind, deliver)


class _Counted:
    def __init__(
        self, heard: Heard, behind: VoiceActivityDetector | None, deliver: Callable[[float, int], None]
    ) -> None:
        self._heard = heard
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._fed_samples = 0
        self._scored_samples = 0
        self._stream = behind.open(self._scored) if behind is not None else None

    @property
    def backlog_samples(self) -> int:
        return self._stream.backlog_samples if self._stream is not None else 0

    def feed(self, pcm: Pcm16) -> None:
        self._heard.fed_samples += len(pcm)
        if self._stream is not None:
            self._stream.feed(pcm)
            return
        self._fed_samples += len(pcm)
        ends = self._fed_samples // WINDOW_SAMPLES * WINDOW_SAMPLES
        if ends > self._scored_samples:
            self._loop.call_soon(self._scored, 0.0, ends)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _scored(self, probability: float, end_samples: int) -> None:
        self._heard.scored_samples += end_samples - self._scored_samples
        self._scored_samples = end_samples
        self._deliver(probability, end_samples)


def engines(heard: Heard, vad_model: Path | None) -> EngineSet:
    """``vad_model``: where Silero's file is; None: a detector that does nothing."""
    vad = CountedVad(heard, SileroVad(vad_model) if vad_model is not None else None)
    return EngineSet(vad, None, ScriptedStt(), ScriptedLlm(), ScriptedTts(WORD_MS))


class EchoCall:
    """In the place of :class:`gateway.transports.phone.phone_call.PhoneCall`: what comes is heard, and goes back."""

    def __init__(self, gateway: Gateway, admission: Admission, incoming: Incoming, line: PhoneLine) -> None:
        self._loop = asyncio.get_running_loop()
        self._admission = admission
        self._line = line
        self._ear = Ear()
        self._vad = gateway.engines.vad.open(lambda probability, end_samples: None)
        self._over: asyncio.Future[str] = self._loop.create_future()

    async def run(self) -> str:
        self._admission.connected()
        try:
            return await self._over
        finally:
            self._vad.close()
            await self._line.hang_up("over")

    def audio(self, pcm: Pcm16, rate_hz: int, at_ms: float | None = None) -> None:
        for block in self._ear.hear(pcm, rate_hz, at_ms, self._loop.time()):
            self._vad.feed(block)
        self._line.play(pcm)

    def hung_up(self, cause: str) -> None:
        if not self._over.done():
            self._over.set_result(cause)

    def dtmf(self, digit: str) -> None: ...

    def mark_played(self, name: str, *, cleared: bool = False) -> None: ...

    def held(self, on: bool) -> None: ...

    def writable(self) -> None: ...
