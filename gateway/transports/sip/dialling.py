"""Places one call: whereto and as whom, its media, then the call itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateway.outbound import DialFailed
from gateway.sip_settings import TrunkSettings
from gateway.switchboard import Admission
from gateway.transports.phone.line import Incoming
from gateway.transports.phone.phone_call import PhoneCall
from gateway.transports.sip.address import BadSyntax, Uri, format_host, parse_uri
from gateway.transports.sip.dialog import transport_of
from gateway.transports.sip.digest import Credentials
from gateway.transports.sip.line import SipLine
from gateway.transports.sip.media import RtpMedia
from gateway.transports.sip.outgoing import OutgoingSession, begin_outgoing
from gateway.transports.sip.rtp_socket import PortsExhausted
from gateway.transports.sip.sockets import resolve
from gateway.transports.sip.transaction import DEFAULT_PORT, Peer

if TYPE_CHECKING:
    from gateway.transports.sip.server import SipServer

_CODES = {486: "busy", 600: "busy", 603: "declined", 607: "declined", 480: "no_answer", 487: "no_answer"}
_CODES |= {404: "not_found", 410: "not_found", 484: "not_found", 604: "not_found"}
_CODES |= {401: "forbidden", 403: "forbidden", 407: "forbidden", 408: "unreachable", 503: "unreachable"}


class OutgoingLine(SipLine):
    """(``OutgoingEvents`` of its session.)"""

    def __init__(self, admission: Admission) -> None:
        super().__init__()
        self._admission = admission
        self.status: int | None = None
        """Why nobody answered."""

    def rings(self) -> None:
        self._admission.rings()

    def failed(self, status: int) -> None:
        self.status = status
        self._down(None)


async def dial(server: SipServer, admission: Admission, to: str, *, caller: str, agent: str, ring_s: float) -> None:
    """From the INVITE to the end of the call. Raises :class:`DialFailed`."""
    uri, trunk, peer = await _whereto(server, to)
    line = OutgoingLine(admission)
    try:
        line.media = await RtpMedia.open(server.answering.media_policy(), line, peer_ip=peer.host)
    except (PortsExhausted, OSError):
        raise DialFailed("failed") from None
    session = begin_outgoing(
        server.ua,
        to,
        peer,
        line,
        from_uri=_from(server, peer, trunk, caller),
        credentials=credentials_of(trunk),
    )
    line.session = session
    try:
        with server.counted(peer.host):
            await _until_answered(session, line, ring_s)
        with server.counted(server.address_of(peer)):  # over TLS the host is a name: its connection has to be kept
            line.agreed()
            incoming = Incoming(
                "sip",
                agent=agent,
                dialled=uri.user,
                caller=caller,
                wire_id=session.dialog.call_id,
                direction="outbound",
            )
            call = PhoneCall(server.gateway, admission, incoming, line)
            line.connect(call)
            await call.run()
    finally:
        session.hang_up()
        await line.free()


async def _until_answered(session: OutgoingSession, line: OutgoingLine, ring_s: float) -> None:
    assert line.media is not None
    session.invite(line.media)
    try:
        async with asyncio.timeout(ring_s):
            await line.answered.wait()
    except TimeoutError:
        session.hang_up()
        raise DialFailed("no_answer" if session.has_progress else "unreachable") from None
    if line.status is not None:
        raise DialFailed(_CODES.get(line.status, "failed"), line.status)
    if line.over.is_set() and line.cause is None:
        raise DialFailed("failed")  # else it was answered, and hung up at once


async def _whereto(server: SipServer, to: str) -> tuple[Uri, TrunkSettings | None, Peer]:
    try:
        uri = parse_uri(to)
        trunk = trunk_of(server.settings.trunks.values(), uri)
        transport = trunk.transport if trunk is not None else transport_of(uri)
    except BadSyntax:
        raise DialFailed("not_found") from None
    if transport not in server.ports:
        raise DialFailed("unreachable")
    host, port = trunk.host_port if trunk is not None else (uri.host, uri.port or DEFAULT_PORT[transport])
    if transport == "tls":
        return uri, trunk, Peer(transport, host, port)  # by its name, which its certificate has to say
    try:
        return uri, trunk, Peer(transport, await resolve(host, port), port)
    except OSError:
        raise DialFailed("unreachable") from None


def trunk_of(trunks: Iterable[TrunkSettings], uri: Uri) -> TrunkSettings | None:
    """The trunk that a destination names by its server or its domain."""
    named = {uri.host.lower(), f"{format_host(uri.host).lower()}:{uri.port}"}
    for trunk in trunks:
        host, port = trunk.host_port
        if {host.lower(), trunk.our_domain.lower()} & named and uri.port in {None, port}:
            return trunk
    return None


def credentials_of(trunk: TrunkSettings | None) -> Credentials | None:
    """What answers the challenges of a trunk."""
    if trunk is None or trunk.password is None:
        return None
    return Credentials(trunk.auth_user or trunk.user, trunk.password.get_secret_value())


def _from(server: SipServer, peer: Peer, trunk: TrunkSettings | None, caller: str) -> str:
    if trunk is not None:
        return f"sip:{caller or trunk.user}@{trunk.our_domain}"
    return f"sip:{caller or 'offhook'}@{format_host(server.local(peer).host)}"
