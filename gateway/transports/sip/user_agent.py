"""The endpoint: every message comes in here, and goes to its transaction, its call, or is answered. Sans-IO.

:meth:`UserAgent.receive` takes a message and where it came from; ``send`` gets what is to leave;
:attr:`UserAgent.timers` says when to run them. No socket, no task, no clock of its own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.transports.sip.address import BadSyntax, format_host, parse_uri
from gateway.transports.sip.asking import Asking, Make, cancel_of
from gateway.transports.sip.bodies import SDP, why
from gateway.transports.sip.digest import Credentials
from gateway.transports.sip.incoming import IncomingSession, begin_incoming
from gateway.transports.sip.message import BRANCH_COOKIE, Malformed, Request, Response, answer, note_source, parse
from gateway.transports.sip.sdp import BadSdp
from gateway.transports.sip.session import ALLOW, SUPPORTED, Session
from gateway.transports.sip.session_events import SessionEvents
from gateway.transports.sip.session_timer import IntervalTooSmall
from gateway.transports.sip.timers import Timers
from gateway.transports.sip.transaction import (
    ClientTransaction,
    Peer,
    Send,
    ServerTransaction,
    State,
    Transactions,
    TransactionsFull,
    answers_go_to,
)

MAX_SESSIONS = 4_096
"""Dialogs, counting those that are being set up or taken down. Beyond, a call is refused (503)."""
EXTENSIONS = frozenset({"timer", "100rel"})
"""What a request may ``Require``."""
_KNOWN_METHODS = frozenset({"REGISTER", "SUBSCRIBE", "MESSAGE", "PUBLISH", "REFER", "NOTIFY"})
_IN_DIALOG = frozenset({"BYE", "INFO", "UPDATE", "PRACK", "NOTIFY", "REFER"})

Verdict = Literal["allow", "challenge", "stale", "drop"]


class Application(Protocol):
    """What is above. None of these block, none raise."""

    def invited(self, session: IncomingSession) -> SessionEvents:
        """A call came in: it rings until the session is told otherwise. Returns who hears of it."""

    def unready(self) -> str | None:
        """Why new calls had better go elsewhere; None: they may come."""

    def judge(self, request: Request, source: Peer) -> Verdict:
        """Whether this source may ask for something outside of a call."""

    def answers(self, host: str) -> bool:
        """Whether what comes from there is answered at all: to who may ask for nothing, nobody is here."""

    def challenges(self, host: str, *, stale: bool) -> list[tuple[str, str]]: ...

    def count(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Local:
    """This side, as a peer sees it."""

    host: str
    port: int


class UserAgent:
    """``local`` says which address of ours a peer reaches us by; ``random_hex`` is for tags and branches (of at least
    64 bits), ``random_below`` for waits and first numbers."""

    def __init__(
        self,
        app: Application,
        send: Send,
        *,
        now_s: Callable[[], float],
        local: Callable[[Peer], Local],
        random_hex: Callable[[], str],
        random_below: Callable[[int], int],
        session_expires_s: int,
        on_timer: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.timers = Timers(now_s, on_timer)
        self.transactions = Transactions(self.timers, send)
        self.send = send
        self.session_expires_s = session_expires_s
        self.random_hex = random_hex
        self.random_below = random_below
        self.count = app.count
        self.sessions: dict[tuple[str, str], Session] = {}
        """By Call-ID and our tag."""
        self._app = app
        self._local = local
        self._invites: dict[tuple[str, str, int], str] = {}
        """Of each incoming call, by Call-ID, the caller's tag and CSeq: the branch it came by."""
        self._secret = random_hex()

    def receive(self, data: bytes, source: Peer) -> None:
        """One message as it came. Never raises for what a peer sends."""
        try:
            message = parse(data, stream=source.reliable)
        except Malformed as error:
            self.count("sip_malformed")
            if error.answerable is not None and self._app.answers(source.host):
                self._refuse(error.answerable, source, error.status, reason=f"Bad Request ({error})")
            return
        if isinstance(message, Response):
            transaction = self.transactions.find_client(message)
            if transaction is None:
                self.count("sip_stray_responses")
            else:
                transaction.received(message)
            return
        note_source(message, source.host, source.port)
        try:
            self._received(message, source)
        except TransactionsFull:
            self.count("sip_transactions_full")

    # --- for sessions ---------------------------------------------------------------------------------------------

    def new_branch(self) -> str:
        return BRANCH_COOKIE + self.random_hex()

    def new_tag(self) -> str:
        return self.random_hex()

    def sent_by(self, peer: Peer) -> tuple[str, int]:
        local = self._local(peer)
        return local.host, local.port

    def contact(self, peer: Peer) -> str:
        """Where this peer reaches us for the rest of a call."""
        local = self._local(peer)
        transport = "" if peer.transport == "udp" else f";transport={peer.transport}"
        return f"<sip:offhook@{format_host(local.host)}:{local.port}{transport}>"

    def request(
        self,
        make: Make,
        credentials: Credentials | None,
        on_response: Callable[[Response], None],
        on_timeout: Callable[[], None],
    ) -> Asking | None:
        """Send a request, with credentials once it is challenged. None: there are too many, or it has no address
        (``on_timeout`` was called)."""
        try:
            return Asking(self.transactions, make, credentials, on_response, on_timeout, self.random_hex)
        except (TransactionsFull, BadSyntax):
            self.count("sip_requests_dropped")
            on_timeout()
            return None

    def cancel(self, invite: ClientTransaction) -> None:
        """Take back an INVITE that has had a provisional answer. CANCEL is never challenged (22.1)."""
        self.request(lambda _: (cancel_of(invite.request), invite.peer), None, lambda _: None, lambda: None)

    def register(self, session: Session) -> None:
        self.sessions[session.dialog.call_id, session.dialog.local_tag] = session

    def forget(self, session: Session) -> None:
        self.sessions.pop((session.dialog.call_id, session.dialog.local_tag), None)
        if isinstance(session, IncomingSession):
            self._invites.pop(_identity(session.invite), None)

    def capabilities(self) -> list[tuple[str, str]]:
        return [("allow", ALLOW), ("accept", SDP), ("supported", SUPPORTED), ("server", "offhook")]

    def close(self) -> None:
        """Forget everything at once: nothing more is sent."""
        for session in list(self.sessions.values()):
            session.close()
        self.transactions.close()

    # --- requests -------------------------------------------------------------------------------------------------

    def _received(self, request: Request, source: Peer) -> None:
        if request.method == "ACK":
            self._acknowledged(request, source)
            return
        known = self.transactions.find_server(request)
        if known is not None:
            known.repeated()
            return
        if request.method == "CANCEL":
            self._cancelled(request, source)
            return
        tag = request.to.tag
        if tag:
            self._in_dialog(request, tag, source)
            return
        self._out_of_dialog(request, source)

    def _acknowledged(self, request: Request, source: Peer) -> None:
        transaction = self.transactions.find_server(request, method="INVITE")
        if transaction is not None and transaction.state is not State.ACCEPTED:
            transaction.acknowledged()
            return
        session = self._session_of(request, request.to.tag)
        if session is None:
            self.count("sip_stray_acks")
            return
        session.acknowledged(request, source)

    def _cancelled(self, request: Request, source: Peer) -> None:
        invite = self.transactions.find_server(request, method="INVITE")
        if invite is None:
            self._reply_unknown(request, source)
            return
        session = self._called_by(invite)
        transaction = self.transactions.begin_server(request, source)
        tag = session.dialog.local_tag if session is not None else self._tag_for(invite.request)
        transaction.respond(answer(request, 200, to_tag=tag))
        if session is not None:
            session.cancelled()

    def _called_by(self, invite: ServerTransaction) -> IncomingSession | None:
        return next(
            (
                session
                for session in self.sessions.values()
                if isinstance(session, IncomingSession) and session.invite is invite.request
            ),
            None,
        )

    def _in_dialog(self, request: Request, tag: str, source: Peer) -> None:
        session = self._session_of(request, tag)
        if session is None:
            self._reply_unknown(request, source)
            return
        transaction = self.transactions.begin_server(request, source)
        unknown = request.headers.tokens("require") - EXTENSIONS
        if unknown:
            transaction.respond(answer(request, 420, headers=[("unsupported", ", ".join(sorted(unknown)))]))
            return
        session.receive(request, transaction, source)

    def _session_of(self, request: Request, tag: str) -> Session | None:
        session = self.sessions.get((request.call_id, tag))
        if session is None or session.dialog.remote_tag != request.from_.tag:
            return None
        return session

    def _out_of_dialog(self, request: Request, source: Peer) -> None:
        verdict = self._app.judge(request, source)
        match verdict:
            case "drop":
                self.count("sip_dropped")
                return
            case "challenge" | "stale":
                headers = self._app.challenges(source.host, stale=verdict == "stale")
                self._reply(request, source, 401, headers)
                return
        refusal = self._refusal(request)
        if refusal is not None:
            self._reply(request, source, *refusal)
            return
        if request.method == "OPTIONS":
            self._optioned(request, source)
            return
        self._invited(request, source)

    def _refusal(self, request: Request) -> tuple[int, list[tuple[str, str]]] | None:
        """What of a request outside of a call cannot be taken (8.2.1 to 8.2.3)."""
        if request.method in _IN_DIALOG:
            return 481, []
        if request.method not in {"INVITE", "OPTIONS"}:
            return (405 if request.method in _KNOWN_METHODS else 501), [("allow", ALLOW)]
        try:
            uri = parse_uri(request.uri)
        except BadSyntax:
            return 400, []
        if not uri.is_sip and uri.scheme != "tel":
            return 416, []
        unknown = request.headers.tokens("require") - EXTENSIONS
        if unknown:
            return 420, [("unsupported", ", ".join(sorted(unknown)))]
        if (request.call_id, request.from_.tag) in self.sessions:
            return 482, []  # a call of ours came back to us
        if request.method == "INVITE" and _identity(request) in self._invites:
            return 482, []  # the same call by two ways (8.2.2.2)
        return None

    def _optioned(self, request: Request, source: Peer) -> None:
        why_not = self._app.unready()
        if why_not is None:
            self._reply(request, source, 200, self.capabilities())
            return
        self._reply(request, source, 503, [("retry-after", "10"), *self.capabilities()])

    def _invited(self, request: Request, source: Peer) -> None:
        if len(self.sessions) >= MAX_SESSIONS or self.transactions.crowded:
            self._reply(request, source, 503, [("retry-after", "10")])
            return
        transaction = self.transactions.begin_server(request, source)
        transaction.respond(answer(request, 100))
        try:
            session = begin_incoming(self, transaction, source, _NOBODY)
        except BadSyntax as error:
            transaction.respond(answer(request, 400, to_tag=self.new_tag(), reason=f"Bad Request ({error})"))
            return
        except BadSdp as error:
            transaction.respond(answer(request, error.status, to_tag=self.new_tag(), headers=why(error)))
            return
        except IntervalTooSmall as error:
            headers = [("min-se", str(error.min_se_s))]
            transaction.respond(answer(request, 422, to_tag=self.new_tag(), headers=headers))
            return
        self._invites[_identity(request)] = request.via.branch
        self.register(session)
        session.events = self._app.invited(session)

    def _reply(self, request: Request, source: Peer, status: int, headers: list[tuple[str, str]] | None = None) -> None:
        """A final answer outside of a call. It is made anew whenever the request is repeated, and comes out the same
        (8.2.7): what strangers send must cost no memory."""
        self._send_stateless(
            request, answer(request, status, to_tag=self._tag_for(request), headers=headers or []), source
        )

    def _reply_unknown(self, request: Request, source: Peer) -> None:
        """Of a call that there is not."""
        if self._app.answers(source.host):
            self._reply(request, source, 481)
        else:
            self.count("sip_dropped")

    def _refuse(self, request: Request, source: Peer, status: int, *, reason: str) -> None:
        """A message that could not be understood."""
        note_source(request, source.host, source.port)
        self._send_stateless(
            request,
            answer(request, status, to_tag=self._tag_for(request), reason=reason if status == 400 else ""),
            source,
        )

    def _send_stateless(self, request: Request, response: Response, source: Peer) -> None:
        self.send(response.encode(), answers_go_to(request, source))

    def _tag_for(self, request: Request) -> str:
        seed = request.headers.get("via") + request.call_id
        return hmac.new(self._secret.encode(), seed.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:16]


class _Nobody:
    """Hears of a call until the application has said who does."""

    def established(self) -> None: ...
    def hung_up(self, cause: str) -> None: ...
    def closed(self) -> None: ...
    def pressed(self, key: str) -> None: ...
    def held(self, on: bool) -> None: ...


_NOBODY = _Nobody()


def _identity(request: Request) -> tuple[str, str, int]:
    return request.call_id, request.from_.tag, request.cseq[0]
