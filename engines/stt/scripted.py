"""A speech-to-text that hears nothing: it says its lines. For tests and load tests.

It looks at its audio for two things only: how much there is, and whether any of it is louder than
:data:`SILENT_BELOW_DBFS`. All timing is ``loop.call_later``, so it is exact under a virtual clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from engines.api import EngineError, Pcm16
from streaming.audio.level import rms_dbfs
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Transcript,
    TranscriptionFailed,
)

SILENT_BELOW_DBFS = -45.0
WORDS_PER_SECOND = 2.5

Lines = Sequence[str] | Callable[[str, int], str]
"""Lines in turn, from the first again when they are through; or ``(call, n) -> line``, ``n`` counting from 0 in each
call."""


Fault = Literal["none", "fail", "mute", "twice", "late"]


class ScriptedStt:
    """A fake :class:`engines.api.SpeechToText`.

    Each new utterance of a call that has sound takes the next line; one without gives an empty final. With
    ``partial_every_ms``, partials come after this much audio each and reveal words as audio goes by. ``fault``:
    ``fail`` delivers :class:`TranscriptionFailed`, ``mute`` never answers, ``twice`` answers each request twice,
    ``late`` answers also after the stream was closed (which no real engine may do). Attributes may be changed while it
    runs; ``finals_asked`` and ``open_streams`` are for assertions.
    """

    def __init__(
        self,
        lines: Lines = ("hello there",),
        *,
        partial_every_ms: float | None = None,
        final_delay_s: float = 0.0,
        fault: Fault = "none",
        start_fails: bool = False,
    ) -> None:
        self._lines = lines
        self.partial_every_ms = partial_every_ms
        self.final_delay_s = final_delay_s
        self.fault: Fault = fault
        self.start_fails = start_fails
        self.finals_asked = 0
        self.open_streams = 0
        self._heard: dict[str, int] = {}

    async def start(self) -> None:
        if self.start_fails:
            raise EngineError("scripted", "the script says that this engine does not start")

    async def close(self) -> None:
        self._heard.clear()

    def open(self, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> ScriptedUtterance:
        return ScriptedUtterance(self, request, deliver)

    def next_line(self, call: str) -> str:
        """The line of a call's next utterance that has sound."""
        count = self._heard.get(call, 0)
        self._heard[call] = count + 1
        return self._lines(call, count) if callable(self._lines) else self._lines[count % len(self._lines)]


class ScriptedUtterance:
    """A fake :class:`engines.api.TranscriptionStream`."""

    def __init__(self, engine: ScriptedStt, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> None:
        self._engine = engine
        self._request = request
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._line: str | None = None
        self._fed_samples = 0
        self._partial_at_samples = 0
        self._words_shown = 0
        self._closed = False
        engine.open_streams += 1

    def feed(self, pcm: Pcm16) -> None:
        if self._closed:
            return
        self._fed_samples += pcm.size
        if self._line is None and rms_dbfs(pcm) >= SILENT_BELOW_DBFS:
            self._line = self._engine.next_line(self._request.call)
        every_ms = self._engine.partial_every_ms
        if every_ms is None or not self._request.partials:
            return
        if self._fed_samples - self._partial_at_samples >= every_ms * INPUT_RATE_HZ / 1000:
            self._partial_at_samples = self._fed_samples
            self._show_words()

    def finalize(self, request: FinalizeTranscription) -> None:
        self._engine.finals_asked += 1
        fault = self._engine.fault
        if self._closed or fault == "mute":
            return
        answer: Transcript = FinalTranscript(request.utterance, request.revision, self._line or "")
        if fault == "fail":
            answer = TranscriptionFailed(request.utterance, request.revision, "scripted", "the script says so")
        for _ in range(2 if fault == "twice" else 1):
            self._loop.call_later(self._engine.final_delay_s, self._answer, answer)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.open_streams -= 1

    def _show_words(self) -> None:
        words = (self._line or "").split()
        shown = min(len(words), int(self._fed_samples / INPUT_RATE_HZ * WORDS_PER_SECOND))
        if shown > self._words_shown:
            self._words_shown = shown
            self._loop.call_soon(self._answer, PartialTranscript(self._request.utterance, " ".join(words[:shown])))

    def _answer(self, transcript: Transcript) -> None:
        if not self._closed or self._engine.fault == "late":
            self._deliver(transcript)
