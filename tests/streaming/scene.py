"""A session with scripted engines, a pacer and a caller, in virtual time: no loop, no threads, exact to the sample."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from streaming import effects as fx
from streaming import events as ev
from streaming import notices as nt
from streaming.config import SessionConfig
from streaming.jobs import (
    EndOfTurnScored,
    FinalizeTranscription,
    FinalTranscript,
    Generate,
    GenerationDone,
    GenerationFailed,
    OpenTranscription,
    PartialTranscript,
    ScoreEndOfTurn,
    SynthesisFailed,
    Synthesize,
    Token,
    ToolCalled,
    TranscriptionFailed,
    Usage,
    WordEnd,
)
from streaming.pacing import Pacer
from streaming.session import Session
from streaming.turn_times import TurnTimes

WINDOW = 512
WINDOW_S = WINDOW / 16_000
WORD_MS = 250


@dataclass
class Script:
    """How the engines behave. Times in milliseconds."""

    stt_ms: float | None = 100.0
    score_ms: float | None = 100.0
    score: float = 0.9
    first_token_ms: float = 60.0
    token_ms: float = 10.0
    tts_ms: float | None = 80.0
    partial_after_ms: float | None = 200.0
    reply: Callable[[tuple[str, ...]], str] = lambda messages: f"You said {messages[-1]}" if messages else "Hello."
    stt_fails: str | None = None
    llm_fails_after: int | None = None
    tts_fails: int | None = None
    words: bool = True
    lead_ms: int = 300
    stray_after_cancel: bool = False
    calls: Callable[[Generate], Sequence[tuple[str, str]]] = lambda request: ()
    """The tools that a reply calls after its words: (name, arguments)."""
    control_ms: float | None = 500.0
    control_fails: str | None = None


@dataclass
class Heard:
    """What left for the far end: epoch and span of its samples, at a time."""

    at: float
    epoch: int
    start: int
    end: int


@dataclass
class Scene:
    config: SessionConfig
    script: Script = field(default_factory=Script)

    def __post_init__(self) -> None:
        self.now = 100.0
        ids = itertools.count(1)
        self.session = Session("call", self.config, lambda kind: f"{kind}_{next(ids)}", self.now)
        self.seen = 0
        self.notices: list[nt.Notice] = []
        self.effects: list[fx.Effect] = []
        self.generations: list[Generate] = []
        self.syntheses: list[Synthesize] = []
        self.records: dict[str, TurnTimes] = {}
        self.counts: dict[str, int] = {}
        self.sent: list[Heard] = []
        self.controls: list[tuple[float, fx.Control]] = []
        self.ended: str | None = None
        self.ended_at = 0.0
        self.says = ""
        self.cancelled: set[int] = set()
        self.stopped: set[int] = set()
        self.open_streams: set[int] = set()
        self.on_notice: Callable[[nt.Notice], None] | None = None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._timer = 0
        self._pacers: dict[int, Pacer] = {}
        self._playing: int | None = None
        self._held: int | None = None
        self._pace = 0
        self._voiced_ms = 0.0

    # --- driving ----------------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> list[fx.Effect]:
        effects = self.session.handle(event, self.now)
        self._perform(effects)
        return effects

    def at(self, delay_ms: float, act: Callable[[], None]) -> None:
        self._schedule(self.now + delay_ms / 1000, act)

    def _schedule(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time, next(self._order), act))

    def run_until(self, time: float) -> None:
        while self._heap and self._heap[0][0] <= time:
            self.now, _, act = heapq.heappop(self._heap)
            act()
        self.now = time

    def run(self, ms: float) -> None:
        """Time passes with no caller audio at all."""
        self.run_until(self.now + ms / 1000)

    def audio(self, ms: float, probability: float) -> None:
        for _ in range(round(ms / (WINDOW_S * 1000))):
            self.run_until(self.now + WINDOW_S)
            self.seen += WINDOW
            if probability >= 0.5:
                self._voiced_ms += WINDOW_S * 1000
                self._maybe_partial()
            if self.ended is None:
                self.feed(ev.VoiceScored(probability, self.seen))

    def speak(self, text: str, ms: float = 800.0) -> None:
        self.says = f"{self.says} {text}".strip() if self._voiced_ms else text
        self.audio(ms, 0.95)

    def silence(self, ms: float) -> None:
        self.audio(ms, 0.02)

    def say(self, text: str, ms: float = 800.0, wait_ms: float = 2500.0) -> None:
        self.speak(text, ms)
        self.silence(wait_ms)

    # --- looking ----------------------------------------------------------------------------------------------

    def told(self, kind: type[nt.Notice]) -> list[nt.Notice]:
        return [notice for notice in self.notices if isinstance(notice, kind)]

    def kinds(self) -> list[str]:
        return [type(notice).__name__ for notice in self.notices]

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(item.role, item.text or "") for item in self.session.conversation.items]

    def sent_after(self, time: float, epoch: int) -> list[Heard]:
        return [heard for heard in self.sent if heard.at > time and heard.epoch == epoch]

    # --- engines and leg --------------------------------------------------------------------------------------

    def _perform(self, effects: list[fx.Effect]) -> None:
        self.effects += effects
        for effect in effects:
            match effect:
                case OpenTranscription():
                    self.open_streams.add(effect.utterance)
                    self._voiced_ms, self._stream, self._said = WINDOW_S * 1000, effect.utterance, False
                case FinalizeTranscription():
                    assert effect.utterance in self.open_streams
                    self._transcribe(effect)
                case fx.CloseTranscription():
                    self.open_streams.remove(effect.utterance)
                    self._voiced_ms = 0.0
                case ScoreEndOfTurn():
                    if self.script.score_ms is not None:
                        scored = EndOfTurnScored(effect.utterance, effect.revision, self.script.score)
                        self.at(self.script.score_ms, partial(self._alive, scored))
                case Generate():
                    self.generations.append(effect)
                    self._reply(effect)
                case Synthesize():
                    self.syntheses.append(effect)
                    self._synthesize(effect)
                case fx.CancelEpoch():
                    self.cancelled.add(effect.epoch)
                    self._pacers.pop(effect.epoch, None)
                    if self._playing == effect.epoch:
                        self._playing = self._held = None
                case fx.CancelJobs():
                    self.stopped.add(effect.epoch)
                case fx.OpenPlayout():
                    assert effect.epoch not in self.cancelled
                    self._playing = effect.epoch
                    self._wake()
                case fx.HoldPlayout():
                    self._held = effect.epoch
                    if effect.epoch in self._pacers:
                        self._pacers[effect.epoch].hold(effect.heard_samples)
                case fx.ReleasePlayout():
                    self._held = None
                    if effect.epoch in self._pacers:
                        position = self._pacers[effect.epoch].release()
                        self.at(0, partial(self._alive, ev.PlayoutResumed(effect.epoch, position)))
                        self.at(0, self._wake)
                    else:
                        self._wake()
                case fx.ClosePlayout():
                    self._pacers.pop(effect.epoch, None)
                    self._playing = None
                case fx.Notify():
                    self.notices.append(effect.notice)
                    if self.on_notice is not None:
                        self.on_notice(effect.notice)
                case fx.SetTimer():
                    self._timer += 1
                    self._schedule(max(effect.at, self.now), partial(self._fire, self._timer))
                case fx.CancelTimer():
                    self._timer += 1
                case fx.RecordTurn():
                    self.records[effect.times.response_id] = effect.times
                case fx.Count():
                    self.counts[effect.name] = self.counts.get(effect.name, 0) + 1
                case fx.Transfer() | fx.SendDtmf() | fx.HoldCaller():
                    self.controls.append((self.now, effect))
                    code = self.script.control_fails
                    done = ev.ControlDone(effect.tool_call, code, "scripted" if code else "")
                    if self.script.control_ms is not None:
                        self.at(self.script.control_ms, partial(self._alive, done))
                case fx.EndCall():
                    self.ended, self.ended_at = effect.cause, self.now

    def _alive(self, event: ev.Event) -> None:
        if self.ended is None:
            self.feed(event)

    def _fire(self, stamp: int) -> None:
        if stamp == self._timer:
            self._alive(ev.TimerFired())

    def _maybe_partial(self) -> None:
        after = self.script.partial_after_ms
        if after is not None and self.open_streams and not self._said and self._voiced_ms >= after and self.says:
            self._said = True
            self.at(10, partial(self._alive, PartialTranscript(self._stream, self.says)))

    def _transcribe(self, effect: FinalizeTranscription) -> None:
        if self.script.stt_ms is None:
            return
        text = self.says
        if self.script.stt_fails:
            failed = TranscriptionFailed(effect.utterance, effect.revision, self.script.stt_fails, "scripted")
            self.at(self.script.stt_ms, lambda: self._alive(failed))
            return
        final = FinalTranscript(effect.utterance, effect.revision, text)
        self.at(self.script.stt_ms, lambda: self._alive(final))

    def _reply(self, effect: Generate) -> None:
        text = self.script.reply(tuple(message.content for message in effect.messages))
        words = text.split(" ") if text else []
        delay = self.script.first_token_ms
        for index, word in enumerate(words):
            if self.script.llm_fails_after == index:
                failed = GenerationFailed(effect.epoch, "engine_error", "scripted")
                self._later(effect.epoch, delay, failed)
                return
            self._later(effect.epoch, delay, Token(effect.epoch, (" " if index else "") + word))
            delay += self.script.token_ms
        for index, (name, arguments) in enumerate(self.script.calls(effect)):
            called = ToolCalled(effect.epoch, f"call_{effect.epoch}_{index}", name, arguments)
            self._later(effect.epoch, delay, called)
        usage = Usage(prompt_tokens=10, prefilled_tokens=5, completion_tokens=len(words))
        self._later(effect.epoch, delay, GenerationDone(effect.epoch, "stop", usage))

    def _synthesize(self, effect: Synthesize) -> None:
        assert effect.epoch not in self.cancelled
        assert effect.text
        if self.script.tts_ms is None:
            return
        if self.script.tts_fails == effect.segment:
            self._later(
                effect.epoch, self.script.tts_ms, SynthesisFailed(effect.epoch, effect.segment, "bad_audio", "s")
            )
            return
        words = effect.text.split(" ")
        rate = self.config.output_rate_hz
        ends, position = [], 0
        for index, word in enumerate(words):
            position += len(word) + (1 if index else 0)
            ends.append(WordEnd(position, (index + 1) * WORD_MS))
        samples = rate * WORD_MS * len(words) // 1000

        def made() -> None:
            if effect.epoch in self.cancelled | self.stopped and not self.script.stray_after_cancel:
                return
            if effect.epoch not in self.cancelled:
                pacer = self._pacers.setdefault(effect.epoch, Pacer(rate, lead_ms=self.script.lead_ms))
                pacer.append(np.zeros(samples, np.int16), last=True)
            marks = tuple(ends) if self.script.words else ()
            self._alive(ev.AudioQueued(effect.epoch, effect.segment, samples, True, marks))
            self._wake()

        self.at(self.script.tts_ms, made)

    def _later(self, epoch: int, delay_ms: float, event: ev.Event) -> None:
        def deliver() -> None:
            if epoch not in self.cancelled | self.stopped or self.script.stray_after_cancel:
                self._alive(event)

        self.at(delay_ms, deliver)

    def _wake(self) -> None:
        self._pace += 1
        pacer = self._pacers.get(self._playing) if self._playing is not None else None
        if pacer is None or self._playing == self._held:
            return
        due = pacer.next_at(self.now)
        if due is not None:
            self._schedule(due, partial(self._send, self._pace))

    def _send(self, stamp: int) -> None:
        if stamp != self._pace or self._playing is None or self.ended is not None:
            return
        epoch, pacer = self._playing, self._pacers[self._playing]
        assert epoch not in self.cancelled, "audio of a dead epoch"
        frame = pacer.take(self.now)
        if frame is not None:
            end = pacer.position_samples
            self.sent.append(Heard(self.now, epoch, end - len(frame), end))
            self.feed(ev.AudioSent(epoch, end))
        self._wake()
