"""One conversation as a state machine: events in, effects out, no samples and no clock of its own.

Three regions change independently: what is heard (:mod:`streaming.listening`), which reply is being made
(:mod:`streaming.answering`), and its playout, which a barge-in holds, and then ends or lets go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streaming import events as ev
from streaming.answering import LAST_WORD_S, Answering
from streaming.call_control import CALL_ENDED
from streaming.caller_items import CallerItems
from streaming.config import BargeIn, ResponseOptions, SessionConfig
from streaming.conversation import Conversation
from streaming.effects import CancelTimer, Count, Effect, EndCall, Notify, SetTimer
from streaming.idle_prompts import IdlePrompts
from streaming.item_commands import ItemCommands
from streaming.jobs import (
    INPUT_RATE_HZ,
    EndOfTurnScored,
    FinalTranscript,
    GenerationDone,
    GenerationFailed,
    PartialTranscript,
    SynthesisFailed,
    Token,
    ToolCalled,
    TranscriptionFailed,
)
from streaming.keypad_turns import KeypadTurns
from streaming.listening import Listening, Utterance
from streaming.notices import CommandFailed, InputCleared, Notice, SpeechStarted
from streaming.vad import samples_to_ms

LEAST_COMMIT_MS = 100


class Session:
    """Feed it every event of one call, in order, with the time; perform its effects in order.

    Args:
        call_id: names the call to the engines.
        config: how to listen and answer; :class:`streaming.events.Configure` replaces it.
        new_id: makes a fresh id of a kind ("item", "resp").
        now: seconds on the clock of all later ``now``.
    """

    def __init__(self, call_id: str, config: SessionConfig, new_id: Callable[[str], str], now: float) -> None:
        self.config = config
        self.conversation = Conversation()
        self.ended: str | None = None
        self._effects: list[Effect] = []
        self._listening = Listening(call_id, config.language, config.turn, new_id, self._emit, self)
        self._answering = Answering(call_id, config, self.conversation, new_id, self._emit)
        self._item_commands = ItemCommands(self.conversation, self._answering, self._listening, self._notify)
        self._items = CallerItems(self.conversation, self._answering, self._notify, new_id)
        self._keypad = KeypadTurns(self._items, self._answering, self._listening, self._notify)
        self._idle = IdlePrompts(self._items, self._answering, self._listening, self._keypad, self._notify)
        self._wanted: ResponseOptions | None = None
        """A response asked for while the words it shall answer are still being transcribed."""
        self._unanswered: Utterance | None = None
        self._last_word_at: float | None = None
        self._ends_at = now + config.max_call_s
        self._armed: float | None = None
        self._draining = False
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            ev.VoiceScored: lambda e, now: self._listening.voice(e.probability, e.end_samples, now),
            ev.InputAppended: lambda e, now: self._listening.appended(e.end_samples, now),
            PartialTranscript: self._listening.partial,
            FinalTranscript: self._listening.transcript,
            TranscriptionFailed: self._listening.transcript,
            EndOfTurnScored: self._listening.scored,
            Token: self._answering.token,
            ToolCalled: self._answering.tool_called,
            GenerationDone: self._answering.generated,
            GenerationFailed: lambda e, now: self._answering.failed(e),
            SynthesisFailed: lambda e, now: self._answering.failed(e),
            ev.AudioQueued: self._answering.queued,
            ev.AudioSent: self._answering.sent,
            ev.MarkSent: lambda e, now: self._answering.mark_sent(e),
            ev.MarkReturned: self._answering.mark_returned,
            ev.LineHeld: self._answering.line_held,
            ev.PlayoutResumed: lambda e, now: self._answering.resumed(e),
            ev.TimerFired: self._time_came,
            ev.LoadChanged: self._load_changed,
            ev.Answered: self._answered,
            ev.ControlDone: self._answering.control.done,
            ev.HungUp: lambda e, now: self._end(e.cause),
            ev.Drain: self._drain,
            ev.Configure: self._configure,
            ev.CommitInput: self._commit,
            ev.ClearInput: self._clear,
            ev.CreateItem: self._item_commands.create,
            ev.RetrieveItem: self._item_commands.retrieve,
            ev.DeleteItem: self._item_commands.delete,
            ev.TruncateItem: self._item_commands.truncate,
            ev.CreateResponse: self._create_response,
            ev.CancelResponse: self._cancel_response,
            ev.ClearOutput: lambda e, now: self._answering.clear_output(now),
            ev.Dtmf: self._pressed,
        }

    @property
    def state(self) -> str:
        """For people: what the call is doing."""
        if self.ended is not None:
            return "ended"
        if self._answering.reply is not None:
            reply = self._answering.reply
            if self._answering.held:
                return "held"
            return "speaking" if reply.clock.sent_samples else "thinking"
        if (acting := self._answering.control.state) is not None:
            return acting
        if self._listening.closing:
            return "thinking"
        return "hearing" if self._listening.current is not None or self._keypad.open else "waiting"

    @property
    def manual(self) -> bool:
        """Whether the client commits its turns itself."""
        return self._listening.manual

    def handle(self, event: ev.Event, now: float) -> list[Effect]:
        """One event. After the call has ended every event is counted and has no other effect."""
        self._effects = []
        if self.ended is not None:
            return [Count("event_after_end")]
        self._handlers[type(event)](event, now)
        if self._effects or type(event) is not ev.VoiceScored:  # most windows change nothing: time alone has its timer
            self._advance(now)
        return self._effects

    def recover(self, now: float) -> list[Effect]:
        """After :meth:`handle` raised (a defect): end the turn, keep the call. What it had emitted before is part of
        the answer, for it was said of a state that is now so."""
        self._emit(Count("defect"))
        lost = self._listening.current is not None or bool(self._listening.closing)
        self._listening.close()
        if lost:
            self._notify(InputCleared())
        self._wanted = None
        self._unanswered = None
        self._keypad.clear()
        self._answering.owed = False
        self._answering.abandon(now)
        if self._draining:
            self._end("server_drain")
        self._advance(now)
        return self._effects

    # --- what listening leads to (TurnTaking) -----------------------------------------------------------------

    def speech_started(self, utterance: Utterance, now: float) -> None:
        self._idle.answered()
        how = self.config.turn.barge_in
        started = SpeechStarted(utterance.item_id, samples_to_ms(utterance.start_samples))
        if how is BargeIn.IGNORE or self._answering.says_farewell:
            self._notify(started)
        elif how is BargeIn.ONSET:
            self._answering.interrupt("turn_detected", utterance.onset_at, now, first=started)
        else:
            self._answering.interrupt_tail(now)
            self._answering.hold(utterance.onset_at, now)
            self._notify(started)

    def speech_heard(self, utterance: Utterance, now: float) -> None:
        if self.config.turn.barge_in is BargeIn.HOLD and not self._answering.says_farewell:
            self._answering.judge(utterance, now)

    def speech_resumed(self, utterance: Utterance, now: float) -> None:
        self._answering.drop_speculation()
        if self.config.turn.barge_in is BargeIn.HOLD and not self._answering.says_farewell:
            self._answering.hold(utterance.onset_at, now)

    def turn_expected(self, utterance: Utterance, now: float) -> None:
        if self._answering.busy or self._draining:
            self.speech_heard(utterance, now)
        elif self.config.turn.create_response and self._speculates and not self._listening.manual:
            self._answering.speculate(utterance, now)

    def turn_ended(self, utterance: Utterance, now: float) -> None:
        turn = self.config.turn
        if turn.barge_in is BargeIn.HOLD and not self._listening.manual and not self._answering.says_farewell:
            if not self._answering.ends_reply(utterance, now):
                self.nothing_said(utterance, now)
                return
            self._answering.interrupt_reply("turn_detected", utterance.onset_at, now)
        if self._wanted is not None:
            self._answering.drop_speculation()  # the client has asked for a response of its own
        promoted = self._answering.speculation_for(utterance)
        self._items.admit(utterance)
        if self._wanted is not None:
            self._answer_wanted(utterance, now)
        elif utterance.announced or not turn.create_response or self._draining:
            return
        elif self._answering.busy:
            self._unanswered = utterance
        else:
            self._answering.answer(utterance, promoted, now)

    def nothing_said(self, utterance: Utterance, now: float) -> None:
        self._answering.drop_speculation()
        self._answering.release()
        self._emit(Count("utterance_without_words"))
        if utterance.announced:
            self._items.tell_transcript(utterance)
        else:
            if utterance.error is not None:
                self._notify(CommandFailed(*utterance.error, fault="server"))
                self._apologize(now)
            self._notify(InputCleared())
        if not self._answering.busy:
            self._answering.restart_idle(now)
        self._answer_wanted(utterance, now)

    # --- the call ---------------------------------------------------------------------------------------------

    def _answered(self, _: ev.Answered, now: float) -> None:
        if self.config.greeting and not self._answering.busy:  # a client may have asked for a response already
            self._answering.say(self.config.greeting, now)

    def _drain(self, event: ev.Drain, now: float) -> None:
        if self._draining:
            return
        self._draining = True
        self._answering.control.stop(*CALL_ENDED)
        self._answering.control.take_back(now)  # who is on hold would not hear the farewell
        self._answering.interrupt("client_cancelled", None, now)
        if event.farewell and self.config.audio_output:
            self._answering.say(event.farewell, now, ends_call="server_drain")
        else:
            self._end("server_drain")

    def _end(self, cause: str) -> None:
        self._listening.close()
        self._answering.close()
        if self._armed is not None:
            self._emit(CancelTimer())
        self.ended = cause
        self._emit(EndCall(cause))

    def _load_changed(self, event: ev.LoadChanged, now: float) -> None:
        self._answering.load = event

    def _configure(self, event: ev.Configure, now: float) -> None:
        if event.config.turn != self.config.turn or event.config.language != self.config.language:
            self._answering.drop_speculation()
            if self._listening.configure(event.config.language, event.config.turn):
                self._answering.release()
                self._notify(InputCleared())
        self.config = self._answering.config = event.config
        self._answering.version += 1

    # --- the client's commands --------------------------------------------------------------------------------

    def _commit(self, event: ev.CommitInput, now: float) -> None:
        utterance = self._listening.current
        if utterance is None or event.end_samples - utterance.start_samples < LEAST_COMMIT_MS * INPUT_RATE_HZ // 1000:
            code = "input_audio_buffer_commit_empty"
            self._notify(
                CommandFailed(code, "the buffer holds less than 100 ms of audio, or no speech", None, event.event_id)
            )
            return
        if not self._listening.manual:
            self._listening.decide(utterance, now)
            return
        for earlier in self._listening.closing:  # turns from before the client took charge keep their place
            self._items.announce(earlier)
        self._items.announce(utterance)
        self._listening.decide(utterance, now)

    def _pressed(self, event: ev.Dtmf, now: float) -> None:
        self._idle.answered()
        self._keypad.pressed(event, now)

    def _clear(self, event: ev.ClearInput, now: float) -> None:
        self._answering.drop_speculation()
        self._answering.release()
        self._listening.clear(event.end_samples)
        self._notify(InputCleared())

    def _create_response(self, event: ev.CreateResponse, now: float) -> None:
        waiting = self._listening.closing
        if self._answering.reply is not None or self._wanted is not None:
            code = "conversation_already_has_active_response"
            self._notify(CommandFailed(code, "a response is already being made", None, event.event_id))
        elif waiting or self._answering.busy:
            self._wanted = event.options
        else:
            self._answering.start(event.options, None, now)

    def _cancel_response(self, event: ev.CancelResponse, now: float) -> None:
        reply = self._answering.reply
        if reply is None and self._wanted is not None and event.response_id is None:
            self._wanted = None  # asked for and taken back before the words were there: nobody was told of it
            self._emit(Count("response_cancelled"))
            return
        if reply is None or event.response_id not in (None, reply.response_id):
            message = "there is no active response to cancel" if reply is None else "this response is not active"
            self._notify(CommandFailed("response_cancel_not_active", message, None, event.event_id))
            return
        self._answering.interrupt("client_cancelled", None, now)

    # --- inside -----------------------------------------------------------------------------------------------

    def _answer_wanted(self, utterance: Utterance, now: float) -> None:
        """The response a client asked for while words were missing, once none are."""
        if self._wanted is not None and not self._listening.closing and not self._answering.busy:
            options, self._wanted = self._wanted, None
            self._answering.start(options, utterance, now)

    def _apologize(self, now: float) -> None:
        if self.config.apology and self.config.audio_output and not self._answering.busy and not self._draining:
            self._answering.say(self.config.apology, now, apology=True)

    @property
    def _speculates(self) -> bool:
        return self.config.turn.speculate and self._answering.load.speculate

    def _time_came(self, _: ev.TimerFired, now: float) -> None:
        self._armed = None
        if now >= self._ends_at:
            self._end("max_duration")
            return
        self._listening.on_time(now)
        self._keypad.on_time(now)
        if self._answering.held:
            spoken = self._listening.newest
            if spoken is None:
                self._answering.release()
            else:
                self._answering.judge(spoken, now)
        self._idle.on_time(now)

    def _advance(self, now: float) -> None:
        """After every event: what became ready moves on, and one timer is set for what can't wait longer."""
        if self.ended is None:
            self._answering.advance(now)
            if self._answering.control.ends is not None:
                self._end(self._answering.control.ends)
                return
            if self._answering.end_cause is not None and self._last_word_at is None:
                self._last_word_at = now
            if self._last_word_at is not None and now >= self._last_word_at + LAST_WORD_S:
                self._end(self._answering.end_cause or "server_drain")
        if self.ended is not None:
            return
        if self._wanted is not None and not self._listening.closing and not self._answering.busy:
            options, self._wanted = self._wanted, None
            self._answering.start(options, None, now)
        if self._unanswered is not None and not self._answering.busy:
            utterance, self._unanswered = self._unanswered, None
            self._answering.answer(utterance, None, now)
        owed = self._answering.owed or self._answering.control.owed
        quiet = self._listening.manual or self._listening.newest is None
        if owed and quiet and not self._answering.busy and not self._draining:
            self._answering.start(ResponseOptions(), None, now)
        if self._answering.owed or self._unanswered is not None or self._wanted is not None:
            self._answering.control.take_back(now)
        last = self._last_word_at + LAST_WORD_S if self._last_word_at is not None else None
        times = (
            self._listening.deadline(),
            self._answering.deadline(now),
            self._keypad.deadline(),
            self._idle.deadline(),
            self._ends_at,
            last,
        )
        due = min(time for time in times if time is not None)
        if self._armed is None or due < self._armed:
            self._armed = due
            self._emit(SetTimer(due))

    def _notify(self, notice: Notice) -> None:
        self._emit(Notify(notice))

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)
