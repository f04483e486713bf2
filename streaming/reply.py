"""One attempt at a response: tokens to clauses to speech, and what of it was heard. One epoch each."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Literal

from streaming.config import SessionConfig
from streaming.conversation import Item, PartKind
from streaming.effects import (
    CancelEpoch,
    CancelGeneration,
    CancelJobs,
    ClosePlayout,
    Count,
    Effect,
    Notify,
    OpenPlayout,
)
from streaming.heard import HeardLedger
from streaming.jobs import Generate, Message, Priority, Synthesize, ToolCalled, Usage, WordEnd
from streaming.notices import (
    OutputEnded,
    OutputStarted,
    OutputTextDelta,
    OutputTranscriptDelta,
    Reason,
    Response,
    ResponseCreated,
    ResponseDone,
    Status,
)
from streaming.pacing import PlayoutClock
from streaming.stopwatch import Stopwatch
from streaming.text.clauses import ClauseSplitter, Segment
from streaming.text.speakable import speakable
from streaming.tools import END_CALL, definitions, may_call

AHEAD_S = 3.0
"""Speech is made at most this far ahead of what the caller hears."""

STALL_S = 0.25
"""A language model that says nothing for this long has its words spoken without waiting for the clause's end."""

FIRST_TOKEN_S = 20.0
STEP_S = 15.0
"""Bounds on waiting for a first token, and for a next token or piece of audio."""

MAX_REPLY_CHARS = 20_000
MAX_CALLS = 8
HANG_UP_S = 0.5
"""From the agent's last word until it hangs up: a caller who has more to say can begin to."""

FRAME_MS = 20
"""The longest frame of any leg: less than this may stay behind in a pacer."""


class ReplyState(enum.Enum):
    SPECULATIVE = "speculative"
    LIVE = "live"
    ENDED = "ended"


class Reply:
    """Feeds on one epoch's results and emits effects. The session decides what it means for the call."""

    def __init__(
        self,
        *,
        call_id: str,
        epoch: int,
        response_id: str,
        item_id: str,
        config: SessionConfig,
        metadata: dict[str, str] | None,
        utterance: int,
        speech_end_at: float,
        free_at: float,
        first_clause_chars: int,
        emit: Callable[[Effect], None],
    ) -> None:
        self.epoch = epoch
        self.response_id = response_id
        self.item_id = item_id
        self.config = config
        self.state = ReplyState.SPECULATIVE
        self.raw = ""
        self.ledger = HeardLedger(config.output_rate_hz)
        self.clock = PlayoutClock(config.output_rate_hz, free_at)
        self.stopwatch = Stopwatch(response_id, utterance, speech_end_at)
        self.is_apology = False
        self.ends_call: str | None = None
        self.failure: tuple[str, str] | None = None
        self.usage = Usage()
        self.generated: str | None = None
        """Why the text ended ("stop", "length"), None while it goes on."""
        self.calls: list[ToolCalled] = []
        """The tools it calls: none acts before all of it was heard."""
        self.progress_at = speech_end_at
        self.status: Status = "in_progress"
        self._call_id = call_id
        self._metadata = metadata
        self._emit = emit
        self._splitter = ClauseSplitter(first_clause_chars)
        self._waiting: deque[int] = deque()
        self._texts: list[str] = []
        self._ends: list[int] = []
        self._in_synthesis: int | None = None
        self._announced_chars = 0
        self._announced_segments = 0
        self._previous_item_id: str | None = None
        self._silent_since: float | None = None
        """When all of it had been heard, of a reply that hangs up."""
        self._heard_override: int | None = None
        self._most_sent_samples = 0

    # --- beginning --------------------------------------------------------------------------------------------

    def generate(self, messages: tuple[Message, ...], now: float, *, speculative: bool) -> None:
        """Ask for the text."""
        self.progress_at = now
        self.stopwatch.begin(speculative=speculative)
        self._emit(
            Generate(
                call=self._call_id,
                epoch=self.epoch,
                messages=messages,
                priority=Priority.SPECULATIVE if speculative else Priority.DECODE,
                deadline=now + 0.25,
                max_tokens=self.config.max_output_tokens,
                temperature=self.config.temperature,
                tools=definitions(self.config),
            )
        )

    def say(self, text: str, now: float) -> None:
        """A fixed text in place of a generated one."""
        self.add_text(text, now)
        self.end_text("stop", Usage(), now)

    def go_live(self, previous_item_id: str | None) -> Item:
        """The reply is the call's answer from now on: tell the wire, let its audio play. Returns its item."""
        self.state = ReplyState.LIVE
        self._previous_item_id = previous_item_id
        self._emit(Notify(ResponseCreated(self._snapshot())))
        if self.config.audio_output:
            self._emit(OpenPlayout(self.epoch, self.response_id, self.item_id))
        self._emit(Notify(OutputStarted(self.response_id, self.item("in_progress"), previous_item_id)))
        self._announce_text()
        return self.item("in_progress")

    # --- what engines answer ----------------------------------------------------------------------------------

    def add_text(self, text: str, now: float) -> None:
        self.progress_at = now
        self.stopwatch.first("first_token_ms", now)
        too_long = len(self.raw) + len(text) > MAX_REPLY_CHARS
        text = text[: MAX_REPLY_CHARS - len(self.raw)]
        self.raw += text
        self._announce_text()
        if self.config.audio_output:
            self._add_segments(self._splitter.feed(text), now)
        if too_long:
            self._emit(CancelGeneration(self.epoch))
            self.end_text("length", self.usage, now)

    def add_call(self, call: ToolCalled, now: float) -> None:
        self.progress_at = now
        if len(self.calls) < MAX_CALLS:
            self.calls.append(call)
        else:
            self._emit(Count("tool_call_dropped"))

    def end_text(self, reason: str, usage: Usage, now: float) -> None:
        if self.hangs_up and not self.raw.strip() and self.config.goodbye:
            self.add_text(self.config.goodbye, now)
        self.progress_at = now
        self.generated = reason
        self.usage = usage
        if self.config.audio_output:
            self._add_segments(self._splitter.flush(), now)

    def stalled(self, now: float) -> None:
        """No token for :data:`STALL_S`: say what there is, when nothing else is left to say."""
        if self.generated is None and not self._waiting and self._in_synthesis is None and self.config.audio_output:
            self._add_segments(self._splitter.flush_pending(), now)

    def add_audio(self, segment: int, samples: int, words: tuple[WordEnd, ...], *, last: bool, now: float) -> None:
        self.progress_at = now
        self.ledger.add_audio(segment, samples, words, last=last)
        if samples:
            self.stopwatch.first("first_audio_ms", now)
        if last:
            self._in_synthesis = None
            self.synthesize_next(now)

    def sent(self, position_samples: int, now: float) -> None:
        self.progress_at = now
        self.stopwatch.first("first_sent_ms", now)
        self.clock.sent(position_samples, now)
        self._most_sent_samples = max(self._most_sent_samples, position_samples)
        while self._announced_segments < len(self._ends):
            if self.ledger.audio_start(self._announced_segments) >= position_samples:
                break
            self._announce_segment()
        self.synthesize_next(now)

    def synthesize_next(self, now: float) -> None:
        """Begin the next segment if it is time: one after another, at most :data:`AHEAD_S` ahead, and only the
        first of a speculation."""
        if self._in_synthesis is not None or not self._waiting or self.state is ReplyState.ENDED:
            return
        segment = self._waiting[0]
        if segment > 0 and self.state is ReplyState.SPECULATIVE:
            return
        ahead_s = (self.ledger.samples - self.clock.heard_samples(now)) / self.config.output_rate_hz
        if ahead_s >= AHEAD_S:
            return
        self._waiting.popleft()
        self._in_synthesis = segment
        first = self.ledger.samples == 0
        self._emit(
            Synthesize(
                call=self._call_id,
                epoch=self.epoch,
                segment=segment,
                text=self._texts[segment],
                voice=self.config.voice,
                priority=Priority.FIRST_AUDIO if first else Priority.PLAYOUT,
                deadline=now + max(0.0, ahead_s),
                speed=self.config.speed,
                language=self.config.language,
            )
        )

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        return self.state is ReplyState.LIVE

    @property
    def hangs_up(self) -> bool:
        """Whether the call is over once all of it was heard."""
        return may_call(END_CALL, self.config) and any(call.name == END_CALL for call in self.calls)

    @property
    def made(self) -> bool:
        """All text and all audio of it is there."""
        return self.generated is not None and not self._waiting and self._in_synthesis is None

    @property
    def all_sent(self) -> bool:
        """A failed reply may end inside a segment, whose last piece is too short for a frame and never leaves."""
        left = self.config.output_rate_hz * FRAME_MS // 1000 if self.failure else 0
        return self.made and self.clock.sent_samples + left >= self.ledger.samples

    def over(self, now: float, *, waits: bool) -> bool:
        """Whether nothing of it is left to do: all was sent, or where it ``waits``, heard."""
        if not self.config.audio_output:
            return self.generated is not None
        if not self.all_sent:
            return False
        if not (waits or self.ends_call is not None or self.calls):
            return True
        if now < self.clock.dry_at(now):
            self._silent_since = None
            return False
        if not self.hangs_up or not self.ledger.samples:
            return True
        self._silent_since = now if self._silent_since is None else self._silent_since
        return now >= self._silent_since + HANG_UP_S

    def over_at(self, now: float) -> float:
        """When :meth:`over` may become true by time alone."""
        return self.clock.dry_at(now) if self._silent_since is None else self._silent_since + HANG_UP_S

    @property
    def waits_for_engine(self) -> bool:
        """Whether the next move is an engine's: then its time is bounded."""
        return self.generated is None or self._in_synthesis is not None

    def heard_samples(self, now: float) -> int:
        return self.clock.heard_samples(now) if self._heard_override is None else self._heard_override

    def heard_text(self, now: float) -> str:
        """What of the text the caller has heard; for a text reply, all of it."""
        if not self.config.audio_output:
            return self.raw
        return self.raw[: self.ledger.raw_end(self.heard_samples(now))]

    # --- ending -----------------------------------------------------------------------------------------------

    def fail(self, code: str, message: str) -> None:
        """An engine gave up: no more is made; what is queued still plays."""
        self.failure = (code, message)
        self.generated = self.generated or "stop"
        self._waiting.clear()
        self._in_synthesis = None
        self._emit(CancelJobs(self.epoch))

    def drop(self) -> None:
        """A speculation that was wrong: nobody was told of it."""
        self.state = ReplyState.ENDED
        self._emit(CancelEpoch(self.epoch))

    def played(self, audio_end_ms: int) -> int | None:
        """A client's report of what it played, in samples. None: more than was ever sent."""
        samples = audio_end_ms * self.config.output_rate_hz // 1000
        return samples if samples <= self._most_sent_samples else None

    def truncate(self, samples: int, now: float) -> Item:
        """Hold it true from now on that this much was played."""
        self._heard_override = samples
        complete = samples >= self.ledger.samples and self.made
        return self.item("completed" if complete else "incomplete", self.heard_text(now), cut=not complete)

    def heard_item(self, now: float) -> Item:
        """What the context keeps of it once all was sent: what a client said it heard, what a failure left, or all."""
        if self._heard_override is None and self.failure is None:
            return self.item("completed", self.raw)
        text = self.heard_text(self.clock.dry_at(now))
        return self.item("incomplete", text, cut=bool(text) and text != self.raw)

    def cut(self, now: float) -> Item:
        """Stop at once. Returns the item as it was heard; :meth:`finish` tells the wire."""
        heard = self.heard_samples(now)
        item = self.item("incomplete", self.heard_text(now), cut=True)
        self._heard_override = heard
        self._emit(CancelEpoch(self.epoch))
        return item

    def finish(self, status: Status, reason: Reason | None, item: Item) -> None:
        """Tell the wire that the response is over."""
        self.state = ReplyState.ENDED
        self.status = status
        if status != "cancelled" and self.config.audio_output:
            self._emit(ClosePlayout(self.epoch))
        if status == "completed":
            self._announce(len(self.raw))
            item = self.item(status, self.raw)  # all was said, though a client may have truncated what it heard of it
        told = self.raw[: self._announced_chars]
        self._emit(Notify(OutputEnded(self.response_id, self.item(status, told), self._previous_item_id, told)))
        self._emit(Notify(ResponseDone(self._snapshot(reason, item))))

    def item(self, status: Status, text: str | None = None, *, cut: bool = False) -> Item:
        kind = PartKind.OUTPUT_AUDIO if self.config.audio_output else PartKind.OUTPUT_TEXT
        state: Literal["in_progress", "completed", "incomplete"] = "incomplete"
        if status == "in_progress" or status == "completed":
            state = status
        return Item(self.item_id, "assistant", kind, text, state, cut)

    # --- inside -----------------------------------------------------------------------------------------------

    def _add_segments(self, segments: list[Segment], now: float) -> None:
        for segment in segments:
            spoken = speakable(segment.text, self.config.language)
            index = self.ledger.add_segment(segment.start, segment.end, segment.text, spoken)
            self._texts.append(spoken.text)
            self._ends.append(segment.end)
            self.stopwatch.first("first_clause_ms", now)
            if spoken.text:
                self._waiting.append(index)
            else:
                self.ledger.add_audio(index, 0, (), last=True)
        self.synthesize_next(now)

    def _announce_text(self) -> None:
        """A text reply is told as it comes; a spoken one segment by segment, as each begins to be sent."""
        if self.live and not self.config.audio_output:
            self._announce(len(self.raw))

    def _announce_segment(self) -> None:
        self._announce(self._ends[self._announced_segments])
        self._announced_segments += 1

    def _announce(self, end: int) -> None:
        delta = self.raw[self._announced_chars : end]
        if delta:
            self._announced_chars = end
            notice = OutputTranscriptDelta if self.config.audio_output else OutputTextDelta
            self._emit(Notify(notice(self.response_id, self.item_id, delta)))

    def _snapshot(self, reason: Reason | None = None, item: Item | None = None) -> Response:
        code, message = self.failure if self.failure and self.status == "failed" else (None, None)
        return Response(
            id=self.response_id,
            status=self.status,
            audio_output=self.config.audio_output,
            item=item,
            reason=reason,
            error_code=code,
            error_message=message,
            usage=self.usage,
            output_ms=self.clock.sent_samples * 1000 // self.config.output_rate_hz,
            metadata=self._metadata,
        )
