"""A dialog: what two user agents know of each other while a call lasts (RFC 3261, section 12)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace

from gateway.transports.sip.address import Address, BadSyntax, Uri, parse_address, parse_uri
from gateway.transports.sip.message import Headers, Request, Response, via_line
from gateway.transports.sip.transaction import DEFAULT_PORT, Peer, TransportName

MAX_ROUTES = 20
MAX_FORWARDS = 70


@dataclass(slots=True)
class Dialog:
    call_id: str
    local: str
    """Our From or To, with its tag."""
    local_tag: str
    remote: str
    """The other's, with its tag."""
    remote_tag: str
    target: str
    """The URI that requests are for: the other's last Contact."""
    routes: tuple[str, ...]
    """Route values, the nearest first."""
    source: Peer
    """Where the other's last message came from."""
    contact: str
    """Ours."""
    local_seq: int = 0
    remote_seq: int | None = None

    @classmethod
    def of_invite(cls, request: Request, source: Peer, *, tag: str, contact: str, first_seq: int) -> Dialog:
        """Of an INVITE that came. Raises :class:`BadSyntax`: its Contact or its Record-Route will not do."""
        return cls(
            call_id=request.call_id,
            local=f"{request.headers.get('to')};tag={tag}",
            local_tag=tag,
            remote=request.headers.get("from"),
            remote_tag=request.from_.tag,
            target=_contact_of(request),
            routes=_routes(request.headers),
            source=source,
            contact=contact,
            local_seq=first_seq,
            remote_seq=request.cseq[0],
        )

    @classmethod
    def of_answer(cls, request: Request, response: Response, source: Peer) -> Dialog:
        """Of an answer to an INVITE of ours. Raises :class:`BadSyntax`."""
        return cls(
            call_id=request.call_id,
            local=request.headers.get("from"),
            local_tag=request.from_.tag,
            remote=response.headers.get("to"),
            remote_tag=response.to.tag,
            target=_contact_of(response),
            routes=tuple(reversed(_routes(response.headers))),
            source=source,
            contact=request.headers.get("contact"),
            local_seq=request.cseq[0],
        )

    def refresh_target(self, message: Request | Response, source: Peer) -> None:
        """A request or answer that may move the other side (re-INVITE, UPDATE). Raises :class:`BadSyntax`."""
        if message.contact is not None:
            self.target = _contact_of(message)
        self.source = source

    def takes(self, seq: int) -> bool:
        """Whether a request of the other's comes in order (12.2.2); if so it is the latest."""
        if self.remote_seq is not None and seq <= self.remote_seq:
            return False
        self.remote_seq = seq
        return True

    def request(self, method: str, *, branch: str, sent_by: tuple[str, int], seq: int | None = None) -> Request:
        """The next request of ours in this dialog; with ``seq``, an ACK or CANCEL of that one."""
        if seq is None:
            self.local_seq += 1
            seq = self.local_seq
        uri, routes = self._where()
        headers = Headers()
        headers.add("via", via_line(self.next_hop.transport, *sent_by, branch))
        headers.add("max-forwards", str(MAX_FORWARDS))
        for route in routes:
            headers.add("route", route)
        headers.add("from", self.local)
        headers.add("to", self.remote)
        headers.add("call-id", self.call_id)
        headers.add("cseq", f"{seq} {method}")
        headers.add("contact", self.contact)
        return Request(headers, method=method, uri=uri)

    def _where(self) -> tuple[str, tuple[str, ...]]:
        """Request-URI and Route values (12.2.1.1): a first route without ``lr`` is of RFC 2543, and rewritten."""
        if not self.routes or "lr" in parse_address(self.routes[0]).uri.parameters:
            return self.target, self.routes
        return parse_address(self.routes[0]).uri_text, (*self.routes[1:], f"<{self.target}>")

    @property
    def next_hop(self) -> Peer:
        """Where our requests go: the nearest route or the target; by the connection the other came by, while its
        transport is the one asked for."""
        uri = parse_address(self.routes[0]).uri if self.routes else parse_uri(self.target)
        if not self.routes and _behind_nat(uri, self.source):
            return self.source
        return peer_of(uri, self.source)

    @property
    def remote_uri(self) -> Uri:
        return parse_address(self.remote).uri

    @property
    def local_uri(self) -> str:
        return parse_address(self.local).uri_text


def peer_of(uri: Uri, source: Peer | None = None) -> Peer:
    """Where a URI points (RFC 3263, without its DNS records; ``maddr`` is not followed). Raises :class:`BadSyntax`."""
    transport = transport_of(uri)
    port = uri.port or DEFAULT_PORT[transport]
    if source is not None and source.reliable and source.transport == transport:
        # The connection that it opened is the only one that is sure to reach it (RFC 5923 in spirit).
        return replace(source, otherwise=(uri.host, port))
    return Peer(transport, uri.host, port)


def transport_of(uri: Uri) -> TransportName:
    """Raises :class:`BadSyntax`."""
    match uri.transport:
        case "udp" | "tcp" | "tls" as transport if uri.is_sip:
            return transport
    raise BadSyntax("URI transport")


def _behind_nat(uri: Uri, source: Peer) -> bool:
    """It names an address of its own network, and comes to us from another: what we send there arrives nowhere."""
    try:
        return ipaddress.ip_address(uri.host).is_private and ipaddress.ip_address(source.host).is_global
    except ValueError:
        return False


def _contact_of(message: Request | Response) -> str:
    contact: Address | None = message.contact
    if contact is None or not contact.uri.is_sip or not contact.uri.host:
        raise BadSyntax("Contact")
    transport_of(contact.uri)
    return contact.uri_text


def _routes(headers: Headers) -> tuple[str, ...]:
    routes = tuple(headers.listed("record-route"))
    if len(routes) > MAX_ROUTES:
        raise BadSyntax("Record-Route")
    for route in routes:
        transport_of(parse_address(route).uri)
    return routes
