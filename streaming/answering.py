"""The response region of a session: which reply is live, which one is a speculation, and how each one ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from streaming.call_control import CallControl
from streaming.config import BargeIn, ResponseOptions, SessionConfig
from streaming.conversation import Conversation, Item
from streaming.effects import CancelEpoch, Count, Effect, Notify, Promote
from streaming.engine_deadlines import EngineDeadlines
from streaming.events import (
    AudioQueued,
    AudioSent,
    LineHeld,
    LoadChanged,
    MarkReturned,
    MarkSent,
    PlayoutResumed,
)
from streaming.holding import Holding
from streaming.jobs import GenerationDone, GenerationFailed, Message, SynthesisFailed, Token, ToolCalled
from streaming.listening import Utterance
from streaming.marks import Marks
from streaming.notices import Notice, Reason, Status
from streaming.playback import Playback
from streaming.reply import Reply
from streaming.speculation import Basis, Speculation
from streaming.turns import Verdict

FIRST_CLAUSE_CHARS = 60
SHORT_CLAUSE_CHARS = 30
"""The longest first clause, and the longest while engines are overloaded: about two seconds of speech to be made before
the caller hears anything, then one."""

LAST_WORD_S = 0.3
"""Given to the far end's buffers before a call is ended after its last word."""

MAX_PAST_REPLIES = 16
"""Replies that can still be truncated by a client that played less than it was sent."""


class Answering:
    """At most one live reply, one speculation, and one reply that was sent and is still being heard."""

    def __init__(
        self,
        call_id: str,
        config: SessionConfig,
        conversation: Conversation,
        new_id: Callable[[str], str],
        emit: Callable[[Effect], None],
    ) -> None:
        self.config = config
        self.version = 0
        """Raised by every change of the context a reply is made from."""
        self.reply: Reply | None = None
        self.load = LoadChanged()
        self.idle_since: float | None = None
        """When the last reply had been heard; None while one is live or the caller has not been answered yet."""
        self.end_cause: str | None = None
        """Set when the call's last words were heard."""
        self.owed = False
        """Keys were pressed that no reply has answered yet."""
        self._call_id = call_id
        self._conversation = conversation
        self._new_id = new_id
        self._emit = emit
        self._epoch = 0
        self.holding = Holding(emit)
        self._speculation = Speculation(emit)
        self._engine_deadlines = EngineDeadlines(emit)
        self.playback = Playback(conversation, self.change, emit)
        self._marks = Marks(emit)
        self.on_hold = False
        """The far end does not listen."""
        self.control = CallControl(conversation, new_id, self._context_changed, emit)
        self.past: deque[Reply] = deque(maxlen=MAX_PAST_REPLIES)

    # --- beginning a reply ------------------------------------------------------------------------------------

    def start(self, options: ResponseOptions, utterance: Utterance | None, now: float) -> None:
        """Generate a reply to the conversation as it is; ``utterance`` is the turn it answers, if it was spoken."""
        self.drop_speculation()
        self._begin_round(utterance)
        reply = self._new(options.over(self._toolbox()), options.metadata, utterance, now)
        if options.input_text is None:
            messages = self._conversation.messages(reply.config.preamble())
        else:
            messages = _prompt(reply.config, options.input_text)
        self._go_live(reply)
        if utterance is not None:
            reply.stopwatch.turn(utterance)
        reply.generate(messages, now, speculative=False)

    def say(self, text: str, now: float, *, apology: bool = False, ends_call: str | None = None) -> None:
        """Speak a fixed text: a greeting, an apology, a farewell."""
        self.drop_speculation()
        reply = self._new(self.config, None, None, now)
        reply.is_apology = apology
        reply.ends_call = ends_call
        self._go_live(reply)
        reply.say(text, now)

    def speculate(self, utterance: Utterance, now: float) -> None:
        """Begin the reply to words whose turn may not be over. Nothing of it leaves before :meth:`answer`."""
        basis = Basis.of(utterance, self.version)
        self.drop_speculation()
        reply = self._new(self._toolbox(), None, utterance, now)
        self._speculation.begin(reply, basis)
        prompt = self._conversation.messages(self.config.preamble(), Message("user", utterance.text))
        reply.generate(prompt, now, speculative=True)

    def drop_speculation(self) -> None:
        self._speculation.drop()

    def speculation_for(self, utterance: Utterance) -> Reply | None:
        """The speculation made of just these words in just this context; any other is dropped. To be asked before
        the utterance enters the conversation."""
        return self._speculation.take(Basis.of(utterance, self.version))

    def answer(self, utterance: Utterance, promoted: Reply | None, now: float) -> None:
        """Reply to a turn that is in the conversation."""
        if promoted is None:
            self.start(ResponseOptions(), utterance, now)
            return
        self._begin_round(utterance)
        self._emit(Count("speculation_promoted"))
        self._emit(Promote(promoted.epoch))
        promoted.stopwatch.turn(utterance)
        self._go_live(promoted)
        promoted.synthesize_next(now)

    # --- what engines and the leg answer ----------------------------------------------------------------------

    def token(self, event: Token, now: float) -> None:
        if (reply := self._find(event.epoch, "late_token")) is not None and reply.generated is None:
            reply.add_text(event.text, now)

    def tool_called(self, event: ToolCalled, now: float) -> None:
        if (reply := self._find(event.epoch, "late_tool_call")) is not None and reply.generated is None:
            reply.add_call(event, now)

    def generated(self, event: GenerationDone, now: float) -> None:
        if (reply := self._find(event.epoch, "late_generation")) is None or reply.generated is not None:
            return
        reply.end_text(event.reason, event.usage, now)
        if not reply.raw.strip() and not (reply.calls and reply.config.tools):
            reply.fail("empty_reply", "the language model gave no text")

    def failed(self, event: GenerationFailed | SynthesisFailed) -> None:
        if (reply := self._find(event.epoch, "late_failure")) is not None:
            self._emit(Count("engine_failed"))
            reply.fail(event.code, event.message)

    def queued(self, event: AudioQueued, now: float) -> None:
        if (reply := self._find(event.epoch, "late_audio")) is not None and reply.failure is None:
            reply.add_audio(event.segment, event.samples, event.words, last=event.last, now=now)

    def sent(self, event: AudioSent, now: float) -> None:
        if (reply := self._find(event.epoch, "late_sent")) is not None:
            self.playback.sent(reply)
            reply.sent(event.sent_samples, now)

    def mark_sent(self, event: MarkSent) -> None:
        self._marks.sent(self._played(event.epoch), event)

    def mark_returned(self, event: MarkReturned, now: float) -> None:
        reply = self._played(event.epoch)
        heard = self._marks.returned(reply, event, now)
        if reply is not None and heard is not None and reply.item_id in self._conversation:
            self.change(reply.truncate(heard, now))

    def line_held(self, event: LineHeld, now: float) -> None:
        """Nobody who waits is prompted meanwhile."""
        self.on_hold = event.on
        self.restart_idle(now)

    def resumed(self, event: PlayoutResumed) -> None:
        if (reply := self._find(event.epoch, "late_resume")) is not None:
            reply.clock.stop(event.from_samples)

    # --- interruption -----------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether no reply may begin now: one is being made or heard, or a tool acts on the call."""
        return self.reply is not None or self.control.active

    @property
    def says_farewell(self) -> bool:
        """Whether the live reply is the call's last word, which nothing interrupts."""
        return self.reply is not None and self.reply.ends_call is not None

    @property
    def held(self) -> bool:
        """Whether the live reply is silent, until it is known what the caller said."""
        return self.holding.since is not None

    def hold(self, onset_at: float, now: float) -> None:
        """Stop the sound of the live reply, keeping what was not heard."""
        if self.reply is not None and not self.held:
            self.holding.hold(self.reply, onset_at, now)

    def release(self) -> None:
        """Let a held reply go on."""
        self.holding.release(self.reply)

    def judge(self, utterance: Utterance, now: float) -> None:
        """Decide on the held reply by what is known of the caller's utterance."""
        if self.reply is None:
            return
        verdict = self.holding.judge(self.reply, utterance, now)
        if verdict is Verdict.COMMIT:
            self.interrupt("turn_detected", utterance.onset_at, now)
        elif verdict is Verdict.RELEASE:
            self.release()

    def ends_reply(self, utterance: Utterance, now: float) -> bool:
        """Whether the finished utterance is a reason to end the live reply, or only says: go on."""
        return self.reply is None or self.holding.ended_by(self.reply, utterance, now)

    def interrupt(self, reason: Reason, onset_at: float | None, now: float, first: Notice | None = None) -> None:
        """End the live reply, or what is still being heard of one that was sent: the context keeps what was heard.

        ``first`` is told to the wire after the sound was stopped and before the response's end.
        """
        self.drop_speculation()
        tail = self.playback.cut_tail(now)
        self.interrupt_reply(reason, onset_at, now, first)
        self.playback.tell_cut(tail, now)

    def interrupt_reply(self, reason: Reason, onset_at: float | None, now: float, first: Notice | None = None) -> None:
        """End the live reply only: a speculation for the words that end it lives on."""
        reply = self.reply
        item = reply.cut(now) if reply is not None else None
        if first is not None:
            self._emit(Notify(first))
        if reply is None or item is None:
            return
        if onset_at is not None:
            reply.stopwatch.cut(onset_at, now)
        self._emit(Count("barge_in_committed" if reason == "turn_detected" else "response_cancelled"))
        self._end(reply, "cancelled", reason, item, now)
        self.playback.tell_cut(reply, now)

    def interrupt_tail(self, now: float) -> None:
        """End what is still being heard of a reply that was sent."""
        self.playback.tell_cut(self.playback.cut_tail(now), now)

    def clear_output(self, now: float) -> None:
        """Silence the reply that sounds: a response that is still being made ends with it."""
        if self.playback.sounding is None:
            self._emit(Count("nothing_to_clear"))  # stock clients clear after every cancel
        elif self.playback.sounding is self.reply:
            self.interrupt("client_cancelled", None, now)
        else:
            self.interrupt_tail(now)

    # --- time -------------------------------------------------------------------------------------------------

    def deadline(self, now: float) -> float | None:
        """When :meth:`advance` wants to be called at the latest."""
        times = self._engine_deadlines.times(self._active())
        reply = self.reply
        if not self.held and reply is not None and reply.all_sent:
            times.append(reply.over_at(now))
        others = (self.holding.deadline(), self.playback.deadline(reply, now), self.control.deadline())
        times += [time for time in others if time is not None]
        return min(times, default=None)

    def advance(self, now: float) -> None:
        """Move on what time or the last event made ready."""
        self._marks.advance((self.reply, self.playback.tail), now)
        self._engine_deadlines.advance(self._active(), now)
        self._speculation.drop_failed()
        reply = self.reply
        if reply is not None and not self.held and reply.over(now, waits=self.config.turn.barge_in is BargeIn.HOLD):
            status: Status = "failed" if reply.failure else "completed"
            if reply.generated == "length" and not reply.failure:
                self._end(reply, "incomplete", "max_output_tokens", reply.heard_item(now), now)
            else:
                self._end(reply, status, "error" if reply.failure else None, reply.heard_item(now), now)
        self.playback.advance(self.reply, now)
        self.control.on_time(now)

    def restart_idle(self, now: float) -> None:
        """The caller is there, though without a word to answer."""
        if self.idle_since is not None:
            self.idle_since = now

    def change(self, item: Item) -> None:
        """Put a new state of an item into the context."""
        self._conversation.replace(item)
        self.version += 1

    def abandon(self, now: float) -> None:
        """After a defect: end what is being made, whatever state it is in."""
        self._speculation.forget()
        self.control.abandon()
        self.playback.tail = self.holding.since = None
        reply, self.reply = self.reply, None
        for epoch in range(max(1, self._epoch - 1), self._epoch + 1):
            self._emit(CancelEpoch(epoch))
        self.playback.clear()
        if reply is not None and reply.live:
            reply.failure = ("internal_error", "a defect ended this response")
            item = reply.item("failed", reply.heard_text(now), cut=True)
            self.change(item)
            reply.finish("failed", "error", item)
        self.idle_since = now

    def close(self) -> None:
        """The call ends: stop every job."""
        for reply in self._active():
            self._emit(CancelEpoch(reply.epoch))
        self.playback.clear()
        if self.reply is not None:
            self._emit(self.reply.stopwatch.record(self.reply.usage, self.reply.failure))
        self._speculation.forget()
        self.reply = self.playback.tail = self.holding.since = None

    # --- inside -----------------------------------------------------------------------------------------------

    def _new(
        self, config: SessionConfig, metadata: dict[str, str] | None, utterance: Utterance | None, now: float
    ) -> Reply:
        self._epoch += 1
        return Reply(
            call_id=self._call_id,
            epoch=self._epoch,
            response_id=self._new_id("resp"),
            item_id=self._new_id("item"),
            config=config,
            metadata=metadata,
            utterance=utterance.id if utterance else 0,
            speech_end_at=utterance.speech_end_at if utterance else now,
            free_at=self.playback.tail.clock.expected_dry_at(now) if self.playback.tail is not None else 0.0,
            first_clause_chars=SHORT_CLAUSE_CHARS if self.load.short_clauses else FIRST_CLAUSE_CHARS,
            emit=self._emit,
        )

    def _go_live(self, reply: Reply) -> None:
        self.reply = reply
        self.holding.since = None
        self.idle_since = None
        previous = self._conversation.last_id
        self._conversation.add(reply.go_live(previous))
        self.version += 1

    def _end(self, reply: Reply, status: Status, reason: Reason | None, item: Item, now: float) -> None:
        self.change(item)
        reply.finish(status, reason, item)
        self._emit(reply.stopwatch.record(reply.usage, reply.failure))
        self.past.append(reply)
        self.reply = self.holding.since = None
        self.idle_since = now
        if status in ("completed", "incomplete") and reply.heard_samples(now) < reply.ledger.samples:
            self.playback.tail = reply
            self.idle_since = reply.clock.expected_dry_at(now)
        self.control.take(reply, status, now)
        if reply.ends_call is not None:
            self.end_cause = reply.ends_call
        elif status == "failed" and self.config.apology and not reply.is_apology:
            self.say(self.config.apology, now, apology=True)

    def _begin_round(self, utterance: Utterance | None) -> None:
        self.control.reply_begins(answers_caller=utterance is not None or self.owed)
        self.owed = False

    def _toolbox(self) -> SessionConfig:
        """The configuration of a reply that begins now."""
        return self.config if self.control.may_call else msgspec.structs.replace(self.config, tools=())

    def _context_changed(self) -> None:
        self.version += 1

    def _active(self) -> list[Reply]:
        return [reply for reply in (self.reply, self._speculation.reply) if reply is not None]

    def _played(self, epoch: int) -> Reply | None:
        """The reply of an epoch that is or was heard."""
        replies = (self.reply, *reversed(self.past))
        return next((reply for reply in replies if reply is not None and reply.epoch == epoch), None)

    def _find(self, epoch: int, late: str) -> Reply | None:
        for reply in self._active():
            if reply.epoch == epoch:
                return reply
        self._emit(Count(late))
        return None


def _prompt(config: SessionConfig, input_text: tuple[tuple[str, str], ...]) -> tuple[Message, ...]:
    return (*config.preamble(), *(Message(role, text) for role, text in input_text))  # type: ignore[arg-type]
