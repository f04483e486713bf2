"""Runs one call: feeds its session, performs the session's effects. All of it on the event loop, nothing blocking."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np
import structlog

from engines.api import EngineSet, Overload, Pcm16
from gateway.caller_audio import CallerAudio
from gateway.guarded import ENGINE_RAISED, Guarded
from gateway.phrases import Phrases
from gateway.playout import Playout, Wire
from gateway.records.call_record import CallRecord
from gateway.records.filing import Filing
from gateway.telemetry.metrics import Metrics
from streaming import effects as fx
from streaming.config import SessionConfig
from streaming.events import (
    Answered,
    AudioQueued,
    AudioSent,
    Drain,
    Event,
    HungUp,
    LoadChanged,
    MarkReturned,
    MarkSent,
    PlayoutResumed,
    TimerFired,
    VoiceScored,
)
from streaming.jobs import (
    FinalizeTranscription,
    Generate,
    GenerationFailed,
    OpenTranscription,
    ScoreEndOfTurn,
    Synthesis,
    SynthesisFailed,
    Synthesize,
)
from streaming.notices import CallEnded, Notice, TurnRecorded
from streaming.session import Session

_log = structlog.get_logger(__name__)

FIRST_AUDIO_S = 0.6
"""A first clause is spoken within about this; meanwhile the words after it are not needed."""

NEXT_CLAUSE_S = 1.0
"""What the next clause takes, to be thought and to be spoken: when queued speech is down to it, words are needed."""

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

    def clear(self) -> bool:
        """Drop what has not left yet, and what the far end has buffered where the wire can say so. Returns whether
        audio was dropped here."""

    def control(self, effect: fx.Control) -> None:
        """Begin it; :class:`streaming.events.ControlDone` tells the call how it went. Asked only of a leg that can:
        its session has no other tools."""


class Call:
    """One conversation from accept to a recorded cause.

    ``strict`` raises a defect in the session where it happens (tests); otherwise it ends the turn, and is counted.
    ``asked_at``: when its caller asked for it, by the loop's clock.
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
        wire: Wire | None = None,
        asked_at: float | None = None,
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
        self._filing = Filing(record, self._session.conversation, self._now_ms)
        self._asked_at = asked_at
        self._playout = Playout(
            self._loop,
            leg,
            self._frame_sent,
            marked=self._mark_sent,
            wire=wire,
            left=metrics.sender(record.transport).sent,
        )
        self._guarded = Guarded(record.id, metrics)
        self._caller = CallerAudio(
            engines,
            self._guarded,
            handle=self.handle,
            manual=lambda: self._session.manual,
            count=metrics.count,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._queue: deque[Event] = deque()
        self._busy = False
        self._overload = Overload.NONE
        self.finished = asyncio.Event()
        self._perform_by: dict[type, Callable[[Any], object]] = {
            OpenTranscription: self._caller.open,
            FinalizeTranscription: self._caller.finalize,
            fx.CloseTranscription: self._caller.close_transcription,
            ScoreEndOfTurn: self._caller.score,
            Generate: self._generate,
            Synthesize: self._synthesize,
            fx.Promote: self._promote,
            fx.CancelEpoch: self._cancel_epoch,
            fx.CancelJobs: self._cancel_jobs,
            fx.CancelGeneration: lambda e: self._guarded.ask(engines.llm.cancel, record.id, e.epoch),
            fx.OpenPlayout: lambda e: self._playout.open(e.epoch, e.response_id, e.item_id),
            fx.HoldPlayout: self._hold,
            fx.ReleasePlayout: self._release,
            fx.ClosePlayout: lambda e: self._playout.end(e.epoch),
            fx.Notify: self._notify,
            fx.SetTimer: self._set_timer,
            fx.CancelTimer: self._cancel_timer,
            fx.RecordTurn: self._record_turn,
            fx.Count: lambda e: metrics.count(e.name),
            fx.Transfer: leg.control,
            fx.SendDtmf: leg.control,
            fx.HoldCaller: leg.control,
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

    def load_changed(self, overload: Overload) -> None:
        """Replies that begin from now on are made as the level says."""
        if overload is not self._overload:
            self._overload = overload
            speculate, short = overload < Overload.NO_SPECULATION, overload >= Overload.SHORT_CLAUSES
            self.handle(LoadChanged(speculate, short))

    def hang_up(self, cause: str) -> None:
        """End the call now. The first cause stands."""
        self.handle(HungUp(cause))

    # --- the leg's side ---------------------------------------------------------------------------------------

    def answered(self) -> None:
        """Media flows."""
        if self._asked_at is not None and self._record.answered_ms is None:
            self._metrics.answered(self._record.transport, self._loop.time() - self._asked_at)
        self._record.answered(self._now_ms())
        self.load_changed(self._engines.health().overload)
        self.handle(Answered())

    async def hear(self, pcm: Pcm16) -> None:
        """Caller audio at 16 kHz, any length. Returns when there is room for more."""
        await self._caller.hear(pcm)

    def hear_now(self, pcm: Pcm16) -> bool:
        """Caller audio of a real-time wire (RTP): 16 kHz, any length of up to a second. Never waits: with more than
        2 s unscored it is dropped, counted as ``caller_audio_dropped``, and False comes back."""
        return self._caller.hear_now(pcm)

    async def caught_up(self) -> None:
        """All audio so far has been looked at, so that a commit is of all that was said."""
        await self._caller.caught_up()

    @property
    def heard_samples(self) -> int:
        """All caller audio so far."""
        return self._caller.end_samples

    def writable(self) -> None:
        """The leg is no longer congested."""
        self._playout.wake()

    def mark_returned(self, name: str, *, cleared: bool) -> None:
        """A mark of the leg's :class:`gateway.playout.Wire` came back: all before it was played, or it was dropped."""
        known = self._playout.mark_returned(name)
        if known is None:
            self._metrics.count("unknown_mark")
        elif not self.finished.is_set():
            self.handle(MarkReturned(*known, cleared))

    def handle(self, event: Event) -> None:
        """Feed the session and do what it says. May be called from inside itself: events are taken in order.

        Raises nothing, unless ``strict``."""
        if len(self._queue) >= MAX_QUEUED_EVENTS and not isinstance(event, HungUp):
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
        defect: Exception | None = None
        try:
            effects = self._session.handle(event, now)
        except Exception as error:  # noqa: BLE001 (one call's defect reaches no other, and not even its next turn)
            defect = self._defect(error, type(event).__name__)
            effects = self._recover(now)
        for effect in effects:
            try:
                self._perform_by[type(effect)](effect)
            except Exception as error:  # noqa: BLE001 (what follows it is done all the same: it may be the end)
                defect = self._defect(error, type(effect).__name__)
                self._metrics.count("defect")
        if effects or type(event) is not VoiceScored:
            self._record.phase = self._session.state
        if defect is not None and self._strict:
            raise defect

    def _recover(self, now: float) -> list[fx.Effect]:
        self._caller.drop_transcriptions()
        try:
            return self._session.recover(now)
        except Exception as error:  # noqa: BLE001 (a session that cannot even end its turn ends its call)
            self._defect(error, "recover")
            self._metrics.count("defect")
            self._session.ended = "internal_error"
            return [fx.EndCall("internal_error")]

    def _defect(self, error: Exception, where: str) -> Exception:
        _log.error("a defect in a call", call=self.id, where=where, exc_info=error)
        return error

    def _speech(self, result: Synthesis) -> None:
        if self.finished.is_set():
            return
        if isinstance(result, SynthesisFailed):
            self.handle(result)
            return
        try:
            samples = self._playout.append(result)
        except ValueError as error:
            self._guarded.raised(error, "speech")
            self.handle(SynthesisFailed(result.epoch, result.segment, "invalid_audio", "audio that cannot be played"))
            return
        if samples is None:
            self._metrics.count("audio_of_dead_epoch")
        else:
            self.handle(AudioQueued(result.epoch, result.segment, samples, result.last, result.words))
            if result.last:
                self._postpone_words(result.epoch, 0.0)

    def _frame_sent(self, epoch: int, sent_samples: int) -> None:
        self.handle(AudioSent(epoch, sent_samples))

    def _mark_sent(self, epoch: int, mark: int, sent_samples: int) -> None:
        self.handle(MarkSent(epoch, mark, sent_samples))

    def _on_timer(self) -> None:
        self._timer = None
        self.handle(TimerFired())

    # --- effects ----------------------------------------------------------------------------------------------

    def _generate(self, effect: Generate) -> None:
        if not self._guarded.ask(self._engines.llm.generate, effect, self.handle):
            self.handle(GenerationFailed(effect.epoch, ENGINE_RAISED, "the language model broke down"))

    def _synthesize(self, effect: Synthesize) -> None:
        rate_hz = self._session.config.output_rate_hz
        self._playout.expect(effect.epoch, rate_hz)
        prepared = self._phrases.get(effect, rate_hz)
        if prepared is not None:
            for chunk in prepared:
                self._speech(chunk)
        elif self._guarded.ask(self._engines.tts.synthesize, effect, self._speech):
            self._postpone_words(effect.epoch, FIRST_AUDIO_S)
        else:
            self.handle(SynthesisFailed(effect.epoch, effect.segment, ENGINE_RAISED, "text-to-speech broke down"))

    def _postpone_words(self, epoch: int, spoken_for_s: float) -> None:
        """The model's next words are not needed while there is speech: others' first words may go before them."""
        until = self._loop.time() + max(spoken_for_s, self._playout.pending_s(epoch) - NEXT_CLAUSE_S)
        self._guarded.ask(self._engines.llm.postpone, self.id, epoch, until)

    def _promote(self, effect: fx.Promote) -> None:
        self._guarded.ask(self._engines.llm.prioritize, self.id, effect.epoch)

    def _cancel_jobs(self, effect: fx.CancelJobs | fx.CancelEpoch) -> None:
        self._guarded.ask(self._engines.llm.cancel, self.id, effect.epoch)
        self._guarded.ask(self._engines.tts.cancel, self.id, effect.epoch)

    def _cancel_epoch(self, effect: fx.CancelEpoch) -> None:
        """The sound goes first: an engine may do as it likes then."""
        if self._playout.drop(effect.epoch):
            self._clear_leg()
        self._cancel_jobs(effect)

    def _hold(self, effect: fx.HoldPlayout) -> None:
        self._playout.hold(effect.epoch, effect.heard_samples)
        self._clear_leg()

    def _clear_leg(self) -> None:
        if self._leg.clear():
            self._metrics.count("unsent_audio_cleared")

    def _release(self, effect: fx.ReleasePlayout) -> None:
        position = self._playout.release(effect.epoch)
        if position is not None:
            self.handle(PlayoutResumed(effect.epoch, position))

    def _notify(self, effect: fx.Notify) -> None:
        self._filing.told(effect.notice)
        self._leg.notify(effect.notice)

    def _set_timer(self, effect: fx.SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(effect.at, self._on_timer)

    def _cancel_timer(self, _: fx.CancelTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _record_turn(self, effect: fx.RecordTurn) -> None:
        times = msgspec.structs.replace(
            effect.times,
            at_ms=(effect.since - self._started) * 1000,
            ended_ms=(self._loop.time() - effect.since) * 1000,
        )
        self._metrics.turn(times, self._record.turn(times))
        self._filing.newest()
        self._leg.notify(TurnRecorded(times))

    def _end(self, effect: fx.EndCall) -> None:
        self._cancel_timer(fx.CancelTimer())
        self._playout.close()
        self._caller.close()
        self._guarded.ask(self._engines.llm.forget, self.id)
        self._filing.newest()
        self._record.ended(effect.cause, self._now_ms())
        self.finished.set()
        self._leg.notify(CallEnded(effect.cause))

    def _now_ms(self) -> float:
        return (self._loop.time() - self._started) * 1000


def pcm16(data: bytes) -> Pcm16:
    """16-bit little-endian samples."""
    return np.frombuffer(data, "<i2").astype(np.int16, copy=False)
