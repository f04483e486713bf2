"""The caller's side of a call: its audio, kept for a while, on its way to the engines that listen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from engines.api import EngineSet, Pcm16, TranscriptionStream
from gateway.guarded import ENGINE_RAISED, Guarded
from streaming.audio.ring import PcmRing
from streaming.effects import CloseTranscription
from streaming.events import Event, InputAppended, VoiceScored
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    OpenTranscription,
    ScoreEndOfTurn,
    TranscriptionFailed,
)
from streaming.vad import WINDOW_SAMPLES

BACKLOG_SAMPLES = 2 * INPUT_RATE_HZ
"""Caller audio the voice activity detector may be behind before the leg has to wait."""

KEPT_SAMPLES = 12 * INPUT_RATE_HZ
"""Caller audio kept: the backlog, the 8 s the end-of-turn model hears, and the pre-roll."""

SLICE_SAMPLES = INPUT_RATE_HZ
"""A long append is taken in pieces of a second, so that it holds up nobody else."""

ROOM_S = 5.0
"""How long caller audio waits for a voice activity detector that is behind; then it is dropped, and counted."""
ROOM_POLL_S = 0.05
"""A detector may lose windows without a word: its backlog is looked at, too."""


class CallerAudio:
    """Feeds the voice activity detector at once, and the open transcription as far as the detector has come (when the
    client takes its own turns: at once, too). ``handle`` takes the call's events, ``manual`` says who takes turns."""

    def __init__(
        self,
        engines: EngineSet,
        guarded: Guarded,
        *,
        handle: Callable[[Event], None],
        manual: Callable[[], bool],
        count: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._engines = engines
        self._guarded = guarded
        self._handle = handle
        self._manual = manual
        self._count = count
        self._ring = PcmRing(KEPT_SAMPLES)
        self._scored_samples = 0
        self._room = asyncio.Event()
        self._closed = False
        self._streams: dict[int, TranscriptionStream] = {}
        self._fed: TranscriptionStream | None = None
        self._vad = engines.vad.open(self._voice)

    @property
    def end_samples(self) -> int:
        """All caller audio so far."""
        return self._ring.end_samples

    async def hear(self, pcm: Pcm16) -> None:
        """Audio at 16 kHz, any length. Returns when there is room for more."""
        for at in range(0, len(pcm), SLICE_SAMPLES):
            if at:
                await asyncio.sleep(0)
            if await self._has_room():
                self._take(pcm[at : at + SLICE_SAMPLES])
            else:
                self._count("input_dropped")

    def hear_now(self, pcm: Pcm16) -> bool:
        """A frame or a few from a wire that cannot wait. While the detector is more than :data:`BACKLOG_SAMPLES` behind
        they are dropped, and counted; positions go on without them."""
        if self._vad.backlog_samples > BACKLOG_SAMPLES:
            self._count("caller_audio_dropped")
            return False
        self._take(pcm)
        return True

    async def _has_room(self) -> bool:
        """Wait for the detector to catch up. False: it does not, or the call is over."""
        until = self._loop.time() + ROOM_S
        while self._vad.backlog_samples > BACKLOG_SAMPLES:
            if self._closed or self._loop.time() >= until:
                return False
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROOM_POLL_S):
                    await self._room.wait()
        return True

    async def caught_up(self) -> None:
        """Wait, but not for long, until the detector has come to the end of what was fed, but for a part window."""
        until = self._loop.time() + ROOM_S
        while self._ring.end_samples - self._scored_samples >= WINDOW_SAMPLES and self._loop.time() < until:
            if self._closed:
                return
            self._room.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROOM_POLL_S):
                    await self._room.wait()

    def _take(self, pcm: Pcm16) -> None:
        if self._closed or not len(pcm):
            return
        self._ring.append(pcm)
        self._guarded.ask(self._vad.feed, pcm)
        if self._manual():
            self._handle(InputAppended(self._ring.end_samples))
            self._feed_up_to(self._ring.end_samples)

    def _voice(self, probability: float, end_samples: int) -> None:
        self._room.set()
        if self._closed:
            return
        if not self._manual():
            self._feed_up_to(end_samples)
        self._handle(VoiceScored(probability, end_samples))

    def _feed_up_to(self, end_samples: int) -> None:
        if end_samples > self._scored_samples:
            if self._fed is not None:
                self._feed(self._ring.read(self._scored_samples, end_samples))
            self._scored_samples = end_samples

    def _feed(self, pcm: Pcm16) -> None:
        stream = self._fed
        if stream is not None and not self._guarded.ask(stream.feed, pcm):
            self._drop(stream)

    # --- the session's effects --------------------------------------------------------------------------------

    def open(self, effect: OpenTranscription) -> None:
        self._fed = None
        try:
            stream = self._engines.stt.open(effect, self._handle)
        except Exception as error:  # noqa: BLE001 (its transcript fails, when it is asked for)
            self._guarded.raised(error, "open")
            return
        self._streams[effect.utterance] = self._fed = stream
        self._feed(self._ring.read(effect.start_samples, self._scored_samples))

    def finalize(self, effect: FinalizeTranscription) -> None:
        stream = self._streams.get(effect.utterance)
        if stream is None or not self._guarded.ask(stream.finalize, effect):
            message = "speech-to-text broke down"
            self._handle(TranscriptionFailed(effect.utterance, effect.revision, ENGINE_RAISED, message))

    def close_transcription(self, effect: CloseTranscription) -> None:
        stream = self._streams.get(effect.utterance)
        if stream is not None:
            self._drop(stream)

    def score(self, effect: ScoreEndOfTurn) -> None:
        if self._engines.turn is not None:
            audio = self._ring.read(effect.start_samples, effect.end_samples)
            self._guarded.ask(self._engines.turn.score, effect, audio, self._handle)

    def drop_transcriptions(self) -> None:
        """After a defect: that they are closed may be among the effects that were lost."""
        for stream in list(self._streams.values()):
            self._drop(stream)

    def close(self) -> None:
        self._closed = True
        self._guarded.ask(self._vad.close)
        self.drop_transcriptions()
        self._ring.close()
        self._room.set()

    def _drop(self, stream: TranscriptionStream) -> None:
        """Closed, or it raised: then whoever finalizes it is told that it failed."""
        self._streams = {utterance: known for utterance, known in self._streams.items() if known is not stream}
        self._fed = None if self._fed is stream else self._fed
        self._guarded.ask(stream.close)
