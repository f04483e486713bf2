"""Keeps a session timer: refreshes the call in time, or ends it when the other side does not (RFC 4028)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.transports.sip import session_timer
from gateway.transports.sip.asking import Outcome
from gateway.transports.sip.message import Response
from gateway.transports.sip.session_timer import Role, SessionInterval

if TYPE_CHECKING:
    from gateway.transports.sip.session import Session


class Refreshing:
    """One call's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._interval: SessionInterval | None = None

    def keep(self, interval: SessionInterval | None, *, ours: Role) -> None:
        """What was agreed on just now. ``ours``: which of the two we were in that. None: nothing new."""
        if interval is None:
            return
        timed = self._session.timed
        timed.stop("refresh", "expiry")
        self._interval = interval
        if interval.refresher == ours:
            timed.start("refresh", interval.refresh_after_s, self._refresh)
        else:
            expired = interval.give_up_after_s
            timed.start("expiry", expired, lambda: self._session.fail("connection_lost", "session expired"))

    def headers(self) -> list[tuple[str, str]]:
        """Of a request that refreshes: we stay the one that does."""
        interval = self._interval
        return [] if interval is None else [("session-expires", f"{interval.interval_s};refresher=uac")]

    def _refresh(self) -> None:
        """A sign of life of ours: UPDATE where it is known, else the offer once more."""
        session = self._session
        if "update" not in session.peer_allows:
            session.reoffer(self._done)
            return

        def answered(response: Response) -> None:
            if response.status < 200:
                return
            if response.status < 300:
                self.keep(session_timer.of_response(response.headers), ours="uac")
            self._done(Outcome(response.status, response.reason))

        headers = [("supported", "timer"), *self.headers()]
        session.request("UPDATE", answered, lambda: session.fail("connection_lost", "no answer"), headers=headers)

    def _done(self, outcome: Outcome) -> None:
        """Without a Session-Expires in the answer: again after the same time. Refused: soon enough that the other side
        still waits, unless nobody knows the call any more."""
        session = self._session
        if outcome.status in {408, 481}:
            session.fail("connection_lost", "dialog lost")
        elif not session.over and self._interval is not None and not session.timed.runs("refresh", "expiry"):
            wait_s = self._interval.refresh_after_s if outcome.ok else self._interval.interval_s / 8
            session.timed.start("refresh", wait_s, self._refresh)
