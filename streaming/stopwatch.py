"""How long the steps of one turn took: the times of a reply, as they become known."""

from __future__ import annotations

import msgspec

from streaming.jobs import Usage
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

    def turn(self, *, decision_at: float | None, final_at: float | None) -> None:
        """When the turn was decided and its transcript was there."""
        self._times = msgspec.structs.replace(
            self._times,
            decision_ms=None if decision_at is None else (decision_at - self._speech_end_at) * 1000,
            final_ms=None if final_at is None else (final_at - self._speech_end_at) * 1000,
        )

    def record(self, usage: Usage) -> TurnTimes:
        return msgspec.structs.replace(
            self._times,
            prompt_tokens=usage.prompt_tokens,
            prefilled_tokens=usage.prefilled_tokens,
            completion_tokens=usage.completion_tokens,
        )
