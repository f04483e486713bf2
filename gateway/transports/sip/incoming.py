"""A call that comes in, from its INVITE until it is answered or refused. Sans-IO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.transports.sip import session_timer
from gateway.transports.sip.address import BadSyntax
from gateway.transports.sip.bodies import sdp_of
from gateway.transports.sip.dialog import Dialog
from gateway.transports.sip.message import Request, Response, answer
from gateway.transports.sip.sdp import BadSdp
from gateway.transports.sip.session import Session
from gateway.transports.sip.session_events import Sdp, SessionEvents
from gateway.transports.sip.session_timer import SessionInterval
from gateway.transports.sip.transaction import T1_S, TIMEOUT_S, Peer, ServerTransaction

if TYPE_CHECKING:
    from gateway.transports.sip.user_agent import UserAgent


class IncomingSession(Session):
    """:meth:`ring`, :meth:`negotiate`, then :meth:`accept`, or :meth:`reject`. Until then the caller may give up."""

    def __init__(
        self,
        ua: UserAgent,
        dialog: Dialog,
        events: SessionEvents,
        transaction: ServerTransaction,
        offer: str | None,
        interval: SessionInterval | None,
    ) -> None:
        super().__init__(ua, dialog, events, owns_call_id=False)
        self.invite = transaction.request
        self.caller = transaction.peer
        self._transaction = transaction
        self._offer = offer
        self._agreed = interval
        required, supported = (self.invite.headers.tokens(name) for name in ("require", "supported"))
        self._must_be_reliable = "100rel" in required
        self._reliable = self._must_be_reliable or "100rel" in supported
        self._rseq = 0
        self._ringing: Response | None = None
        """A reliable 180 that no PRACK came for yet."""
        self._offered_early = False
        self._answer = ""
        self._wanted = False
        self.learn(self.invite)

    @property
    def offers(self) -> bool:
        """Whether the INVITE came with an offer. Without one ours goes out, and the answer comes with the ACK."""
        return self._offer is not None

    @property
    def is_pending(self) -> bool:
        """Whether it is neither answered nor over."""
        return not self.over and not self._transaction.answered

    def ring(self, *, for_long: bool) -> None:
        """180. It is sent reliably where that is demanded, and, if it may ring ``for_long``, where it is possible
        (RFC 3262): the caller may then count on having heard of it. Needs :attr:`sdp` if the INVITE had no offer."""
        if not self.is_pending:
            return
        headers = [("contact", self.dialog.contact)]
        if not (self._must_be_reliable or (self._reliable and for_long)):
            self.respond(self._transaction, 180, headers=headers)
            return
        self._rseq = 1 + self.ua.random_below(2**30)
        headers += [("require", "100rel"), ("rseq", str(self._rseq))]
        body = ""
        if self._offer is None and self.sdp is not None:
            body = self.sdp.offer()  # the first reliable answer holds the offer (RFC 3262, 5)
            self._offered_early = True
        self._ringing = answer(self.invite, 180, to_tag=self.dialog.local_tag, headers=headers, body=body.encode())
        self._transaction.respond(self._ringing)
        self._interval_s = T1_S
        self.timed.start("180", T1_S, self._repeat_180)
        self.timed.start("no PRACK", TIMEOUT_S, lambda: self._fail_early(504, "no_prack"))

    def negotiate(self, sdp: Sdp) -> None:
        """Answer the caller's offer, if it made one; :meth:`accept` sends the answer. Raises :class:`BadSdp`: refuse
        the call then."""
        self.sdp = sdp
        if self._offer is not None:
            self._answer = sdp.answer(self._offer)

    def accept(self) -> None:
        """200, at once or as soon as the 180 was acknowledged."""
        if not self.is_pending:
            return
        if self._ringing is not None:
            self._wanted = True
            return
        assert self.sdp is not None
        body, offered = self._answer, False
        if self._offer is None and not self._offered_early:
            body, offered = self.sdp.offer(), True
        self.refreshing.keep(self._agreed, ours="uas")
        self.accept_invite(self._transaction, self.session_headers(self.invite, self._agreed), body, offered=offered)
        self._tell_hold()

    def reject(self, status: int, *, headers: list[tuple[str, str]] | None = None, reason: str = "") -> None:
        """A final refusal; nothing is left of the call but its transaction."""
        if self.is_pending:
            self.respond(self._transaction, status, headers=headers, reason=reason)
            self.close()

    def hang_up(self, reason: str = "") -> None:
        if self.is_pending:
            self.reject(480)
        else:
            super().hang_up(reason)

    def cancelled(self) -> None:
        """CANCEL: too late once it is answered (9.2)."""
        if self.is_pending:
            self._fail_early(487, "")

    def close(self) -> None:
        if not self._transaction.answered:
            self.respond(self._transaction, 487)
        super().close()

    def pracked(self, request: Request, transaction: ServerTransaction) -> None:
        """RAck: RSeq, CSeq and method of what is acknowledged (RFC 3262, 7.2)."""
        expected = f"{self._rseq} {self.invite.cseq[0]} INVITE"
        if self._ringing is None or " ".join(request.headers.get("rack").split()) != expected:
            self.respond(transaction, 481)
            return
        try:
            said = sdp_of(request)
            if self._offered_early:
                self._accept(request)
            elif said is not None:
                raise BadSdp(488, "offer_in_prack", "an offer in a PRACK is not taken")
        except (BadSdp, BadSyntax) as error:
            self.respond(transaction, error.status if isinstance(error, BadSdp) else 400)
            self._fail_early(488, "bad_media")
            return
        self._ringing = None
        self.timed.stop("180", "no PRACK")
        self.respond(transaction, 200)
        if self._wanted:
            self.accept()

    def _repeat_180(self) -> None:
        if self._ringing is not None and self.is_pending:
            self._transaction.respond(self._ringing)
            self._interval_s *= 2
            self.timed.start("180", self._interval_s, self._repeat_180)

    def _fail_early(self, status: int, cause: str) -> None:
        """The call ends while it rings: by its caller (487), or because it cannot go on."""
        if not self.is_pending:
            return
        self.respond(self._transaction, status)
        self.over = True
        self.events.hung_up(cause if status != 487 and cause else "caller_hung_up")
        self.close()


def begin_incoming(
    ua: UserAgent, transaction: ServerTransaction, source: Peer, events: SessionEvents
) -> IncomingSession:
    """Of a new INVITE. Raises :class:`BadSyntax`, :class:`BadSdp` (no description that we know), or
    :class:`.session_timer.IntervalTooSmall`."""
    request = transaction.request
    offer = sdp_of(request)
    interval = session_timer.of_request(request.headers, ours_s=ua.session_expires_s)
    dialog = Dialog.of_invite(
        request, source, tag=ua.new_tag(), contact=ua.contact(source), first_seq=1 + ua.random_below(2**16)
    )
    return IncomingSession(ua, dialog, events, transaction, offer, interval)
