"""How long the steps of one turn took: the times of a reply, as they become known."""

from __future__ import annotations

import msgspec

from streaming.effects import RecordTurn
from streaming.jobs import Usage
from streaming.listening import Utterance
from streaming.turn_times import TurnTimes


class Stopwatch:
    """Counts from ``speech_end_at``, when the caller's last voiced sample ended. Each step is noted once."""

    def __init__(self, response_id: str, utterance: int, speech_end_at: float) -> None:
        self._speech_end_at = speech_end_at
        self._times = TurnTimes(response_id, utterance, speculative=False)

    def begin(self, *, speculative: bool) -> None:
        self._times = msgspec.structs.replace(self._times, speculative=speculative)

    def first(self, name: str, now: float) -> None:
        """``name`` is a field of :class:`TurnTimes`; only its first time counts."""
        if getattr(self._times, name) is None:
            self._times = msgspec.structs.replace(self._times, **{name: (now - self._speech_end_at) * 1000})

    def cut(self, onset_at: float, now: float) -> None:
        """How long after the caller's onset the reply was silenced."""
        if self._times.cut_to_silence_ms is None:
            self._times = msgspec.structs.replace(self._times, cut_to_silence_ms=(now - onset_at) * 1000)

    def turn(self, utterance: Utterance) -> None:
        """How long its caller had spoken, when it was decided and its transcript was there."""
        self._times = msgspec.structs.replace(
            self._times,
            spoke_ms=max(0.0, self._speech_end_at - utterance.onset_at) * 1000,
            decision_ms=self._after(utterance.decided_at),
            final_ms=self._after(utterance.final_at),
        )

    def record(self, usage: Usage, failure: tuple[str, str] | None) -> RecordTurn:
        """All that is known, of a response that is over."""
        times = msgspec.structs.replace(
            self._times,
            failure=failure[0] if failure is not None else None,
            prompt_tokens=usage.prompt_tokens,
            prefilled_tokens=usage.prefilled_tokens,
            completion_tokens=usage.completion_tokens,
        )
        return RecordTurn(times, self._speech_end_at)

    def _after(self, at: float | None) -> float | None:
        return None if at is None else (at - self._speech_end_at) * 1000
