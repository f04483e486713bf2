"""A reply that is made before it is known whether the caller has finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streaming.effects import Count, Effect
from streaming.listening import Utterance
from streaming.reply import Reply


@dataclass(frozen=True, slots=True)
class Basis:
    """What a speculation was made from. Any difference makes it worthless."""

    utterance: int
    revision: int
    text: str
    version: int

    @classmethod
    def of(cls, utterance: Utterance, version: int) -> Basis:
        """The words heard until now, in the context of that version."""
        return cls(utterance.id, utterance.revision, utterance.text, version)


class Speculation:
    """At most one at a time. Nothing of it leaves before it is taken."""

    def __init__(self, emit: Callable[[Effect], None]) -> None:
        self.reply: Reply | None = None
        self._basis: Basis | None = None
        self._emit = emit

    def begin(self, reply: Reply, basis: Basis) -> None:
        self.reply, self._basis = reply, basis

    def take(self, basis: Basis) -> Reply | None:
        """The reply that was made of just this; any other is dropped."""
        reply = self.reply
        if reply is None:
            return None
        if basis != self._basis or reply.failure:
            self.drop()
            return None
        self.reply = None
        return reply

    def drop(self) -> None:
        if self.reply is not None:
            self.reply.drop()
            self.reply = None
            self._emit(Count("speculation_dropped"))

    def drop_failed(self) -> None:
        if self.reply is not None and self.reply.failure:
            self.drop()

    def forget(self) -> None:
        """Its job is stopped by other means."""
        self.reply = None
