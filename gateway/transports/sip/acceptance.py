"""A 2xx of ours to an INVITE: repeated until its ACK comes, over any transport (RFC 3261, 13.3.1.4)."""

from __future__ import annotations

from collections.abc import Callable

from gateway.transports.sip.message import Response
from gateway.transports.sip.timers import NamedTimers
from gateway.transports.sip.transaction import T1_S, T2_S, TIMEOUT_S, ServerTransaction


class Acceptance:
    """Of one dialog, where at most one is open. ``on_never`` is called when no ACK came."""

    def __init__(self, timed: NamedTimers, on_never: Callable[[], None]) -> None:
        self._timed = timed
        self._on_never = on_never
        self._open: tuple[ServerTransaction, Response] | None = None
        self._interval_s = T1_S
        self.offered = False
        """It holds an offer of ours: the ACK holds the answer."""

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def begin(self, transaction: ServerTransaction, response: Response, *, offered: bool) -> None:
        self._open = (transaction, response)
        self._interval_s = T1_S
        self.offered = offered
        transaction.respond(response)
        self._timed.start("2xx", T1_S, self._repeat)
        self._timed.start("no ACK", TIMEOUT_S, self._never)

    def acknowledged(self, seq: int) -> bool:
        """Whether this is the ACK that was waited for."""
        if self._open is None or self._open[0].request.cseq[0] != seq:
            return False
        self.drop()
        return True

    def drop(self) -> None:
        """Wait for it no more. Twice is fine."""
        self._open = None
        self._timed.stop("2xx", "no ACK")

    def _repeat(self) -> None:
        assert self._open is not None
        transaction, response = self._open
        transaction.respond(response)
        self._interval_s = min(2 * self._interval_s, T2_S)
        self._timed.start("2xx", self._interval_s, self._repeat)

    def _never(self) -> None:
        self.drop()
        self._on_never()
