"""What a far end's marks say of the replies that it plays (:class:`streaming.pacing.PlayoutClock`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streaming.effects import Count, Effect
from streaming.events import MarkReturned, MarkSent
from streaming.reply import Reply


class Marks:
    """Facts about the past: a mark of a reply that has ended is filed, too."""

    def __init__(self, emit: Callable[[Effect], None]) -> None:
        self._emit = emit

    def sent(self, reply: Reply | None, event: MarkSent) -> None:
        if reply is not None:
            self._given_up(reply.clock.mark(event.mark, event.sent_samples))

    def returned(self, reply: Reply | None, event: MarkReturned, now: float) -> int | None:
        """How much of a reply that was cut had been heard by then, when that is more than was known; else None."""
        waited_for = False
        if reply is not None:
            clock = reply.clock
            waited_for = clock.mark_cleared(event.mark) if event.cleared else clock.mark_played(event.mark, now)
        if reply is None or not waited_for:
            self._emit(Count("late_mark"))
            return None
        if event.cleared or reply.status != "cancelled":
            return None
        heard = reply.clock.heard_samples(now)
        return heard if heard > reply.heard_samples(now) else None

    def advance(self, replies: Iterable[Reply | None], now: float) -> None:
        for reply in replies:
            if reply is not None:
                self._given_up(reply.clock.give_up(now))

    def _given_up(self, marks: int) -> None:
        for _ in range(marks):
            self._emit(Count("mark_given_up"))
