"""The first step of a barge-in: the sound is held while it is not known whether the caller means to interrupt."""

from __future__ import annotations

from collections.abc import Callable

from streaming.effects import Count, Effect, HoldPlayout, ReleasePlayout
from streaming.listening import Utterance
from streaming.reply import Reply
from streaming.turns import HOLD_MS, InterruptionPolicy, Verdict


class Holding:
    """Of the live reply, if there is one."""

    def __init__(self, emit: Callable[[Effect], None]) -> None:
        self.since: float | None = None
        """When the reply was silenced; None: it is not held."""
        self._policy = InterruptionPolicy()
        self._emit = emit

    def hold(self, reply: Reply, onset_at: float, now: float) -> None:
        """Stop the sound, keeping what was not heard."""
        heard = reply.heard_samples(now)
        self.since = now
        reply.stopwatch.cut(onset_at, now)
        self.move(reply, heard)

    def move(self, reply: Reply, heard_samples: int) -> None:
        """It is known better now what was heard of the held reply."""
        self._emit(HoldPlayout(reply.epoch, heard_samples))
        reply.clock.stop(heard_samples)

    def release(self, reply: Reply | None) -> None:
        """Let it go on."""
        if self.since is not None and reply is not None:
            self._emit(Count("barge_in_released"))
            if not reply.all_sent:  # else there is nothing to go on with: its last sound is not said again
                self._emit(ReleasePlayout(reply.epoch))
        self.since = None

    def deadline(self) -> float | None:
        """When it is decided at the latest."""
        return None if self.since is None else self.since + HOLD_MS / 1000

    def judge(self, reply: Reply, utterance: Utterance, now: float) -> Verdict:
        """Decide by what is known of the caller's utterance. A reply that is not held is only ever ended by it."""
        heard = reply.heard_samples(now) > 0
        if self.since is None:
            text, said = utterance.partial, reply.raw
            ends = self._policy.is_interruption(text, said, heard=heard, leaving=reply.hangs_up)
            return Verdict.COMMIT if ends else Verdict.UNDECIDED
        return self._policy.decide(
            utterance.text,
            reply.raw,
            final=utterance.final is not None,
            heard=heard,
            voiced_ms=utterance.voiced_ms,
            speaking=not utterance.paused,
            held_ms=round((now - self.since) * 1000, 3),  # at its own deadline it is not a hair short of it
            leaving=reply.hangs_up,
        )

    def ended_by(self, reply: Reply, utterance: Utterance, now: float) -> bool:
        """Whether the finished utterance is a reason to end the reply, or only says: go on."""
        heard = reply.heard_samples(now) > 0
        return self._policy.is_interruption(utterance.text, reply.raw, heard=heard, leaving=reply.hangs_up)
