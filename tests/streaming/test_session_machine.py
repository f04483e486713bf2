"""Random interleavings of every event a session can get, against what must hold in all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streaming import effects as fx
from streaming import events as ev
from streaming import notices as nt
from streaming.config import BargeIn, ResponseOptions, SessionConfig, TurnDetection, TurnMode
from streaming.conversation import Item, PartKind
from streaming.jobs import (
    EndOfTurnScored,
    FinalizeTranscription,
    FinalTranscript,
    Generate,
    GenerationDone,
    GenerationFailed,
    OpenTranscription,
    PartialTranscript,
    SynthesisFailed,
    Synthesize,
    Token,
    ToolCalled,
    TranscriptionFailed,
    Usage,
)
from streaming.listening import MAX_CLOSING
from streaming.session import Session
from streaming.tools import TOOL_NAMES

WORDS = st.sampled_from(
    ["", "yes", "mm-hm", "hello?", "what are your opening hours", "my number is 555", "stop", "and", "One two three"]
)
TEXTS = st.sampled_from(["One two three. ", "Hello, ", "x", " ", "Well. Yes. No. ", "🙂", "3.", "14 is pi, I think; "])
TURNS = st.builds(
    TurnDetection,
    mode=st.sampled_from(TurnMode),
    silence_duration_ms=st.sampled_from([100, 300, 500]),
    create_response=st.booleans(),
    barge_in=st.sampled_from(BargeIn),
    idle_timeout_ms=st.sampled_from([None, 1_000]),
    speculate=st.booleans(),
)
CONFIGS = st.builds(
    SessionConfig,
    instructions=st.sampled_from(["", "Be nice."]),
    audio_output=st.sampled_from([True, True, True, False]),
    turn=TURNS,
    greeting=st.sampled_from(["", "Hello there, caller."]),
    apology=st.sampled_from(["", "Sorry about that."]),
    owns_playout=st.booleans(),
    tools=st.sampled_from([(), TOOL_NAMES, ("end_call",), ("send_dtmf", "hold")]),
    transfer_targets=st.just((("sales", "sip:sales@pbx.example"),)),
    goodbye=st.sampled_from(["", "Goodbye."]),
)
CALLS = st.sampled_from(
    [
        ("end_call", "{}"),
        ("transfer", '{"target":"sales"}'),
        ("transfer", '{"target":"elsewhere"}'),
        ("send_dtmf", '{"digits":"12#"}'),
        ("hold", '{"seconds":20}'),
        ("send_dtmf", '{"digits":'),
        ("", "???"),
    ]
)


class SessionMachine(RuleBasedStateMachine):
    """Engines answer late, twice, for dead epochs, or not at all; the client does as it likes."""

    @initialize(config=CONFIGS)
    def begin(self, config: SessionConfig) -> None:
        self.now = 10.0
        self.count = 0
        self.session = Session("call", config, self.new_id, self.now)
        self.seen = 0
        self.open_streams: set[int] = set()
        self.requests: list[FinalizeTranscription] = []
        self.epochs: set[int] = set()
        self.dead: set[int] = set()
        self.playing: int | None = None
        self.segments: dict[int, list[tuple[int, bool]]] = {}
        self.queued: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        self.marks: list[tuple[int, int]] = []
        self.live: str | None = None
        self.sounding: str | None = None
        self.sounded: set[str] = set()
        self.finished: set[str] = set()
        self.announced: dict[str, str] = {}
        self.committed: set[str] = set()
        self.transcribed: set[str] = set()
        self.timer: float | None = None
        self.ended = False
        self.cut: set[int] = set()
        self.called: dict[str, int] = {}
        self.filed: set[str] = set()
        self.results: set[str] = set()
        self.under_way: str | None = None
        self.done: list[fx.Control] = []

    def new_id(self, kind: str) -> str:
        self.count += 1
        return f"{kind}_{self.count}"

    def feed(self, event: ev.Event) -> None:
        for effect in self.session.handle(event, self.now):
            self.check(effect)

    def check(self, effect: fx.Effect) -> None:
        assert not self.ended or isinstance(effect, fx.Count), "nothing is done after the end"
        match effect:
            case OpenTranscription():
                assert effect.utterance not in self.open_streams
                self.open_streams.add(effect.utterance)
            case FinalizeTranscription():
                assert effect.utterance in self.open_streams
                self.requests.append(effect)
            case fx.CloseTranscription():
                self.open_streams.remove(effect.utterance)
            case Generate():
                assert effect.epoch not in self.epochs, "an epoch generates once"
                self.epochs.add(effect.epoch)
            case Synthesize():
                assert effect.epoch not in self.dead
                assert effect.text
                unfinished = [segment for segment, done in self.segments.get(effect.epoch, []) if not done]
                assert not unfinished, "segments are made one after another"
                self.epochs.add(effect.epoch)
                self.segments.setdefault(effect.epoch, []).append((effect.segment, False))
            case fx.CancelEpoch():
                self.dead.add(effect.epoch)
                self.cut.add(effect.epoch)
                if self.playing == effect.epoch:
                    self.playing = None
            case fx.Promote() | fx.HoldPlayout() | fx.ReleasePlayout():
                assert effect.epoch not in self.dead
            case fx.OpenPlayout():
                assert effect.epoch not in self.dead
                self.playing = effect.epoch
            case fx.ClosePlayout():
                self.dead.add(effect.epoch)
                self.playing = None
            case fx.Notify():
                self.told(effect.notice)
            case fx.SetTimer():
                self.timer = effect.at
            case fx.CancelTimer():
                self.timer = None
            case fx.HoldCaller(on=False):
                assert effect not in self.done, "a side effect happens once"
                assert fx.HoldCaller(effect.tool_call, on=True) in self.done, "nobody else is taken back"
                self.done.append(effect)
            case fx.Transfer() | fx.SendDtmf() | fx.HoldCaller():
                assert effect not in self.done, "a side effect happens once"
                assert self.live is None, "its words were heard before"
                assert self.called[effect.tool_call] not in self.cut, "no tool acts for a reply that was cut"
                assert effect.tool_call in self.filed, "the model's call is in the context"
                assert effect.tool_call not in self.results, "what has a result is over"
                assert self.under_way in (None, effect.tool_call) or self.under_way in self.results, "one at a time"
                self.under_way = effect.tool_call
                self.done.append(effect)
            case fx.EndCall():
                assert self.sounding is None, "every playback that began has ended"
                self.ended = True
            case _:
                pass

    def told(self, notice: nt.Notice) -> None:
        match notice:
            case nt.ResponseCreated():
                assert self.live is None, "one response at a time"
                assert notice.response.id not in self.finished
                self.live = notice.response.id
            case nt.OutputStarted() | nt.OutputEnded():
                assert notice.response_id == self.live
                if isinstance(notice, nt.OutputEnded):
                    assert notice.text == self.announced.get(notice.response_id, "")
            case nt.OutputTranscriptDelta() | nt.OutputTextDelta():
                assert notice.response_id == self.live, "no delta outside its response"
                self.announced[notice.response_id] = self.announced.get(notice.response_id, "") + notice.delta
            case nt.ResponseDone():
                assert notice.response.id == self.live
                assert notice.response.status != "in_progress"
                self.finished.add(notice.response.id)
                self.live = None
            case nt.PlaybackStarted():
                assert self.sounding is None, "one reply sounds at a time"
                assert notice.response_id == self.live
                assert notice.response_id not in self.sounded
                self.sounding = notice.response_id
                self.sounded.add(notice.response_id)
            case nt.PlaybackStopped() | nt.PlaybackCleared():
                assert notice.response_id == self.sounding, "one end for each beginning"
                if isinstance(notice, nt.PlaybackStopped):
                    assert notice.response_id in self.finished
                self.sounding = None
            case nt.ItemAdded(item=Item(kind=PartKind.FUNCTION_CALL, call_id=call)):
                assert call not in self.filed, "a call is told once"
                self.filed.add(call)
            case nt.ItemAdded(item=Item(kind=PartKind.FUNCTION_CALL_OUTPUT, call_id=call)):
                assert call in self.filed
                assert call not in self.results, "one result a call"
                self.results.add(call)
            case nt.InputCommitted():
                assert notice.item_id not in self.committed, "committed once"
                self.committed.add(notice.item_id)
            case nt.TranscriptCompleted() | nt.TranscriptFailed():
                assert notice.item_id in self.committed
                assert notice.item_id not in self.transcribed, "one transcript an item"
                self.transcribed.add(notice.item_id)
            case _:
                pass

    def some_epoch(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.epochs) or [99]))

    # --- rules ------------------------------------------------------------------------------------------------

    @rule()
    def answered(self) -> None:
        if self.live is None and not self.finished and not self.ended:
            self.feed(ev.Answered())

    @rule(windows=st.integers(1, 30), voiced=st.booleans())
    def audio(self, windows: int, voiced: bool) -> None:
        for _ in range(windows):
            self.now += 0.032
            self.fire_due()
            self.seen += 512
            self.feed(ev.VoiceScored(0.9 if voiced else 0.05, self.seen))

    @rule(seconds=st.sampled_from([0.0, 0.02, 0.3, 0.6, 2.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        until = self.now + seconds
        for _ in range(200):
            if self.timer is None or self.timer > until:
                break
            self.now = max(self.now, self.timer)
            self.fire_due()
        self.now = until

    def fire_due(self) -> None:
        if self.timer is not None and self.now >= self.timer:
            self.timer = None
            self.feed(ev.TimerFired())

    @rule(ms=st.sampled_from([20, 200]))
    def append(self, ms: int) -> None:
        if self.session.manual:
            self.seen += ms * 16
            self.feed(ev.InputAppended(self.seen))

    @rule(data=st.data(), text=WORDS)
    def final(self, data: st.DataObject, text: str) -> None:
        if self.requests:
            request = data.draw(st.sampled_from(self.requests))
            self.feed(FinalTranscript(request.utterance, request.revision, text))

    @rule(data=st.data())
    def transcription_fails(self, data: st.DataObject) -> None:
        if self.requests:
            request = data.draw(st.sampled_from(self.requests))
            self.feed(TranscriptionFailed(request.utterance, request.revision, "engine_error", "x"))

    @rule(data=st.data(), text=WORDS)
    def partial(self, data: st.DataObject, text: str) -> None:
        if self.open_streams:
            self.feed(PartialTranscript(data.draw(st.sampled_from(sorted(self.open_streams))), text))

    @rule(utterance=st.integers(1, 5), revision=st.integers(0, 2), probability=st.sampled_from([0.0, 0.4, 0.9]))
    def scored(self, utterance: int, revision: int, probability: float) -> None:
        self.feed(EndOfTurnScored(utterance, revision, probability))

    @rule(data=st.data(), text=TEXTS)
    def token(self, data: st.DataObject, text: str) -> None:
        self.feed(Token(self.some_epoch(data), text))

    @rule(data=st.data(), call=CALLS)
    def tool_called(self, data: st.DataObject, call: tuple[str, str]) -> None:
        epoch, call_id = self.some_epoch(data), self.new_id("call")
        self.called[call_id] = epoch
        self.feed(ToolCalled(epoch, call_id, *call))

    @rule(calls=st.lists(CALLS, min_size=1, max_size=4), text=st.sampled_from(["", "Well. "]), heard=st.booleans())
    def a_reply_that_calls(self, calls: list[tuple[str, str]], text: str, heard: bool) -> None:
        self.feed(ev.CreateResponse())
        if self.ended or not self.epochs:
            return
        epoch = max(self.epochs)
        self.feed(Token(epoch, text))
        for call in calls:
            call_id = self.new_id("call")
            self.called[call_id] = epoch
            self.feed(ToolCalled(epoch, call_id, *call))
        self.feed(GenerationDone(epoch, "stop", Usage()))
        while heard and (waiting := [s for s, done in self.segments.get(epoch, []) if not done]):
            self.segments[epoch][-1] = (waiting[0], True)
            self.queued[epoch] = self.queued.get(epoch, 0) + 4_800
            self.feed(ev.AudioQueued(epoch, waiting[0], 4_800, last=True))
            self.audio_leaves(10_000_000, marked=False)
        self.time_passes(0.6 if heard else 0.0)

    @rule(data=st.data(), code=st.sampled_from([None, None, "busy"]))
    def control_done(self, data: st.DataObject, code: str | None) -> None:
        if self.done:
            effect = data.draw(st.sampled_from(self.done))
            self.feed(ev.ControlDone(effect.tool_call, code, ""))

    @rule(data=st.data(), reason=st.sampled_from(["stop", "length"]))
    def generated(self, data: st.DataObject, reason: Any) -> None:
        self.feed(GenerationDone(self.some_epoch(data), reason, Usage()))

    @rule(data=st.data(), voice=st.booleans())
    def engine_fails(self, data: st.DataObject, voice: bool) -> None:
        epoch = self.some_epoch(data)
        self.feed(SynthesisFailed(epoch, 0, "x", "y") if voice else GenerationFailed(epoch, "x", "y"))

    @rule(data=st.data(), samples=st.sampled_from([0, 480, 24_000]), last=st.booleans())
    def audio_made(self, data: st.DataObject, samples: int, last: bool) -> None:
        waiting = sorted(epoch for epoch, segments in self.segments.items() if not segments[-1][1])
        if not waiting:
            return
        epoch = data.draw(st.sampled_from(waiting))
        segment = self.segments[epoch][-1][0]
        self.segments[epoch][-1] = (segment, last)
        if epoch not in self.dead:
            self.queued[epoch] = self.queued.get(epoch, 0) + samples
        self.feed(ev.AudioQueued(epoch, segment, samples, last))

    @rule(samples=st.sampled_from([480, 4_800, 240_000]), marked=st.booleans())
    def audio_leaves(self, samples: int, marked: bool) -> None:
        epoch = self.playing
        if epoch is None or self.session.state == "held":
            return
        assert epoch not in self.dead
        position = min(self.queued.get(epoch, 0), self.sent.get(epoch, 0) + samples)
        if position > self.sent.get(epoch, 0):
            self.sent[epoch] = position
            if marked:
                self.marks.append((epoch, len(self.marks) + 1))
                self.feed(ev.MarkSent(*self.marks[-1], position))
            self.feed(ev.AudioSent(epoch, position))

    @rule(data=st.data(), cleared=st.booleans())
    def mark_returns(self, data: st.DataObject, cleared: bool) -> None:
        if self.marks:
            self.feed(ev.MarkReturned(*data.draw(st.sampled_from(self.marks)), cleared))

    @rule(on=st.booleans())
    def line_held(self, on: bool) -> None:
        self.feed(ev.LineHeld(on))

    @rule(config=CONFIGS)
    def configure(self, config: SessionConfig) -> None:
        self.feed(ev.Configure(config))

    @rule()
    def commit(self) -> None:
        self.feed(ev.CommitInput(self.seen))

    @rule()
    def clear(self) -> None:
        self.feed(ev.ClearInput(self.seen))

    @rule(text=WORDS, name=st.sampled_from("abc"))
    def create_item(self, text: str, name: str) -> None:
        self.feed(ev.CreateItem(Item(name, "user", PartKind.INPUT_TEXT, text)))

    @rule(data=st.data())
    def touch_item(self, data: st.DataObject) -> None:
        ids = [item.id for item in self.session.conversation.items] or ["nobody"]
        item_id = data.draw(st.sampled_from(ids))
        touches: list[ev.Event] = [ev.RetrieveItem(item_id), ev.DeleteItem(item_id), ev.TruncateItem(item_id, 0, 100)]
        self.feed(data.draw(st.sampled_from(touches)))

    @rule(text_only=st.booleans())
    def create_response(self, text_only: bool) -> None:
        self.feed(ev.CreateResponse(ResponseOptions(audio_output=False if text_only else None)))

    @rule()
    def cancel_response(self) -> None:
        self.feed(ev.CancelResponse())

    @rule()
    def clear_output(self) -> None:
        self.feed(ev.ClearOutput())
        assert self.live is None or self.live != self.sounding, "nothing of it sounds"

    @rule(keys=st.text("0123456789*#ABCD", min_size=1, max_size=40))
    def press(self, keys: str) -> None:
        for key in keys:
            self.feed(ev.Dtmf(key))

    @rule()
    def drain(self) -> None:
        if self.count % 7 == 0:
            self.feed(ev.Drain("Goodbye."))

    @rule()
    def hang_up(self) -> None:
        if self.count % 11 == 0:
            self.feed(ev.HungUp("caller_hung_up"))

    # --- what holds -------------------------------------------------------------------------------------------

    @invariant()
    def streams_are_bounded(self) -> None:
        assert len(self.open_streams) <= MAX_CLOSING + 1
        assert not self.ended or not self.open_streams

    @invariant()
    def every_call_has_its_result(self) -> None:
        """But for what is under way, and what waits for it."""
        if self.filed - self.results:
            assert self.under_way is not None
            assert self.under_way not in self.results or self.ended

    def teardown(self) -> None:
        """However it got here: when the engines fall silent, every state is left within a bound."""
        if not hasattr(self, "session"):
            return
        for _ in range(30):
            if not self.ended:
                self.audio_leaves(10_000_000, marked=False)
                self.time_passes(30.0)
        if not self.ended:
            idle = {"waiting", "hearing"} if self.session.manual else {"waiting"}
            if self.session.config.turn.idle_timeout_ms is None:
                assert self.session.state in idle
            self.feed(ev.HungUp("end of test"))
        assert self.ended
        assert not self.open_streams


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(
    max_examples=80, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
