"""Tickets: words in a URL that a vendor is told, each good once and for a minute."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

TICKET_S = 60.0
"""From the answer of a webhook to the stream it asks for."""

MAX_TICKETS = 10_000


class Tickets(Generic[T]):
    """``new`` makes a word that nobody can guess."""

    def __init__(
        self,
        now_s: Callable[[], float],
        *,
        new: Callable[[], str] = lambda: secrets.token_urlsafe(24),
        seconds: float = TICKET_S,
        limit: int = MAX_TICKETS,
    ) -> None:
        self._now_s = now_s
        self._new = new
        self._seconds = seconds
        self._limit = limit
        self._open: OrderedDict[str, tuple[float, str, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def issue(self, carrier: str, value: T) -> str:
        """Beyond the limit the oldest is lost."""
        now = self._now_s()
        while self._open and next(iter(self._open.values()))[0] <= now:
            self._open.popitem(last=False)
        ticket = self._new()
        self._open[ticket] = (now + self._seconds, carrier, value)
        if len(self._open) > self._limit:
            self._open.popitem(last=False)
        return ticket

    def redeem(self, carrier: str, ticket: str) -> T | None:
        """What it was issued for; None if it is not known, not this carrier's, used, or too old."""
        found = self._open.get(ticket)
        if found is None or found[1] != carrier:
            return None
        del self._open[ticket]
        return found[2] if self._now_s() < found[0] else None
