"""Transactions of RFC 3261, section 17, with RFC 6026's handling of INVITE: retransmissions, time-outs, duplicates.

Sans-IO: messages and the clock go in, ``send`` is called with what is to leave. No socket, no task.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Literal

from gateway.transports.sip.message import BRANCH_COOKIE, Request, Response
from gateway.transports.sip.timers import NamedTimers, Timers

T1_S = 0.5
T2_S = 4.0
T4_S = 5.0
TIMEOUT_S = 64 * T1_S
"""Timers B, D, F, H, J, L and M."""
MAX_TRANSACTIONS = 10_000
"""Of each side. Beyond, a request that would need one more is dropped: its sender repeats it."""
MAX_PER_CALL = 256
"""Requests with one Call-ID, within the half minute that they are remembered: no call takes the place of the others."""
DEFAULT_PORT = {"udp": 5060, "tcp": 5060, "tls": 5061}

TransportName = Literal["udp", "tcp", "tls"]


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a message came from, or is to go. ``host`` may be a name only where we are the ones who call."""

    transport: TransportName
    host: str
    port: int
    flow: int | None = None
    """The connection, where there is one already."""
    otherwise: tuple[str, int] | None = None
    """Where to connect to if that is gone; None: host and port."""

    @property
    def reliable(self) -> bool:
        return self.transport != "udp"


Send = Callable[[bytes, Peer], None]


class State(enum.Enum):
    TRYING = enum.auto()
    PROCEEDING = enum.auto()
    COMPLETED = enum.auto()
    CONFIRMED = enum.auto()
    ACCEPTED = enum.auto()
    """A 2xx was sent or came: the transaction only keeps duplicates from looking new (RFC 6026)."""
    TERMINATED = enum.auto()


class TransactionsFull(Exception):  # noqa: N818 (an answer, not a defect)
    """There are :data:`MAX_TRANSACTIONS`."""


class ServerTransaction:
    """A request of the peer's, and our answers. Made by :class:`Transactions`."""

    def __init__(self, layer: Transactions, key: Hashable, request: Request, peer: Peer) -> None:
        self.request = request
        self.peer = peer
        """Where the answers go."""
        self.state = State.TRYING if request.method != "INVITE" else State.PROCEEDING
        self._layer = layer
        self._key = key
        self._timed = NamedTimers(layer.timers)
        self._last: bytes | None = None
        self._interval_s = T1_S

    @property
    def is_invite(self) -> bool:
        return self.request.method == "INVITE"

    @property
    def answered(self) -> bool:
        """Whether a final answer was given."""
        return self.state not in {State.TRYING, State.PROCEEDING}

    def respond(self, response: Response) -> None:
        """After a final answer nothing more is sent, but further 2xx to an INVITE are (their repetition is the
        dialog's own)."""
        repeats_2xx = self.state is State.ACCEPTED and 200 <= response.status < 300
        if self.answered and not repeats_2xx:
            return
        self._last = response.encode()
        self._layer.send(self._last, self.peer)
        if response.status < 200:
            self.state = State.PROCEEDING
        elif not self.is_invite:
            self.state = State.COMPLETED
            self._linger(TIMEOUT_S)
        elif response.status < 300:
            if not repeats_2xx:
                self.state = State.ACCEPTED
                self._timed.start("L", TIMEOUT_S, self.end)
        else:
            self.state = State.COMPLETED
            self._timed.start("H", TIMEOUT_S, self.end)
            if not self.peer.reliable:
                self._timed.start("G", self._interval_s, self._repeat)

    def repeated(self) -> None:
        """The request came again."""
        if self.state in {State.PROCEEDING, State.COMPLETED} and self._last is not None:
            self._layer.send(self._last, self.peer)

    def acknowledged(self) -> None:
        """The ACK of a failure came."""
        if self.state is State.COMPLETED:
            self.state = State.CONFIRMED
            self._timed.stop()
            self._linger(T4_S)

    def end(self) -> None:
        self.state = State.TERMINATED
        self._timed.stop()
        self._layer.forget_server(self._key, self)

    def _linger(self, time_s: float) -> None:
        if self.peer.reliable:
            self.end()
        else:
            self._timed.start("J", time_s, self.end)

    def _repeat(self) -> None:
        assert self._last is not None
        self._layer.send(self._last, self.peer)
        self._interval_s = min(2 * self._interval_s, T2_S)
        self._timed.start("G", self._interval_s, self._repeat)


class ClientTransaction:
    """A request of ours. ``on_response`` gets each response once (2xx to an INVITE: each time); ``on_timeout`` is
    called when none comes, or the request could not be sent."""

    def __init__(
        self,
        layer: Transactions,
        request: Request,
        peer: Peer,
        on_response: Callable[[Response], None],
        on_timeout: Callable[[], None],
    ) -> None:
        self.request = request
        self.peer = peer
        self.state = State.TRYING
        self._layer = layer
        self._on_response = on_response
        self._on_timeout = on_timeout
        self._timed = NamedTimers(layer.timers)
        self._data = request.encode()
        self._interval_s = T1_S
        self._ack: bytes | None = None

    @property
    def is_invite(self) -> bool:
        return self.request.method == "INVITE"

    @property
    def key(self) -> tuple[str, str]:
        return self.request.via.branch, self.request.method

    def begin(self) -> None:
        self._layer.send(self._data, self.peer)
        self._timed.start("B", TIMEOUT_S, self._time_out)
        if not self.peer.reliable:
            self._timed.start("A", self._interval_s, self._repeat)

    def received(self, response: Response) -> None:
        if self.is_invite:
            self._received_to_invite(response)
        elif self.state in {State.TRYING, State.PROCEEDING}:
            if response.status < 200:
                self.state = State.PROCEEDING
            else:
                self.state = State.COMPLETED
                self._timed.stop()
                self._linger(T4_S)
            self._on_response(response)

    def end(self) -> None:
        self.state = State.TERMINATED
        self._timed.stop()
        self._layer.forget_client(self)

    def failed(self) -> None:
        """The transport says that it cannot reach the peer."""
        if self.state in {State.TRYING, State.PROCEEDING}:
            self._time_out()

    def _received_to_invite(self, response: Response) -> None:
        if self.state in {State.TRYING, State.PROCEEDING}:
            if response.status < 200:
                self._progresses()
                self._on_response(response)
                return
            self._timed.stop()
            if response.status < 300:
                self.state = State.ACCEPTED
                self._timed.start("M", TIMEOUT_S, self.end)
            else:
                self.state = State.COMPLETED
                self._acknowledge(response)
                self._linger(TIMEOUT_S)
            self._on_response(response)
        elif self.state is State.ACCEPTED and 200 <= response.status < 300:
            self._on_response(response)
        elif self.state is State.COMPLETED and response.status >= 300:
            assert self._ack is not None
            self._layer.send(self._ack, self.peer)

    def _progresses(self) -> None:
        """A call may ring as long as whoever placed it likes. In one that is up nothing rings: what goes on for longer
        than an answer to CANCEL would take has been forgotten over there."""
        if self.state is State.TRYING:
            self.state = State.PROCEEDING
            self._timed.stop()
            if self.request.to.tag:
                self._timed.start("B", 2 * TIMEOUT_S, self._time_out)

    def _acknowledge(self, response: Response) -> None:
        """The ACK of a failure belongs to the transaction (17.1.1.3)."""
        sent = self.request
        ack = Request(method="ACK", uri=sent.uri)
        for name in ("via", "max-forwards", "from", "call-id", "route"):
            for value in sent.headers.all(name):
                ack.headers.add(name, value)
        ack.headers.add("to", response.headers.get("to"))
        ack.headers.add("cseq", f"{sent.cseq[0]} ACK")
        self._ack = ack.encode()
        self._layer.send(self._ack, self.peer)

    def _repeat(self) -> None:
        self._layer.send(self._data, self.peer)
        longest_s = TIMEOUT_S if self.is_invite else T2_S
        self._interval_s = min(2 * self._interval_s, longest_s) if self.state is State.TRYING else T2_S
        self._timed.start("A", self._interval_s, self._repeat)

    def _linger(self, time_s: float) -> None:
        if self.peer.reliable:
            self.end()
        else:
            self._timed.start("D", time_s, self.end)

    def _time_out(self) -> None:
        self.end()
        self._on_timeout()


class Transactions:
    """All of one endpoint. ``send`` must not block, nor call back in."""

    def __init__(self, timers: Timers, send: Send, *, limit: int = MAX_TRANSACTIONS) -> None:
        self.timers = timers
        self.send = send
        self._limit = limit
        self._servers: dict[Hashable, ServerTransaction] = {}
        self._by_call: Counter[str] = Counter()
        self._clients: dict[tuple[str, str], ClientTransaction] = {}

    def __len__(self) -> int:
        return len(self._servers) + len(self._clients)

    @property
    def crowded(self) -> bool:
        """What is left is for the calls that are up: new ones are refused without a state."""
        return len(self._servers) >= self._limit * 3 // 4

    def find_server(self, request: Request, *, method: str | None = None) -> ServerTransaction | None:
        """The transaction that a request belongs to (17.2.3); with ``method``, that a CANCEL or an ACK is for."""
        return self._servers.get(_server_key(request, method or request.method))

    def begin_server(self, request: Request, source: Peer) -> ServerTransaction:
        """A request that is new. Raises :class:`TransactionsFull`: there are too many in all, or of its call, which may
        still end."""
        if len(self._servers) >= self._limit:
            raise TransactionsFull
        if self._by_call[request.call_id] >= MAX_PER_CALL and request.method != "BYE":
            raise TransactionsFull
        key = _server_key(request, request.method)
        made = ServerTransaction(self, key, request, answers_go_to(request, source))
        self._servers[key] = made
        self._by_call[request.call_id] += 1
        return made

    def begin_client(
        self,
        request: Request,
        peer: Peer,
        *,
        on_response: Callable[[Response], None],
        on_timeout: Callable[[], None],
    ) -> ClientTransaction:
        """Send a request. Raises :class:`TransactionsFull`."""
        if len(self._clients) >= self._limit:
            raise TransactionsFull
        made = ClientTransaction(self, request, peer, on_response, on_timeout)
        self._clients[made.key] = made
        made.begin()
        return made

    def find_client(self, response: Response) -> ClientTransaction | None:
        return self._clients.get((response.via.branch, response.cseq[1]))

    def unreachable(self, is_gone: Callable[[Peer], bool]) -> None:
        """Nothing reaches these peers: what waits for an answer of theirs need wait no longer."""
        for client in [client for client in self._clients.values() if is_gone(client.peer)]:
            client.failed()

    def forget_server(self, key: Hashable, transaction: ServerTransaction) -> None:
        if self._servers.get(key) is transaction:
            del self._servers[key]
            call_id = transaction.request.call_id
            self._by_call[call_id] -= 1
            if not self._by_call[call_id]:
                del self._by_call[call_id]

    def forget_client(self, transaction: ClientTransaction) -> None:
        if self._clients.get(transaction.key) is transaction:
            del self._clients[transaction.key]

    def close(self) -> None:
        """Forget all: no timer is left."""
        for server in list(self._servers.values()):
            server.end()
        for client in list(self._clients.values()):
            client.end()


def answers_go_to(request: Request, source: Peer) -> Peer:
    """Over a connection, back on it; by datagram to where the request came from, at the port it was sent from if it
    asks for that (RFC 3581), else at the port its Via names. Never to an address that the Via makes up."""
    via = request.via
    if source.reliable or "rport" in via.parameters:
        return source
    return replace(source, port=via.port or DEFAULT_PORT[source.transport])


def _server_key(request: Request, method: str) -> Hashable:
    method = "INVITE" if method == "ACK" else method
    via = request.via
    if via.branch.startswith(BRANCH_COOKIE) and via.branch != BRANCH_COOKIE:
        return via.branch, via.sent_by, method
    # A peer of before RFC 3261, or one that writes nothing behind the cookie: its branches repeat.
    return request.call_id, request.cseq[0], request.from_.tag, via.sent_by, via.branch, method
