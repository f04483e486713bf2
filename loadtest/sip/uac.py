"""One call's signalling, caller's side (RFC 3261), sans-IO: messages in, messages out, times passed in.

The address dialled is the call's outbound proxy: everything goes there, whatever Contact says (section 8.1.2). It
retransmits what UDP may lose, acknowledges, follows reliable provisional responses (RFC 3262), answers a challenge, and
does what the other end may ask of a phone in a call: BYE, re-INVITE and UPDATE (hold, new addresses), REFER, INFO,
OPTIONS.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Sequence
from typing import Protocol

from loadtest.call import CallOver, EndCause
from loadtest.sip.dialog import Dialog
from loadtest.sip.digest import Credentials, authorization
from loadtest.sip.message import SipMessage, SipUri, parameter_of, parse_message, serialise
from loadtest.sip.refusal import refused
from loadtest.sip.resending import T1_S, Resending
from loadtest.sip.sdp import NoMedia

ANSWER_S = 10.0
"""For the first response to an INVITE: a server that is there says 100 at once."""
RING_S = 60.0

_GIVE_UP_S = 64 * T1_S
_BYE_S = 4.0
_KEPT_ANSWERS = 50
_GLARE = "again after glare"
_GLARE_S = 3.0  # 2.1 to 4 s for who made the call, up to 2 s for the other (section 14.1)
_ALLOW = "INVITE, ACK, BYE, CANCEL, OPTIONS, INFO, UPDATE, NOTIFY, REFER"


class State(enum.Enum):
    CALLING = "calling"
    CANCELLING = "cancelling"
    UP = "up"
    ENDING = "ending"
    OVER = "over"


class Phone(Protocol):
    """The rest of the phone, as its signalling sees it."""

    def answered(self, sdp: str) -> None:
        """The call was answered. Raises :class:`~loadtest.sip.sdp.NoMedia`."""

    def describe(self, offer: str | None) -> str:
        """The answer to the other end's offer; without one, an offer. Raises :class:`~loadtest.sip.sdp.NoMedia`."""

    def updated(self, sdp: str) -> None:
        """The other end answered a later offer. Raises :class:`~loadtest.sip.sdp.NoMedia`."""

    def referred(self, target: str) -> None:
        """The other end hands the caller over."""


class SipCaller:
    """A call to ``target``. ``outbox`` holds what has to be sent; the owner empties it after every method, and calls
    :meth:`tick` at :attr:`next_s`."""

    def __init__(
        self,
        target: SipUri,
        local: tuple[str, int],
        phone: Phone,
        *,
        transport: str,
        token: Callable[[], str],
        caller: str = "caller",
        credentials: Credentials | None = None,
    ) -> None:
        self.state = State.CALLING
        self.over: CallOver | None = None
        self.failure: str | None = None
        self.outbox: list[bytes] = []
        self.trying_s: float | None = None
        self.ringing_s: float | None = None
        self._target = target
        self._dialog = Dialog(target, local, transport=transport, token=token, caller=caller)
        self._phone = phone
        self._token = token
        self._credentials = credentials
        self._remote_cseq = -1
        self._invites, self._byes = 0, 1
        self._invite_via = ""
        self._invite_number = 0
        self._invite_branch = ""
        self._bye_branch = ""
        self._cancelled = False
        self._provisional = False
        self._early_sdp = ""
        self._rseq = -1
        self._acks: dict[str, bytes] = {}
        self._sent = Resending(reliable=transport == "TCP")
        self._answers: dict[tuple[str, str], bytes] = {}
        self._offer_branch = self._offer_via = ""
        self._offers_again = False

    @property
    def call_id(self) -> str:
        return self._dialog.call_id

    @property
    def next_s(self) -> float | None:
        return self._sent.next_s

    def invite(self, now_s: float, answer: tuple[str, str] | None = None) -> None:
        """Call, or call again with an answer to the challenge."""
        self._invites += 1
        self._provisional = False
        headers = [("Contact", self._dialog.contact), ("Supported", "100rel"), ("Allow", _ALLOW)]
        if answer is not None:
            headers.append(answer)
        self._invite_branch = self._dialog.branch()
        self._invite_via = self._dialog.via(self._invite_branch)
        self._invite_number = self._dialog.next_number()
        offer, to = self._phone.describe(None), self._dialog.invited
        data = self._dialog.request("INVITE", self._invite_number, self._invite_via, headers, offer, to=to)
        self.outbox.append(data)
        self._sent.start(self._invite_branch, data, now_s, ANSWER_S, unbounded=True)

    def offer(self, now_s: float) -> None:
        """Tell the other end, by a re-INVITE, what the phone says of itself now (hold)."""
        if self.state is not State.UP:
            return
        if self._offer_branch or _GLARE in self._sent:  # one at a time (section 14.1)
            self._offers_again = True
            return
        self._offers_again = False
        self._offer_branch = self._dialog.branch()
        self._offer_via = self._dialog.via(self._offer_branch)
        headers = [("Contact", self._dialog.contact), ("Allow", _ALLOW)]
        offer, number = self._phone.describe(None), self._dialog.next_number()
        data = self._dialog.request("INVITE", number, self._offer_via, headers, offer)
        self._send(self._offer_branch, data, now_s, _GIVE_UP_S)

    def hang_up(self, now_s: float) -> None:
        if self.state is State.UP:
            self.state = State.ENDING
            self._bye_branch = self._in_dialog("BYE", now_s, within_s=_BYE_S)
        elif self.state is State.CALLING:
            self.state = State.CANCELLING
            self._sent.hurry(self._invite_branch, now_s + _BYE_S)
            if self._provisional:  # before, a CANCEL might overtake its INVITE (section 9.1)
                self._cancel(now_s)

    def end(self, over: CallOver) -> None:
        """Nothing more is sent or expected."""
        self.over = self.over or over
        self.state = State.OVER
        self._sent.clear()

    def tick(self, now_s: float) -> None:
        again, unanswered = self._sent.due(now_s)
        self.outbox += again
        for key in unanswered:
            self._unanswered(key, now_s)

    def receive(self, data: bytes, now_s: float) -> None:
        """A message came. Raises :class:`~loadtest.sip.message.BadMessage` for what is none."""
        if not data.strip():
            return  # a keep-alive
        message = parse_message(data)
        if message.status:
            self._on_response(message, now_s)
        else:
            self._on_request(message, now_s)

    # --- what we asked ------------------------------------------------------------------------------------------------

    def _on_response(self, message: SipMessage, now_s: float) -> None:
        if message.first("call-id") != self.call_id:
            return
        _, method = message.cseq
        branch = "CANCEL" if method == "CANCEL" else message.branch  # it has its INVITE's
        if branch not in self._sent:
            if method == "INVITE" and message.status >= 200 and branch in self._acks:
                self.outbox.append(self._acks[branch])  # our ACK was lost
        elif message.status < 200:
            if branch == self._offer_branch:
                self._sent.wait(branch, now_s + _GIVE_UP_S)
            elif method == "INVITE":
                self._on_progress(message, now_s)
        else:
            self._sent.stop(branch)
            if branch == self._offer_branch:
                self._on_offer_answered(message, now_s)
            elif method == "INVITE":
                self._on_final(message, now_s)
            elif method == "BYE":
                self._on_bye_answered(message, now_s)

    def _on_progress(self, message: SipMessage, now_s: float) -> None:
        if not self._provisional:
            self._sent.wait(message.branch, now_s + (RING_S if self.state is State.CALLING else _BYE_S))
        self._provisional = True
        self.trying_s = now_s if self.trying_s is None else self.trying_s
        if message.status > 100:
            self.ringing_s = now_s if self.ringing_s is None else self.ringing_s
            self._early_sdp = message.body or self._early_sdp  # some leave it out of the answer (RFC 6337 section 3.1)
        if self.state is State.CANCELLING:
            self._cancel(now_s)
        rseq = message.first("rseq")
        if "100rel" in message.first("require") and rseq.isdecimal() and int(rseq) > self._rseq:
            self._rseq = int(rseq)
            self._dialog.take(message)
            self._in_dialog("PRACK", now_s, [("RAck", f"{rseq} {message.first('cseq')}")])

    def _on_final(self, message: SipMessage, now_s: float) -> None:
        if message.status < 300:
            self._on_answer(message, now_s)
            return
        ack = self._dialog.request("ACK", message.cseq[0], self._invite_via, to=message.first("to"))
        self._acknowledge(message.branch, ack)
        answer = authorization(message, self._invites, self._credentials, str(self._target), self._token())
        if answer is not None and self.state is State.CALLING:
            self.invite(now_s, answer)
        elif self.state is State.CANCELLING:
            self.end(CallOver(EndCause.HANGUP))
        else:
            self.end(refused(message, self._target, known=self._credentials is not None))

    def _on_answer(self, message: SipMessage, now_s: float) -> None:
        self._dialog.take(message)
        self._confirm(message)
        wanted = self.state is State.CALLING
        self.state = State.UP
        if wanted:
            try:
                self._phone.answered(message.body or self._early_sdp)
            except NoMedia as error:
                self.over = CallOver(EndCause.NO_MEDIA, str(error))
                wanted = False
        if not wanted:
            self.hang_up(now_s)

    def _on_offer_answered(self, message: SipMessage, now_s: float) -> None:
        self._offer_branch = ""
        if message.status < 300:
            self._dialog.move(message)
            self._confirm(message)
            with contextlib.suppress(NoMedia):  # it goes on as it was
                self._phone.updated(message.body)
        else:
            self._acknowledge(message.branch, self._dialog.request("ACK", message.cseq[0], self._offer_via))
        if message.status in (408, 481):  # the other end knows of no call (section 12.2.1.2)
            self.hang_up(now_s)
        elif message.status == 491:
            self._sent.wait(_GLARE, now_s + _GLARE_S)
        elif self._offers_again:
            self.offer(now_s)

    def _on_bye_answered(self, message: SipMessage, now_s: float) -> None:
        uri = self._dialog.remote_target
        answer = authorization(message, self._byes, self._credentials, uri, self._token())
        if answer is not None:
            self._byes += 1
            self._bye_branch = self._in_dialog("BYE", now_s, [answer], within_s=_BYE_S)
            return
        if message.status >= 300:
            self.failure = f"BYE was answered with {message.status} {message.reason}"
        self.end(CallOver(EndCause.HANGUP))

    def _confirm(self, message: SipMessage) -> None:
        """ACK of a 2xx: a transaction of its own."""
        via = self._dialog.via(self._dialog.branch())
        self._acknowledge(message.branch, self._dialog.request("ACK", message.cseq[0], via))

    def _acknowledge(self, branch: str, ack: bytes) -> None:
        self._acks[branch] = ack
        self.outbox.append(ack)

    def _cancel(self, now_s: float) -> None:
        if self._cancelled:
            return
        self._cancelled = True
        cancel = self._dialog.request("CANCEL", self._invite_number, self._invite_via, to=self._dialog.invited)
        self._send("CANCEL", cancel, now_s, _BYE_S)

    def _unanswered(self, key: str, now_s: float) -> None:
        if key == self._invite_branch:
            if self.state is State.CANCELLING:
                self.end(CallOver(EndCause.HANGUP))
            elif self._provisional:
                self.over = CallOver(EndCause.REFUSED, f"{self._target} rang for {RING_S:.0f} s and did not answer")
                self._sent.wait(key, now_s + _BYE_S)  # its end is still to come
                self.hang_up(now_s)
            else:
                self.end(CallOver(EndCause.REFUSED, f"no answer at {self._target}"))
        elif key == _GLARE:
            self.offer(now_s)
        elif key == self._offer_branch:
            self.hang_up(now_s)
        elif key == self._bye_branch:
            self.failure = "the server did not confirm the hang-up"
            self.end(CallOver(EndCause.HANGUP))

    # --- what we are asked --------------------------------------------------------------------------------------------

    def _on_request(self, message: SipMessage, now_s: float) -> None:
        number, method = message.cseq
        if method == "ACK":
            self._sent.stop(f"ACK {number}")
            return
        known = self._answers.get((message.branch, method))
        if known is not None:
            self.outbox.append(known)
            return
        ours = message.first("call-id") == self.call_id and parameter_of(message.first("to"), "tag") == self._dialog.tag
        if not ours or method in ("CANCEL", "PRACK"):
            self._respond(message, "481 Call/Transaction Does Not Exist")
        elif number < self._remote_cseq:
            self._respond(message, "500 Out of Order")
        else:
            self._remote_cseq = number
            self._on_own_request(message, method, now_s)

    def _on_own_request(self, message: SipMessage, method: str, now_s: float) -> None:
        match method:
            case "BYE":
                self._respond(message, "200 OK")
                self.end(CallOver(EndCause.AGENT_HANGUP))
            case "INVITE" if self._offer_branch:
                self._respond(message, "491 Request Pending")
            case "INVITE" | "UPDATE":
                self._on_offer(message, method, now_s)
            case "REFER":
                self._respond(message, "202 Accepted")
                self._phone.referred(message.first("refer-to"))
                self._in_dialog(
                    "NOTIFY",
                    now_s,
                    [("Event", "refer"), ("Subscription-State", "terminated;reason=noresource")],
                    "SIP/2.0 200 OK\r\n",
                    "message/sipfrag;version=2.0",
                )
            case "INFO" | "OPTIONS" | "NOTIFY" | "MESSAGE":
                self._respond(message, "200 OK", [("Allow", _ALLOW)] if method == "OPTIONS" else [])
            case _:
                self._respond(message, "405 Method Not Allowed", [("Allow", _ALLOW)])

    def _on_offer(self, message: SipMessage, method: str, now_s: float) -> None:
        body = ""
        if method == "INVITE" or message.body:
            try:
                body = self._phone.describe(message.body or None)
            except NoMedia:
                self._respond(message, "488 Not Acceptable Here")
                return
        answer = self._respond(message, "200 OK", [("Contact", self._dialog.contact), ("Allow", _ALLOW)], body)
        self._dialog.move(message)
        if method == "INVITE":
            self._sent.start(f"ACK {message.cseq[0]}", answer, now_s, _GIVE_UP_S)

    def _respond(
        self, message: SipMessage, status: str, headers: Sequence[tuple[str, str]] = (), body: str = ""
    ) -> bytes:
        copied = [("Via", via) for via in message.all("via")]
        copied += [("Record-Route", route) for route in message.all("record-route")]
        to = message.first("to")
        if parameter_of(to, "tag") is None:
            to += f";tag={self._dialog.tag}"
        copied += [("From", message.first("from")), ("To", to)]
        copied += [("Call-ID", message.first("call-id")), ("CSeq", message.first("cseq"))]
        data = serialise(f"SIP/2.0 {status}", [*copied, *headers], body)
        self._answers[message.branch, message.cseq[1]] = data
        if len(self._answers) > _KEPT_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self.outbox.append(data)
        return data

    # --- how it is written --------------------------------------------------------------------------------------------

    def _in_dialog(
        self,
        method: str,
        now_s: float,
        headers: Sequence[tuple[str, str]] = (),
        body: str = "",
        content_type: str = "",
        within_s: float = _GIVE_UP_S,
    ) -> str:
        branch = self._dialog.branch()
        extra = [("Contact", self._dialog.contact), *headers] if method != "BYE" else list(headers)
        number = self._dialog.next_number()
        data = self._dialog.request(method, number, self._dialog.via(branch), extra, body, content_type)
        self._send(branch, data, now_s, within_s)
        return branch

    def _send(self, key: str, data: bytes, now_s: float, within_s: float) -> None:
        self.outbox.append(data)
        self._sent.start(key, data, now_s, within_s)
