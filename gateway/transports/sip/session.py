"""One call's signalling once there is a dialog: what may come in it, and what we may ask in it. Sans-IO.

The media's part, offers and answers, is asked for where the message needs it (:class:`.session_events.Sdp`); the
application is told by :class:`.session_events.SessionEvents`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.transports.sip import info, session_timer
from gateway.transports.sip.acceptance import Acceptance
from gateway.transports.sip.address import BadSyntax
from gateway.transports.sip.asking import Asking, Done, Outcome
from gateway.transports.sip.bodies import SDP, sdp_of, why
from gateway.transports.sip.dialog import Dialog
from gateway.transports.sip.digest import Credentials
from gateway.transports.sip.message import Request, Response, answer
from gateway.transports.sip.refreshing import Refreshing
from gateway.transports.sip.sdp import BadSdp
from gateway.transports.sip.session_events import Sdp, SessionEvents
from gateway.transports.sip.session_timer import IntervalTooSmall, SessionInterval
from gateway.transports.sip.timers import NamedTimers
from gateway.transports.sip.transaction import TIMEOUT_S, Peer, ServerTransaction
from gateway.transports.sip.transferring import Transferring

if TYPE_CHECKING:
    from gateway.transports.sip.user_agent import UserAgent

MAX_GLARES = 5
"""So often is an offer of ours repeated that crossed one of theirs (491)."""
ALLOW = "INVITE, ACK, BYE, CANCEL, OPTIONS, INFO, UPDATE, PRACK, NOTIFY"
SUPPORTED = "timer, 100rel"


class Session:
    """Made by the two that begin one: :class:`.incoming.IncomingSession`, :class:`.outgoing.OutgoingSession`."""

    def __init__(self, ua: UserAgent, dialog: Dialog, events: SessionEvents, *, owns_call_id: bool) -> None:
        self.ua = ua
        self.dialog = dialog
        self.events = events
        self.sdp: Sdp | None = None
        self.credentials: Credentials | None = None
        self.timed = NamedTimers(ua.timers)
        self.is_established = False
        self.over = False
        """It is down, or about to be: nothing but its BYE is still exchanged."""
        self.is_closed = False
        self._owns_call_id = owns_call_id
        self._acceptance = Acceptance(self.timed, self._never_acknowledged)
        self._acks: tuple[int, Request, Peer] | None = None
        self._offering = False
        self._glares = 0
        self._bye_wanted: str | None = None
        self._held = False
        self.peer_allows: frozenset[str] = frozenset()
        self.refreshing = Refreshing(self)
        self._transferring = Transferring(self)

    # --- what the application asks --------------------------------------------------------------------------------

    def hang_up(self, reason: str = "") -> None:
        """BYE. One that the peer does not yet know as answered is ended as soon as it does. Twice is fine."""
        if self.over:
            return
        self.over = True
        self._transferring.give_up()
        self.timed.stop("refresh", "glare", "expiry")
        if self._acceptance.is_open and not self.is_established:
            self._bye_wanted = reason
        else:
            self._bye(reason)

    def reoffer(self, done: Done) -> None:
        """Offer anew what the media now wants (hold, resume). ``done`` is told how it went."""
        if self.over or self.sdp is None or self._offering or self._acceptance.is_open:
            done(Outcome(491, "another offer is open"))
            return
        self._glares = 0
        self._offer_by_invite(done)

    def refer(self, target: str, done: Done) -> None:
        """Ask the peer to call ``target`` (a SIP URI) in our place (RFC 3515); ``done`` when it took over, or not."""
        self._transferring.begin(target, done)

    def inform(self, key: str, done: Done) -> None:
        """One key by INFO."""

        def answered(response: Response) -> None:
            if response.status >= 200:
                done(Outcome(response.status, response.reason))

        body = info.body_of(key)
        self.request("INFO", answered, lambda: done(Outcome(408)), body=body, content_type=info.DTMF_TYPES[0])

    # --- what comes in the dialog ---------------------------------------------------------------------------------

    def receive(self, request: Request, transaction: ServerTransaction, source: Peer) -> None:
        """A request in the dialog, not an ACK."""
        if not self.dialog.takes(request.cseq[0]):
            self.respond(transaction, 500, headers=[("warning", '399 offhook "CSeq out of order"')])
            return
        self.dialog.source = source
        match request.method:
            case "BYE":
                self.respond(transaction, 200)
                self._hung_up_by_peer()
            case _ if self.over:
                self.respond(transaction, 481)
            case "INVITE" | "UPDATE":
                self._offered(request, transaction, source)
            case "INFO":
                self._informed(request, transaction)
            case "NOTIFY":
                self._transferring.notified(request, transaction)
            case "OPTIONS":
                self.respond(transaction, 200, headers=self.ua.capabilities())
            case "PRACK":
                self.pracked(request, transaction)
            case _:
                self.respond(transaction, 405, headers=[("allow", ALLOW)])

    def acknowledged(self, request: Request, source: Peer) -> None:
        """An ACK of a 2xx."""
        if not self._acceptance.acknowledged(request.cseq[0]):
            return
        self.dialog.source = source
        first = not self.is_established
        self.is_established = True
        if self._bye_wanted is not None:
            self._bye(self._bye_wanted)
            return
        if self.over:
            return
        if self._acceptance.offered:
            try:
                self._accept(request)
            except BadSdp as error:
                self.fail("bad_media", str(error))
                return
        if first:
            self.events.established()

    def pracked(self, request: Request, transaction: ServerTransaction) -> None:
        """Only a call that still rings has something to acknowledge."""
        self.respond(transaction, 481)

    def respond(
        self,
        transaction: ServerTransaction,
        status: int,
        *,
        headers: list[tuple[str, str]] | None = None,
        body: str = "",
        reason: str = "",
    ) -> None:
        response = answer(
            transaction.request,
            status,
            to_tag=self.dialog.local_tag,
            headers=headers or [],
            body=body.encode(),
            reason=reason,
        )
        transaction.respond(response)

    def fail(self, cause: str, detail: str = "") -> None:
        """Something that cannot be repaired: tell the application and the peer."""
        if not self.over:
            self.events.hung_up(cause)
            self.hang_up(detail)

    # --- offers ---------------------------------------------------------------------------------------------------

    def _offered(self, request: Request, transaction: ServerTransaction, source: Peer) -> None:
        """re-INVITE or UPDATE: a new offer (hold, resume, another address), or only a sign of life."""
        if self._acceptance.is_open or not self._may_change(request):
            self.respond(transaction, 500, headers=[("retry-after", str(self.ua.random_below(10)))])
            return
        if self._offering:
            self.respond(transaction, 491)
            return
        try:
            interval = session_timer.of_request(request.headers, ours_s=self.ua.session_expires_s)
            self.dialog.refresh_target(request, source)
            offer = sdp_of(request)
            body = self._reply_to(offer, request.method)
        except IntervalTooSmall as error:
            self.respond(transaction, 422, headers=[("min-se", str(error.min_se_s))])
            return
        except BadSyntax:
            self.respond(transaction, 400)
            return
        except BadSdp as error:
            self.respond(transaction, error.status, headers=why(error))
            return
        self.refreshing.keep(interval, ours="uas")
        headers = [*self.session_headers(request, interval)]
        if request.method == "INVITE":
            self.accept_invite(transaction, headers, body, offered=offer is None)
        else:
            self.respond(transaction, 200, headers=headers, body=body)
        self._tell_hold()

    def _may_change(self, request: Request) -> bool:
        return self.is_established or (request.method == "UPDATE" and not request.body)

    def _reply_to(self, offer: str | None, method: str) -> str:
        if offer is None and method == "UPDATE":
            return ""  # only a sign of life
        assert self.sdp is not None
        return self.sdp.offer() if offer is None else self.sdp.answer(offer)

    def accept_invite(
        self, transaction: ServerTransaction, headers: list[tuple[str, str]], body: str, *, offered: bool
    ) -> None:
        """The 200."""
        request = transaction.request
        response = answer(request, 200, to_tag=self.dialog.local_tag, headers=headers, body=body.encode())
        self._acceptance.begin(transaction, response, offered=offered)

    def _never_acknowledged(self) -> None:
        if self._bye_wanted is not None:
            self._bye(self._bye_wanted)
        else:
            self.fail("no_ack", "no ACK")

    def _offer_by_invite(self, done: Done) -> None:
        assert self.sdp is not None
        self._offering = True
        offer = self.sdp.offer()
        asking: Asking | None = None
        is_heard = False

        def take_back() -> None:
            if asking is not None:
                self.ua.cancel(asking.transaction)

        def answered(response: Response) -> None:
            nonlocal is_heard
            if response.status < 200:
                if not is_heard and not self.over:
                    self.timed.start("offer", TIMEOUT_S, take_back)
                is_heard = True
                return
            self.timed.stop("offer")
            if response.status < 300:
                self._acknowledge(response)
                if self._offering:  # a 2xx may come again
                    self._offering = False
                    self._answered_offer(response, done)
                return
            self._offering = False
            self._offer_refused(response, done)

        def timed_out() -> None:
            self._offering = False
            if not is_heard:  # else it lives, and only never said yes or no
                self.fail("connection_lost", "no answer")
            done(Outcome(408))

        headers = [("allow", ALLOW), ("supported", SUPPORTED), *self.refreshing.headers()]
        asking = self.request("INVITE", answered, timed_out, headers=headers, body=offer)

    def _answered_offer(self, response: Response, done: Done) -> None:
        if self.over:
            done(Outcome(487))
            return
        try:
            self._accept(response)
        except BadSdp as error:
            self.fail("bad_media", str(error))
            done(Outcome(488, str(error)))
            return
        self.refreshing.keep(session_timer.of_response(response.headers), ours="uac")
        self._tell_hold()
        done(Outcome(response.status))

    def _offer_refused(self, response: Response, done: Done) -> None:
        if response.status == 491 and self._glares < MAX_GLARES and not self.over:
            # Whoever made the Call-ID waits longer, so that they do not cross again (14.1).
            self._glares += 1
            wait_s = (210 + self.ua.random_below(190)) / 100 if self._owns_call_id else self.ua.random_below(200) / 100
            self.timed.start("glare", wait_s, lambda: self._offer_by_invite(done))
            return
        if response.status in {408, 481}:
            self.fail("connection_lost", "dialog lost")
        done(Outcome(response.status, response.reason))

    def _accept(self, message: Request | Response) -> None:
        """Raises :class:`BadSdp`."""
        assert self.sdp is not None
        said = sdp_of(message)
        if said is None:
            raise BadSdp(488, "no_answer", "the answer to our offer is missing")
        self.sdp.accept(said)
        self._tell_hold()

    def _tell_hold(self) -> None:
        on = self.sdp is not None and self.sdp.remote_hold
        if on != self._held:
            self._held = on
            self.events.held(on)

    def _acknowledge(self, response: Response) -> None:
        """ACK of a 2xx: a request of its own, repeated for each repetition of the 2xx (13.2.2.4)."""
        seq = response.cseq[0]
        if self._acks is None or self._acks[0] != seq:
            try:
                self.dialog.refresh_target(response, self.dialog.source)
            except BadSyntax:
                self.ua.count("sip_bad_contact")  # the old one is as good as any
            hop = self.dialog.next_hop
            ack = self.dialog.request("ACK", branch=self.ua.new_branch(), sent_by=self.ua.sent_by(hop), seq=seq)
            self._acks = (seq, ack, hop)
        self.ua.send(self._acks[1].encode(), self._acks[2])

    # --- session timer --------------------------------------------------------------------------------------------

    def session_headers(self, request: Request, interval: SessionInterval | None) -> list[tuple[str, str]]:
        """Of a 2xx to an INVITE or UPDATE."""
        headers = [("contact", self.dialog.contact), ("allow", ALLOW), ("supported", SUPPORTED)]
        if interval is not None:
            headers.append(interval.header())
            if interval.refresher == "uac":
                headers.append(("require", "timer"))
        return headers

    def learn(self, message: Request | Response) -> None:
        """What the peer says that it can do."""
        self.peer_allows = message.headers.tokens("allow")

    @property
    def takes_refer(self) -> bool:
        """Peers that do not say what they allow are asked."""
        return not self.peer_allows or "refer" in self.peer_allows

    # --- the rest -------------------------------------------------------------------------------------------------

    def _informed(self, request: Request, transaction: ServerTransaction) -> None:
        status, headers, key = info.take(request)
        self.respond(transaction, status, headers=headers)
        if key is not None:
            self.events.pressed(key)

    def request(
        self,
        method: str,
        on_response: Callable[[Response], None],
        on_timeout: Callable[[], None],
        *,
        headers: list[tuple[str, str]] | None = None,
        body: str = "",
        content_type: str = SDP,
    ) -> Asking | None:
        """Send a request in the dialog; a challenge is answered if we can. None: it could not leave."""

        def make(extra: list[tuple[str, str]]) -> tuple[Request, Peer]:
            hop = self.dialog.next_hop
            made = self.dialog.request(method, branch=self.ua.new_branch(), sent_by=self.ua.sent_by(hop))
            for name, value in [*(headers or []), *extra]:
                made.headers.add(name, value)
            if body:
                made.headers.add("content-type", content_type)
                made.body = body.encode()
            return made, hop

        return self.ua.request(make, self.credentials, on_response, on_timeout)

    def _hung_up_by_peer(self) -> None:
        self._transferring.hung_up()
        if not self.over:
            self.over = True
            self.events.hung_up("caller_hung_up")
        self.close()

    def _bye(self, reason: str) -> None:
        self._bye_wanted = None
        self.timed.stop()
        headers = [("reason", f'SIP;cause=200;text="{reason}"')] if reason else []

        def answered(response: Response) -> None:
            if response.status >= 200:
                self.close()

        self.request("BYE", answered, self.close, headers=headers)

    def close(self) -> None:
        """Nothing more of it: no timer, no place in the tables."""
        if self.is_closed:
            return
        self.over = self.is_closed = True
        self._transferring.give_up()
        self.timed.stop()
        self._acceptance.drop()
        self.ua.forget(self)
        self.events.closed()
