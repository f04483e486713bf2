"""Runs one call: feeds its session, performs the session's effects. All of it on the event loop, nothing blocking."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import structlog

from engines.api import EngineSet, Pcm16, TranscriptionStream
from gateway.phrases import Phrases
from gateway.playout import Playout
from gateway.records.call_record import CallRecord
from gateway.telemetry.metrics import Metrics
from streaming import effects as fx
from streaming.audio.ring import PcmRing
from streaming.config import SessionConfig
from streaming.events import (
    Answered,
    AudioQueued,
    AudioSent,
    Drain,
    Event,
    HungUp,
    InputAppended,
    PlayoutResumed,
    TimerFired,
    VoiceScored,
)
from streaming.jobs import (
    INPUT_RATE_HZ,
    FinalizeTranscription,
    Generate,
    OpenTranscription,
    ScoreEndOfTurn,
    Synthesis,
    SynthesisFailed,
    Synthesize,
)
from streaming.notices import ItemAdded, ItemDeleted, ItemTruncated, Notice, OutputEnded, OutputStarted
from streaming.session import Session

_log = structlog.get_logger(__name__)

BACKLOG_SAMPLES = 2 * INPUT_RATE_HZ
"""Caller audio the voice activity detector may be behind before the leg has to wait."""

KEPT_SAMPLES = 12 * INPUT_RATE_HZ
"""Caller audio kept: the backlog, the 8 s the end-of-turn model hears, and the pre-roll."""

SLICE_SAMPLES = INPUT_RATE_HZ
"""A long append is taken in pieces of a second, so that it holds up nobody else."""

MAX_QUEUED_EVENTS = 10_000


class Leg(Protocol):
    """The side of a call that audio and notices leave by. None of these block."""

    lead_ms: int
    """How far ahead of its ear the far end may be sent audio."""

    @property
    def congested(self) -> bool:
        """Whether the far end does not take what it was sent: then audio waits, and ``on_writable`` is called when
        it flows again."""

    def notify(self, notice: Notice) -> None: ...

    def play(self, response_id: str, item_id: str, pcm: Pcm16) -> None:
        """One frame at the session's output rate."""

    def clear(self) -> None:
        """Drop what the far end has buffered, where the wire can say so."""


class Call:
    """One conversation from accept to a recorded cause.

    ``strict`` raises a defect in the session where it happens (tests); otherwise it ends the turn, and is counted.
    """

    def __init__(
        self,
        *,
        record: CallRecord,
        config: SessionConfig,
        engines: EngineSet,
        leg: Leg,
        phrases: Phrases,
        metrics: Metrics,
        farewell: str,
        new_id: Callable[[str], str],
        strict: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._record = record
        self._engines = engines
        self._leg = leg
        self._phrases = phrases
        self._metrics = metrics
        self._farewell = farewell
        self._strict = strict
        self._session = Session(record.id, config, new_id, self._started)
        self._playout = Playout(self._loop, leg, self._frame_sent)
        self._ring = PcmRing(KEPT_SAMPLES)
        self._scored_samples = 0
        self._room = asyncio.Event()
        self._vad = engines.vad.open(self._voice)
        self._streams: dict[int, TranscriptionStream] = {}
        self._fed: TranscriptionStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._queue: deque[Event] = deque()
        self._busy = False
        self.finished = asyncio.Event()
        self._perform_by: dict[type, Callable[[Any], object]] = {
            OpenTranscription: self._open_transcription,
            FinalizeTranscription: self._finalize,
            fx.CloseTranscription: self._close_transcription,
            ScoreEndOfTurn: self._score,
            Generate: self._generate,
            Synthesize: self._synthesize,
            fx.Promote: lambda e: engines.llm.prioritize(record.id, e.epoch),
            fx.CancelEpoch: self._cancel_epoch,
            fx.CancelJobs: self._cancel_jobs,
            fx.OpenPlayout: lambda e: self._playout.open(e.epoch, e.response_id, e.item_id),
            fx.HoldPlayout: self._hold,
            fx.ReleasePlayout: self._release,
            fx.ClosePlayout: lambda e: self._playout.drop(e.epoch),
            fx.Notify: self._notify,
            fx.SetTimer: self._set_timer,
            fx.CancelTimer: self._cancel_timer,
            fx.RecordTurn: self._record_turn,
            fx.Count: lambda e: metrics.count(e.name),
            fx.EndCall: self._end,
        }

    # --- the switchboard's side (LiveCall) --------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def record(self) -> CallRecord:
        return self._record

    def drain(self) -> None:
        self.handle(Drain(self._farewell))

    def hang_up(self, cause: str) -> None:
        """End the call now. The first cause stands."""
        self.handle(HungUp(cause))

    # --- the leg's side ---------------------------------------------------------------------------------------

    def answered(self) -> None:
        """Media flows."""
        self._record.answered(self._now_ms())
        self.handle(Answered())

    async def hear(self, pcm: Pcm16) -> None:
        """Caller audio at 16 kHz, any length. Returns when there is room for more."""
        for at in range(0, len(pcm), SLICE_SAMPLES):
            self._take(pcm[at : at + SLICE_SAMPLES])
            while self._vad.backlog_samples > BACKLOG_SAMPLES and not self.finished.is_set():
                self._room.clear()
                await self._room.wait()
            if len(pcm) > SLICE_SAMPLES:
                await asyncio.sleep(0)

    @property
    def heard_samples(self) -> int:
        """All caller audio so far."""
        return self._ring.end_samples

    def writable(self) -> None:
        """The leg is no longer congested."""
        self._playout.wake()

    def handle(self, event: Event) -> None:
        """Feed the session and do what it says. May be called from inside itself: events are taken in order."""
        if len(self._queue) >= MAX_QUEUED_EVENTS:
            self._metrics.count("event_queue_full")
            return
        self._queue.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._queue:
                self._step(self._queue.popleft())
        finally:
            self._busy = False

    # --- events -----------------------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        now = self._loop.time()
        try:
            effects = self._session.handle(event, now)
        except Exception:  # one call's defect reaches no other call, and not even this call's next turn
            if self._strict:
                raise
            _log.exception("a session event failed", call=self.id, event_type=type(event).__name__)
            effects = self._session.recover(now)
        for effect in effects:
            self._perform_by[type(effect)](effect)
        self._record.phase = self._session.state

    def _take(self, pcm: Pcm16) -> None:
        if self.finished.is_set() or not len(pcm):
            return
        self._ring.append(pcm)
        self._vad.feed(pcm)
        if self._session.manual:
            self.handle(InputAppended(self._ring.end_samples))
            self._feed_up_to(self._ring.end_samples)

    def _voice(self, probability: float, end_samples: int) -> None:
        self._room.set()
        if self.finished.is_set():
            return
        if not self._session.manual:
            self._feed_up_to(end_samples)
        self.handle(VoiceScored(probability, end_samples))

    def _feed_up_to(self, end_samples: int) -> None:
        if self._fed is not None and end_samples > self._scored_samples:
            self._fed.feed(self._ring.read(self._scored_samples, end_samples))
        self._scored_samples = max(self._scored_samples, end_samples)

    def _speech(self, result: Synthesis) -> None:
        if self.finished.is_set():
            return
        if isinstance(result, SynthesisFailed):
            self.handle(result)
            return
        samples = self._playout.append(result)
        if samples is None:
            self._metrics.count("audio_of_dead_epoch")
        else:
            self.handle(AudioQueued(result.epoch, result.segment, samples, result.last, result.words))

    def _frame_sent(self, epoch: int, sent_samples: int) -> None:
        self.handle(AudioSent(epoch, sent_samples))

    def _on_timer(self) -> None:
        self._timer = None
        self.handle(TimerFired())

    # --- effects ----------------------------------------------------------------------------------------------

    def _open_transcription(self, effect: OpenTranscription) -> None:
        stream = self._engines.stt.open(effect, self.handle)
        self._streams[effect.utterance] = self._fed = stream
        stream.feed(self._ring.read(effect.start_samples, self._scored_samples))

    def _finalize(self, effect: FinalizeTranscription) -> None:
        self._streams[effect.utterance].finalize(effect)

    def _close_transcription(self, effect: fx.CloseTranscription) -> None:
        stream = self._streams.pop(effect.utterance)
        if self._fed is stream:
            self._fed = None
        stream.close()

    def _score(self, effect: ScoreEndOfTurn) -> None:
        if self._engines.turn is not None:
            audio = self._ring.read(effect.start_samples, effect.end_samples)
            self._engines.turn.score(effect, audio, self.handle)

    def _generate(self, effect: Generate) -> None:
        self._engines.llm.generate(effect, self.handle)

    def _synthesize(self, effect: Synthesize) -> None:
        self._playout.expect(effect.epoch, self._session.config.output_rate_hz)
        prepared = self._phrases.get(effect)
        if prepared is None:
            self._engines.tts.synthesize(effect, self._speech)
        else:
            for chunk in prepared:
                self._speech(chunk)

    def _cancel_jobs(self, effect: fx.CancelJobs | fx.CancelEpoch) -> None:
        self._engines.llm.cancel(self.id, effect.epoch)
        self._engines.tts.cancel(self.id, effect.epoch)

    def _cancel_epoch(self, effect: fx.CancelEpoch) -> None:
        self._cancel_jobs(effect)
        if self._playout.drop(effect.epoch):
            self._leg.clear()

    def _hold(self, effect: fx.HoldPlayout) -> None:
        self._playout.hold(effect.epoch, effect.heard_samples)
        self._leg.clear()

    def _release(self, effect: fx.ReleasePlayout) -> None:
        position = self._playout.release(effect.epoch)
        if position is not None:
            self.handle(PlayoutResumed(effect.epoch, position))

    def _notify(self, effect: fx.Notify) -> None:
        notice = effect.notice
        if isinstance(notice, ItemAdded | OutputStarted | OutputEnded | ItemTruncated | ItemDeleted):
            self._file_transcript()
        self._leg.notify(notice)

    def _file_transcript(self) -> None:
        """Copy the newest items into the record: older ones no longer change, but for what a client truncates."""
        for item in self._session.conversation.items[-8:]:
            if item.text:
                self._record.say(item.id, item.role, item.text, cut=item.cut, at_ms=self._now_ms())

    def _set_timer(self, effect: fx.SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(effect.at, self._on_timer)

    def _cancel_timer(self, _: fx.CancelTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _record_turn(self, effect: fx.RecordTurn) -> None:
        self._metrics.turn(effect.times, self._record.turn(effect.times))
        self._file_transcript()

    def _end(self, effect: fx.EndCall) -> None:
        self._cancel_timer(fx.CancelTimer())
        self._playout.close()
        self._vad.close()
        self._engines.llm.forget(self.id)
        self._file_transcript()
        self._record.ended(effect.cause, self._now_ms())
        self._room.set()
        self.finished.set()

    def _now_ms(self) -> float:
        return (self._loop.time() - self._started) * 1000


def pcm16(data: bytes) -> Pcm16:
    """16-bit little-endian samples."""
    return np.frombuffer(data, "<i2").astype(np.int16, copy=False)
