"""The input region of a session: from voice activity to a caller's turn in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from streaming.config import TurnDetection, TurnMode
from streaming.effects import CloseTranscription, Count, Effect, Notify
from streaming.jobs import (
    INPUT_RATE_HZ,
    EndOfTurnScored,
    FinalizeTranscription,
    FinalTranscript,
    OpenTranscription,
    PartialTranscript,
    Priority,
    ScoreEndOfTurn,
    TranscriptionFailed,
)
from streaming.notices import SpeechStopped
from streaming.turns import EndOfTurnPolicy
from streaming.vad import WINDOW_MS, VoiceGate, VoiceStarted, VoiceStopped, ms_to_samples, samples_to_ms

AUDIO_STALL_S = 1.0
"""Frames that stop coming in mid-speech end the utterance after this."""

FINAL_BOUND_S = 5.0
"""A transcript that is not there by then is given up: the partial stands in for it."""

MAX_UTTERANCE_S = 60.0
MAX_CLOSING = 4
"""Utterances that ended and still wait for their transcripts."""

SCORED_SAMPLES = 8 * INPUT_RATE_HZ
"""The end-of-turn model hears at most this."""


@dataclass(slots=True, eq=False)
class Utterance:
    """One stretch of caller speech. Positions are input samples, times seconds on the session's clock."""

    id: int
    item_id: str
    start_samples: int
    onset_samples: int
    onset_at: float
    voiced_end_samples: int
    speech_end_at: float
    revision: int = 0
    """Raised when the caller goes on after a pause: results for an older one are worthless."""
    paused: bool = False
    asked: bool = False
    """Whether this revision's transcript was asked for."""
    score_asked: bool = False
    partial: str = ""
    final: str | None = None
    final_at: float | None = None
    probability: float | None = None
    decided_at: float | None = None
    error: tuple[str, str] | None = None
    announced: bool = False
    """Manual mode: the wire was told of the item at its commit, before the words were known."""

    @property
    def text(self) -> str:
        """The best words there are: an empty final does not undo words heard on the way."""
        return (self.final or self.partial).strip()

    @property
    def voiced_ms(self) -> int:
        return samples_to_ms(self.voiced_end_samples - self.onset_samples)


class TurnTaking(Protocol):
    """What listening leads to; the session implements it."""

    def speech_started(self, utterance: Utterance, now: float) -> None: ...

    def speech_heard(self, utterance: Utterance, now: float) -> None:
        """More is known of the current utterance: a window, a partial, a pause."""

    def speech_resumed(self, utterance: Utterance, now: float) -> None:
        """The caller went on after a pause."""

    def turn_expected(self, utterance: Utterance, now: float) -> None:
        """The words of a pause are there before the turn is decided."""

    def turn_ended(self, utterance: Utterance, now: float) -> None:
        """The utterance is over and has words."""

    def nothing_said(self, utterance: Utterance, now: float) -> None:
        """The utterance is over and has none."""


class Listening:
    """At most one utterance is being spoken, and at most :data:`MAX_CLOSING` wait for their words, in order."""

    def __init__(
        self,
        call_id: str,
        language: str,
        turn: TurnDetection,
        new_id: Callable[[str], str],
        emit: Callable[[Effect], None],
        turns: TurnTaking,
    ) -> None:
        self._call_id = call_id
        self._new_id = new_id
        self._emit = emit
        self._turns = turns
        self._count = 0
        self._voice_at = 0.0
        self._free_samples = 0
        self.seen_samples = 0
        self.current: Utterance | None = None
        self.closing: deque[Utterance] = deque()
        self.turn = turn
        self.configure(language, turn)

    def configure(self, language: str, turn: TurnDetection) -> bool:
        """Listen by these rules from now on. Going to or from manual drops what is being spoken; returns whether
        there was something."""
        before, self.turn = self.turn, turn
        self._language = language
        self._policy = EndOfTurnPolicy(turn)
        self._gate = VoiceGate(turn.threshold)
        if self.current is not None and (turn.mode is TurnMode.MANUAL) != (before.mode is TurnMode.MANUAL):
            self.clear(self.seen_samples)
            return True
        if self.current is not None:
            self._gate.speaking = not self.current.paused
            self._gate.voiced_end_samples = self.current.voiced_end_samples
        return False

    @property
    def manual(self) -> bool:
        return self.turn.mode is TurnMode.MANUAL

    @property
    def newest(self) -> Utterance | None:
        """What is being spoken, or was spoken last and waits for its words."""
        return self.current or (self.closing[-1] if self.closing else None)

    def knows(self, item_id: str) -> bool:
        """Whether an utterance that is not in the conversation yet has this id."""
        return any(u.item_id == item_id for u in (*self.closing, self.current) if u is not None)

    def deadline(self) -> float | None:
        """When :meth:`on_time` wants to be called at the latest."""
        times = [u.decided_at + FINAL_BOUND_S for u in self.closing if u.decided_at is not None]
        if self.current is not None and not self.manual:
            times.append(self._voice_at + AUDIO_STALL_S)
        return min(times, default=None)

    # --- what is heard ----------------------------------------------------------------------------------------

    def voice(self, probability: float, end_samples: int, now: float) -> None:
        if self.manual or end_samples <= self._free_samples:
            return  # windows come late: of audio that was cleared or committed meanwhile they say nothing any more
        self.seen_samples = end_samples
        self._voice_at = now
        edge = self._gate.feed(probability, end_samples)
        utterance = self.current
        if isinstance(edge, VoiceStarted):
            if utterance is None:
                utterance = self._begin(edge.at_samples, now)
            else:
                self._resume(utterance, now)
        elif utterance is None:
            return
        if isinstance(edge, VoiceStopped):
            utterance.paused = True
        if not utterance.paused:
            utterance.voiced_end_samples = max(utterance.onset_samples, self._gate.voiced_end_samples)
        utterance.speech_end_at = now - (end_samples - utterance.voiced_end_samples) / INPUT_RATE_HZ
        self._turns.speech_heard(utterance, now)
        self._check_end(utterance, now)

    def appended(self, end_samples: int, now: float) -> None:
        """Manual mode: audio is in the buffer up to here."""
        self._voice_at = now
        if self.current is None:
            start = self.seen_samples
            self.current = self._new(start, start, now)
            self._emit(OpenTranscription(self._call_id, self.current.id, start, self._language))
        self.current.voiced_end_samples = self.seen_samples = end_samples
        self.current.speech_end_at = now

    def partial(self, event: PartialTranscript, now: float) -> None:
        utterance = self._find(event.utterance)
        if utterance is None or utterance.final is not None:
            self._emit(Count("late_partial"))
            return
        utterance.partial = event.text
        if utterance is self.current:
            self._turns.speech_heard(utterance, now)

    def transcript(self, event: FinalTranscript | TranscriptionFailed, now: float) -> None:
        utterance = self._find(event.utterance)
        if utterance is None or event.revision != utterance.revision or utterance.final is not None:
            self._emit(Count("late_final"))
            return
        if isinstance(event, TranscriptionFailed):
            utterance.error = (event.code, event.message)
            utterance.final = ""
            self._emit(Count("transcription_failed"))
        else:
            utterance.final = event.text.strip()
        utterance.final_at = now
        if utterance is self.current:
            if utterance.text:
                self._turns.turn_expected(utterance, now)
            self._check_end(utterance, now)
        else:
            self._settle(now)

    def scored(self, event: EndOfTurnScored, now: float) -> None:
        utterance = self.current
        if utterance is None or event.utterance != utterance.id or event.revision != utterance.revision:
            self._emit(Count("late_end_of_turn_score"))
            return
        utterance.probability = event.probability
        self._check_end(utterance, now)

    def on_time(self, now: float) -> None:
        while self.closing and now >= (self.closing[0].decided_at or 0.0) + FINAL_BOUND_S:
            self._give_up(now)
        current = self.current
        if current is not None and not self.manual and now >= self._voice_at + AUDIO_STALL_S:
            self._emit(Count("audio_stalled"))
            self.decide(current, now)

    # --- what the client does ---------------------------------------------------------------------------------

    def decide(self, utterance: Utterance, now: float) -> None:
        """The current utterance is over: ask for its words if that was not done, and wait for them."""
        self.current = None
        self._gate = VoiceGate(self.turn.threshold)
        self._free_samples = self.seen_samples
        utterance.decided_at = now
        if not self.manual:
            self._emit(Notify(SpeechStopped(utterance.item_id, samples_to_ms(utterance.voiced_end_samples))))
        if len(self.closing) >= MAX_CLOSING:
            self._emit(Count("utterance_given_up"))
            self._give_up(now)
        self.closing.append(utterance)
        if not utterance.asked:
            self._ask(utterance, now)
        self._settle(now)

    def clear(self, end_samples: int) -> None:
        """Forget what is being spoken."""
        utterance, self.current = self.current, None
        self._gate = VoiceGate(self.turn.threshold)
        self.seen_samples = self._free_samples = end_samples
        if utterance is not None:
            self._emit(CloseTranscription(utterance.id))

    def close(self) -> None:
        """The call ends."""
        self.clear(self.seen_samples)
        while self.closing:
            self._emit(CloseTranscription(self.closing.popleft().id))

    # --- inside -----------------------------------------------------------------------------------------------

    def _new(self, start: int, onset: int, now: float) -> Utterance:
        self._count += 1
        onset_at = now - (self.seen_samples - onset) / INPUT_RATE_HZ
        return Utterance(self._count, self._new_id("item"), start, onset, onset_at, onset, now)

    def _begin(self, onset: int, now: float) -> Utterance:
        start = max(self._free_samples, onset - ms_to_samples(self.turn.prefix_padding_ms), 0)
        self.current = utterance = self._new(min(start, onset), onset, now)
        self._emit(OpenTranscription(self._call_id, utterance.id, utterance.start_samples, self._language))
        self._turns.speech_started(utterance, now)
        return utterance

    def _resume(self, utterance: Utterance, now: float) -> None:
        utterance.paused = False
        utterance.revision += 1
        utterance.asked = utterance.score_asked = False
        if utterance.final:
            utterance.partial = utterance.final
        utterance.final = utterance.final_at = utterance.probability = None
        self._turns.speech_resumed(utterance, now)

    def _check_end(self, utterance: Utterance, now: float) -> None:
        if not utterance.paused:
            if self.seen_samples - utterance.onset_samples > MAX_UTTERANCE_S * INPUT_RATE_HZ:
                self._emit(Count("utterance_too_long"))
                self.decide(utterance, now)
            return
        silence_ms = samples_to_ms(self.seen_samples - utterance.voiced_end_samples)
        if not utterance.asked and _reached(silence_ms, self._policy.speculate_after_ms):
            self._ask(utterance, now)
        if not utterance.score_asked and _reached(silence_ms, self._policy.score_after_ms):
            utterance.score_asked = True
            start = max(utterance.start_samples, self.seen_samples - SCORED_SAMPLES)
            self._emit(ScoreEndOfTurn(utterance.id, utterance.revision, start, self.seen_samples))
        wait_ms = self._policy.wait_ms(utterance.probability, utterance.text)
        if silence_ms + WINDOW_MS / 2 >= wait_ms and not self._gate.rising:  # the window nearest to the wait
            self.decide(utterance, now)

    def _ask(self, utterance: Utterance, now: float) -> None:
        utterance.asked = True
        self._emit(FinalizeTranscription(utterance.id, utterance.revision, Priority.FINAL, now + 0.3))

    def _find(self, utterance_id: int) -> Utterance | None:
        if self.current is not None and self.current.id == utterance_id:
            return self.current
        return next((u for u in self.closing if u.id == utterance_id), None)

    def _give_up(self, now: float) -> None:
        utterance = self.closing[0]
        self._emit(Count("final_given_up"))
        utterance.final = utterance.final or ""
        utterance.error = utterance.error or ("transcription_timeout", "no transcript came in time")
        utterance.final_at = now
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Hand on the utterances whose words are known, oldest first."""
        while self.closing and self.closing[0].final is not None:
            utterance = self.closing.popleft()
            self._emit(CloseTranscription(utterance.id))
            if utterance.text:
                self._turns.turn_ended(utterance, now)
            else:
                self._turns.nothing_said(utterance, now)


def _reached(silence_ms: int, after_ms: int | None) -> bool:
    return after_ms is not None and silence_ms >= after_ms
