"""A transfer: REFER to the peer, and what its NOTIFYs tell of the call it makes (RFC 3515)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gateway.transports.sip.asking import Done, Outcome
from gateway.transports.sip.message import Request, Response
from gateway.transports.sip.transaction import ServerTransaction

if TYPE_CHECKING:
    from gateway.transports.sip.session import Session

TRANSFER_S = 45.0
"""From REFER to the target's answer. It rings meanwhile; one that has not answered by then is not waited for."""
SIPFRAG = "message/sipfrag"


class Transferring:
    """At most one at a time."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._done: Done | None = None
        self._accepted = False

    def begin(self, target: str, done: Done) -> None:
        session = self._session
        if session.over or not session.is_established or self._done is not None:
            done(Outcome(491, "a transfer is open"))
            return
        self._done, self._accepted = done, False
        session.timed.start("transfer", TRANSFER_S, lambda: self._finish(408, "the target did not answer"))

        def answered(response: Response) -> None:
            if 200 <= response.status < 300:
                self._accepted = True
            elif response.status >= 300:
                self._finish(response.status, response.reason)

        headers = [("refer-to", f"<{target}>"), ("referred-by", f"<{session.dialog.local_uri}>")]
        session.request("REFER", answered, lambda: self._finish(408, ""), headers=headers)

    def notified(self, request: Request, transaction: ServerTransaction) -> None:
        """What comes of it. NOTIFY may be faster than the answer to REFER."""
        event = request.headers.get("event").partition(";")[0].strip().lower()
        if event != "refer":
            self._session.respond(transaction, 489, headers=[("allow-events", "refer")])
            return
        self._session.respond(transaction, 200)
        if self._done is None:
            return
        self._accepted = True
        found = re.match(r"SIP/2\.0[ \t]+([1-6]\d\d)[ \t]*([^\r\n]{0,80})", request.body[:256].decode("latin-1"))
        if found is not None and request.content_type == SIPFRAG and int(found[1]) >= 200:
            self._finish(int(found[1]), found[2])
        elif request.headers.get("subscription-state").partition(";")[0].strip().lower() == "terminated":
            self._finish(500, "the peer says no more of it")

    def hung_up(self) -> None:
        """The peer hung up: after it took the REFER, that is how many say that they are done."""
        if self._accepted:
            self._finish(200, "")

    def give_up(self) -> None:
        self._finish(487, "the call ended")

    def _finish(self, status: int, reason: str) -> None:
        done, self._done = self._done, None
        self._accepted = False
        self._session.timed.stop("transfer")
        if done is not None:
            done(Outcome(status, reason))
