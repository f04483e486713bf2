"""Which waiting CPU job goes first: pure, no threads and no clock, so that it is tested exhaustively.

The order is (class, deadline, submission). Lest a steady stream of urgent work starve the rest, a job that has
*waited* past its deadline is raised one class for each full :data:`AGING_S`, up to :attr:`Priority.FINAL`. Only
waiting counts: a long generation that was running until now starts from its own class again. Speculative work is
never raised, as it may starve by definition.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from streaming.jobs import Priority

LEISURE_S = 0.3
"""A job whose deadline is further away than this can wait, and does while an urgent one runs, though a core be free:
side by side they slow each other down (measured: a first clause takes 150 ms alone, 230 ms beside a decode)."""

URGENT = Priority.FIRST_AUDIO
"""Jobs up to this class are urgent: a caller hears silence until they are done."""

AGING_S = 2.0
"""How long past its deadline a job waits for each class it is raised."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A job's place in the order. Change ``priority`` and ``deadline`` only through :meth:`LaneOrder.move` while
    the ticket is in an order."""

    priority: Priority
    deadline: float
    sequence: int
    since: float
    """When it began to wait: submission, or the moment it gave up its slot."""

    def late_s(self, now: float) -> float:
        """How long it has waited past its deadline; a speculation is never late."""
        if self.priority is Priority.SPECULATIVE:
            return 0.0
        return max(0.0, now - max(self.deadline, self.since))

    def effective_class(self, now: float) -> int:
        """The class it has after the time it waited past its deadline, as of ``now``."""
        late_s = self.late_s(now)
        if late_s < AGING_S:
            return int(self.priority)
        return max(int(Priority.FINAL), int(self.priority) - int(late_s / AGING_S))

    def urgency(self, now: float) -> tuple[int, float, int]:
        """The sort key as of ``now``: lower goes first."""
        return (self.effective_class(now), self.deadline, self.sequence)

    @property
    def urgent(self) -> bool:
        return self.priority <= URGENT

    def can_wait(self, now: float) -> bool:
        """Whether it loses nothing by letting urgent work have the machine to itself."""
        return not self.urgent and self.deadline - now > LEISURE_S

    def own_urgency(self) -> tuple[int, float, int]:
        """The sort key of a job that is running, and so has not aged."""
        return (int(self.priority), self.deadline, self.sequence)


def _in_class(ticket: Ticket) -> tuple[float, float]:
    return (ticket.deadline, ticket.sequence)


class LaneOrder:
    """The waiting tickets."""

    def __init__(self) -> None:
        self._classes: tuple[list[Ticket], ...] = tuple([] for _ in Priority)

    def __len__(self) -> int:
        return sum(map(len, self._classes))

    def __contains__(self, ticket: Ticket) -> bool:
        return self._index(ticket) is not None

    def tickets(self) -> list[Ticket]:
        """Everything that waits, in no promised order."""
        return [ticket for waiting in self._classes for ticket in waiting]

    def add(self, ticket: Ticket) -> None:
        insort(self._classes[ticket.priority], ticket, key=_in_class)

    def remove(self, ticket: Ticket) -> bool:
        """Take a ticket out; False if it did not wait."""
        index = self._index(ticket)
        if index is None:
            return False
        del self._classes[ticket.priority][index]
        return True

    def move(self, ticket: Ticket, priority: Priority, deadline: float) -> None:
        """Give a ticket another class and deadline, waiting or not. Its submission order stays."""
        waits = self.remove(ticket)
        ticket.priority, ticket.deadline = priority, deadline
        if waits:
            self.add(ticket)

    def peek(self, now: float, *, patient: bool = True) -> Ticket | None:
        """The most urgent waiting ticket; without ``patient``, of those that can't wait."""
        best: Ticket | None = None
        for waiting in self._classes:
            for ticket in self._candidates(waiting, now):
                if not patient and ticket.can_wait(now):
                    continue
                if best is None or ticket.urgency(now) < best.urgency(now):
                    best = ticket
        return best

    def pop(self, now: float, *, patient: bool = True) -> Ticket | None:
        """Take out the most urgent waiting ticket; without ``patient``, of those that can't wait."""
        ticket = self.peek(now, patient=patient)
        if ticket is not None:
            self.remove(ticket)
        return ticket

    def _candidates(self, waiting: list[Ticket], now: float) -> list[Ticket]:
        # Sorted by deadline, so only the tickets before the first one that is not yet late enough can have aged;
        # with nobody that late (the normal case) the head alone can be first.
        late = bisect_right(waiting, (now - AGING_S, math.inf), key=_in_class)
        return waiting[: late + 1]

    def _index(self, ticket: Ticket) -> int | None:
        waiting = self._classes[ticket.priority]
        index = bisect_left(waiting, _in_class(ticket), key=_in_class)
        return index if index < len(waiting) and waiting[index] is ticket else None
