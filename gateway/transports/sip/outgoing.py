"""A call that we place, from its INVITE until it is answered or over. Sans-IO."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from gateway.transports.sip import session_timer
from gateway.transports.sip.address import BadSyntax
from gateway.transports.sip.asking import Asking, Fields
from gateway.transports.sip.bodies import SDP, sdp_of
from gateway.transports.sip.dialog import MAX_FORWARDS, Dialog
from gateway.transports.sip.digest import Credentials
from gateway.transports.sip.message import Headers, Request, Response, via_line
from gateway.transports.sip.sdp import BadSdp
from gateway.transports.sip.session import ALLOW, Session
from gateway.transports.sip.session_events import Sdp, SessionEvents
from gateway.transports.sip.transaction import TIMEOUT_S, Peer, State

if TYPE_CHECKING:
    from gateway.transports.sip.user_agent import UserAgent

SUPPORTED = "timer"
"""Not 100rel: nothing that comes before the answer is of use here."""


MAX_OTHERS = 16
"""Answers to one call that are hung up because another came first; a proxy forks to no more."""


class OutgoingEvents(SessionEvents, Protocol):
    def rings(self) -> None:
        """It rings. Any number of times."""

    def failed(self, status: int) -> None:
        """Nobody answered: the SIP status that says why, 408 if there was none. Once, in place of ``established``."""


class OutgoingSession(Session):
    """:meth:`invite`, once. Until it is answered, :meth:`hang_up` cancels it."""

    def __init__(
        self, ua: UserAgent, dialog: Dialog, events: OutgoingEvents, peer: Peer, credentials: Credentials | None
    ) -> None:
        super().__init__(ua, dialog, events, owns_call_id=True)
        self.credentials = credentials
        self._outgoing = events
        self._peer = peer
        self._asking: Asking | None = None
        self._early: str | None = None
        self.has_progress = False
        """Whether the other side has said anything."""
        self._cancelled = False
        self._others: dict[str, tuple[bytes, Peer]] = {}
        """Of whoever else answered, by tag: the ACK."""

    def invite(self, sdp: Sdp) -> None:
        """Send it, with the media's offer."""
        self.sdp = sdp
        offer = sdp.offer()

        def make(extra: Fields) -> tuple[Request, Peer]:
            request = self._request(extra)
            request.headers.add("content-type", SDP)
            request.body = offer.encode()
            return request, self._peer

        self.ua.register(self)
        self._asking = self.ua.request(make, self.credentials, self._answered, self._timed_out)

    def hang_up(self, reason: str = "") -> None:
        if self.is_established or self.is_closed:
            super().hang_up(reason)
        elif not self._cancelled:
            self._cancelled = self.over = True
            if self._asking is None:
                self.close()
                return
            self.timed.start("cancel", TIMEOUT_S, self._give_up)
            if self.has_progress:
                self._cancel()

    def close(self) -> None:
        if self._asking is not None and self._asking.transaction.state in {State.TRYING, State.PROCEEDING}:
            self._asking.transaction.end()
        super().close()

    def _request(self, extra: Fields) -> Request:
        dialog = self.dialog
        dialog.local_seq += 1
        headers = Headers()
        sent_by = self.ua.sent_by(self._peer)
        headers.add("via", via_line(self._peer.transport, *sent_by, self.ua.new_branch()))
        headers.add("max-forwards", str(MAX_FORWARDS))
        headers.add("from", dialog.local)
        headers.add("to", dialog.remote)
        headers.add("call-id", dialog.call_id)
        headers.add("cseq", f"{dialog.local_seq} INVITE")
        headers.add("contact", dialog.contact)
        headers.add("allow", ALLOW)
        headers.add("supported", SUPPORTED)
        if self.ua.session_expires_s:
            headers.add("session-expires", str(self.ua.session_expires_s))
            headers.add("min-se", str(session_timer.MIN_SE_S))
        for name, value in extra:
            headers.add(name, value)
        return Request(headers, method="INVITE", uri=dialog.target)

    def _answered(self, response: Response) -> None:
        if response.status < 200:
            self._progress(response)
        elif response.status < 300:
            self._accepted(response)
        else:
            self._fail(response.status)

    def _progress(self, response: Response) -> None:
        first, self.has_progress = not self.has_progress, True
        if self._cancelled:
            if first:
                self._cancel()  # before the first answer there was nothing to cancel (9.1)
            return
        try:
            self._early = sdp_of(response) or self._early
        except BadSdp:
            self.ua.count("sip_bad_early_media")
        if response.status in {180, 181, 182, 183}:
            self._outgoing.rings()

    def _accepted(self, response: Response) -> None:
        if self.is_established:
            if response.to.tag == self.dialog.remote_tag:
                self._acknowledge(response)
            else:
                self._end_other(response)
            return
        self._establish(response)
        self._acknowledge(response)
        if self._cancelled:
            self.over = False
            super().hang_up("cancelled")
            return
        try:
            self._take_answer(response)
        except BadSdp as error:
            self._outgoing.failed(488)
            super().hang_up(error.code)
            return
        self.refreshing.keep(session_timer.of_response(response.headers), ours="uac")
        self._outgoing.established()
        self._tell_hold()

    def _establish(self, response: Response) -> None:
        """A peer that does not say where it can be reached is reached as it was called."""
        try:
            made = Dialog.of_answer(self._sent, response, self._peer)
        except BadSyntax:
            self.ua.count("sip_bad_contact")
            made = replace(self.dialog, remote=response.headers.get("to"), remote_tag=response.to.tag)
        made.local_seq = self.dialog.local_seq
        self.dialog = made
        self.is_established = True
        self.learn(response)
        self.timed.stop("cancel")

    def _take_answer(self, response: Response) -> None:
        """An answer may have come before (in a 183). Raises :class:`BadSdp`."""
        assert self.sdp is not None
        said = sdp_of(response) or self._early
        if said is None:
            raise BadSdp(488, "no_answer", "the answer to our offer is missing")
        self.sdp.accept(said)

    @property
    def _sent(self) -> Request:
        assert self._asking is not None
        return self._asking.transaction.request

    def _end_other(self, response: Response) -> None:
        """Somebody else answered as well: one is enough (13.2.2.4)."""
        if response.to.tag in self._others:
            self.ua.send(*self._others[response.to.tag])
            return
        if len(self._others) >= MAX_OTHERS:
            self.ua.count("sip_answers_dropped")
            return
        try:
            other = Dialog.of_answer(self._sent, response, self._peer)
        except BadSyntax:
            self.ua.count("sip_bad_contact")
            return
        hop = other.next_hop
        sent_by = self.ua.sent_by(hop)
        ack = other.request("ACK", branch=self.ua.new_branch(), sent_by=sent_by, seq=response.cseq[0])
        self._others[response.to.tag] = ack.encode(), hop
        self.ua.send(*self._others[response.to.tag])

        def make(extra: Fields) -> tuple[Request, Peer]:
            request = other.request("BYE", branch=self.ua.new_branch(), sent_by=sent_by)
            for name, value in extra:
                request.headers.add(name, value)
            return request, hop

        self.ua.request(make, self.credentials, _ignore, _nothing)

    def _cancel(self) -> None:
        assert self._asking is not None
        self.ua.cancel(self._asking.transaction)

    def _timed_out(self) -> None:
        self._fail(408)

    def _give_up(self) -> None:
        """No final answer to what was cancelled."""
        self._fail(487)

    def _fail(self, status: int) -> None:
        if self.is_closed:
            return
        was_cancelled, self.over = self._cancelled, True
        if not was_cancelled:
            self._outgoing.failed(status)
        self.close()


def begin_outgoing(
    ua: UserAgent,
    uri: str,
    peer: Peer,
    events: OutgoingEvents,
    *,
    from_uri: str,
    credentials: Credentials | None,
) -> OutgoingSession:
    """A call to ``uri`` by way of ``peer``, not yet sent."""
    tag = ua.new_tag()
    dialog = Dialog(
        call_id=ua.random_hex(),
        local=f"<{from_uri}>;tag={tag}",
        local_tag=tag,
        remote=f"<{uri}>",
        remote_tag="",
        target=uri,
        routes=(),
        source=peer,
        contact=ua.contact(peer),
        local_seq=ua.random_below(2**16),
    )
    return OutgoingSession(ua, dialog, events, peer, credentials)


def _ignore(response: Response) -> None: ...


def _nothing() -> None: ...
