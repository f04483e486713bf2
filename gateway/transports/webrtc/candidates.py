"""Which addresses a call's media may use: the gateway's own, and those of an offer that may be sent to.

aioice gathers every interface but loopback, on any port, and sends checks to whatever an offer names. Here the
operator's policy comes first: a range of ports, the address that the world knows (a cloud host behind NAT), and no
packet to an address that an offer has no business naming.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ifaddr
import structlog
from aioice import Candidate
from aioice import stun as aioice_stun
from aioice.candidate import candidate_foundation, candidate_priority
from aioice.ice import Connection, StunProtocol, server_reflexive_candidate
from aiortc import RTCIceServer
from aiortc.rtcicetransport import connection_kwargs

_log = structlog.get_logger(__name__)

MAX_REMOTE = 16
"""Candidates of an offer that are checked. Each is a stream of STUN requests until one answers."""
MAX_LEARNED = 64
"""With those learnt from where checks came from."""
MAX_LOCAL = 8
"""Addresses of this host that are offered; each is a socket a call."""
LOWEST_PORT = 1024
"""An offer may not have us send to a well-known service."""
SERVERS_S = 2.0
"""What STUN and TURN servers get to answer: the caller waits meanwhile."""
MAX_EARLY = 64
"""Media that came before the keys, in packets."""
MAX_UNREAD = 512
"""Datagrams that DTLS has not read yet. Anybody may send some, and nobody reads them until ICE is done."""
MAX_DATAGRAM_BYTES = 8_192
"""Nothing that a browser sends is as long: Opus' longest packets fit, and everything else keeps to an MTU."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class NoMediaPort(OSError):  # noqa: N818 (named for what there is none of)
    """Every port of the range is taken, or no address of this host may be used."""


@dataclass(frozen=True, slots=True)
class IceServer:
    urls: tuple[str, ...]
    username: str | None = None
    credential: str | None = None


@dataclass(frozen=True, slots=True)
class MediaPolicy:
    """What the operator lets media do. ``port_range`` holds its ends."""

    advertised_ip: str | None = None
    port_range: tuple[int, int] | None = None
    ice_servers: tuple[IceServer, ...] = ()
    allow_private: bool = True
    allow_loopback: bool = False
    suspect_after_s: float = 3.0
    lost_after_s: float = 10.0
    setup_s: float = 15.0


def allowed(address: Address, policy: MediaPolicy) -> bool:
    """Whether media may go to an address that an offer names."""
    address = _inner(address)
    if address.is_unspecified or address.is_multicast or address.is_link_local:
        return False  # link-local: where clouds keep their metadata
    if address.is_loopback:
        return policy.allow_loopback
    if address == ipaddress.ip_address("255.255.255.255"):
        return False
    return address.is_global or policy.allow_private


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address leads to, if it is such a one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def remote_candidates(lines: tuple[str, ...], policy: MediaPolicy) -> list[Candidate]:
    """Those of an offer that may be used, the preferred first, at most :data:`MAX_REMOTE`. What is malformed, not UDP,
    a name (``.local``: it takes a second to resolve, and the peer's own checks arrive long before) or forbidden is
    left out."""
    found = [candidate for line in lines if (candidate := _remote(line, policy)) is not None]
    return sorted(found, key=lambda candidate: -candidate.priority)[:MAX_REMOTE]


def _remote(line: str, policy: MediaPolicy) -> Candidate | None:
    bits = line.split()[:8]
    if len(bits) < 8 or bits[6] != "typ" or bits[7] not in ("host", "srflx", "relay"):
        return None
    foundation, component, transport, priority, host, port = bits[:6]
    try:
        address = ipaddress.ip_address(host)
        numbers = [int(text) for text in (component, priority, port) if text.isascii() and text.isdigit()]
    except ValueError:
        return None
    if len(numbers) != 3 or numbers[0] != 1 or transport.lower() != "udp" or not allowed(address, policy):
        return None
    if not LOWEST_PORT <= numbers[2] < 1 << 16 or not numbers[1] < 1 << 32 or "%" in host:
        return None
    return Candidate(foundation[:32], 1, "udp", numbers[1], str(address), numbers[2], bits[7])


def local_addresses(policy: MediaPolicy) -> list[str]:
    """Addresses of this host to take media at, the one with the default route first."""
    found = [ipaddress.ip_address(text) for text in host_addresses()]
    usual = _default_route()
    if policy.advertised_ip is not None and usual is not None and not policy.allow_private:
        found = [address for address in found if address.is_global or str(address) == usual]
    kept = [a for a in found if not (a.is_loopback or a.is_link_local or a.is_unspecified or a.is_multicast)]
    texts = sorted((str(address) for address in kept), key=lambda text: text != usual)[:MAX_LOCAL]
    return [*texts, "127.0.0.1"] if policy.allow_loopback else texts


def host_addresses() -> list[str]:
    """Of every interface; of IPv6 those without a scope."""
    found: list[str] = []
    for adapter in ifaddr.get_adapters():
        for entry in adapter.ips:
            if isinstance(entry.ip, str):
                found.append(entry.ip)
            elif entry.ip[2] == 0:
                found.append(entry.ip[0])
    return found


def _default_route() -> str | None:
    """This host's address towards the world: what a UDP socket would be bound to. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


class MediaProtocol(StunProtocol):
    """Media passes by the STUN parser."""

    receiver: IceConnection

    def datagram_received(self, data: bytes | str, addr: tuple[Any, ...]) -> None:
        if len(data) > MAX_DATAGRAM_BYTES:
            return
        if isinstance(data, bytes) and data and 127 < data[0] < 192:  # RFC 7983, section 7
            self.receiver.media_received(data)
        elif data:
            try:
                super().datagram_received(data, addr)
            except Exception as error:  # noqa: BLE001 (anybody may send here, and aioice is not written for that)
                _log.debug("a datagram could not be taken", error=type(error).__name__)


class IceConnection(Connection):
    """aioice's, with the sockets that the policy wants, and media handed over at once instead of queued for a task."""

    def __init__(self, policy: MediaPolicy) -> None:
        servers = [
            RTCIceServer(urls=list(server.urls), username=server.username, credential=server.credential)
            for server in policy.ice_servers
        ]
        super().__init__(ice_controlling=False, **connection_kwargs(servers))
        self._policy = policy
        self.on_media: Callable[[bytes], None] | None = None
        self._early: deque[bytes] = deque(maxlen=MAX_EARLY)
        self.lost = False
        """:meth:`recv` found that nothing comes any more."""
        self.on_check: Callable[[], None] | None = None
        self._asking: asyncio.Task[list[Candidate]] | None = None

    def media_received(self, data: bytes) -> None:
        if self.on_media is None:
            self._early.append(data)
        else:
            self.on_media(data)

    def hear(self, on_media: Callable[[bytes], None]) -> None:
        """From now on, and first what came before."""
        self.on_media = on_media
        while self._early:
            on_media(self._early.popleft())

    def data_received(self, data: bytes, component: int) -> None:
        """What came by a relay has not been sorted yet."""
        if data and 127 < data[0] < 192:
            self.media_received(data)
        elif data and self._queue.qsize() < MAX_UNREAD:
            super().data_received(data, component)

    async def recv(self) -> bytes:
        try:
            return await super().recv()
        except ConnectionError:
            self.lost = True
            raise

    def request_received(self, message: aioice_stun.Message, addr: tuple[str, int], protocol: StunProtocol) -> None:
        if len(self._remote_candidates) < MAX_LEARNED and "PRIORITY" in message.attributes:
            super().request_received(message, addr, protocol)
            if self.on_check is not None:
                self.on_check()

    async def get_component_candidates(
        self,
        component: int,
        addresses: list[str],
        timeout: int = 5,  # noqa: ASYNC109 (aioice's signature)
    ) -> list[Candidate]:
        """Host candidates by the policy; what servers give, as aioice asks them. Raises :class:`NoMediaPort`."""
        protocols = [await self._bind(component, address) for address in local_addresses(self._policy)]
        bound = [protocol for protocol in protocols if protocol is not None]
        if not bound:
            raise NoMediaPort("no address and port for media")
        candidates = [protocol.local_candidate for protocol in bound]
        if self.stun_server is not None:
            asked = [
                asyncio.create_task(server_reflexive_candidate(protocol, self.stun_server))
                for protocol in bound
                if ipaddress.ip_address(protocol.local_candidate.host).version == 4
            ]
            candidates += await _answers(asked)
        if self.turn_server is not None:  # with no address of ours, only the relay is left for aioice to ask
            asking = super().get_component_candidates(component, [], timeout=int(SERVERS_S))
            self._asking = asyncio.create_task(asking, name="turn")
            candidates += await asyncio.shield(self._asking)
        return candidates

    async def close(self) -> None:
        if self._asking is not None:  # a relay that is given while nobody waits for it would stay open
            await asyncio.wait({self._asking})
        await super().close()

    async def _bind(self, component: int, address: str) -> MediaProtocol | None:
        bound = _bound_socket(address, self._policy.port_range)
        if bound is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            _, protocol = await loop.create_datagram_endpoint(lambda: MediaProtocol(self), sock=bound)
        except BaseException:
            bound.close()
            raise
        self._protocols.append(protocol)
        host, port = bound.getsockname()[:2]
        # The default route's address first; loopback last, for it is in nobody's way.
        preference = 65535 - len(self._protocols)
        protocol.local_candidate = Candidate(
            foundation=candidate_foundation("host", "udp", host),
            component=component,
            transport="udp",
            priority=candidate_priority(component, "host", preference),
            host=host,
            port=port,
            type="host",
        )
        return protocol

    def answer_candidates(self) -> tuple[str, ...]:
        """What the answer tells, after ``a=candidate:``."""
        known = self._policy.advertised_ip
        found = self.local_candidates
        if known is None:
            return tuple(candidate.to_sdp() for candidate in found)
        family = ipaddress.ip_address(known).version
        outward = next((c for c in found if c.type == "host" and ipaddress.ip_address(c.host).version == family), None)
        told = []
        if outward is not None:
            foundation = candidate_foundation("host", "udp", known)
            priority = candidate_priority(1, "host")
            told.append(Candidate(foundation, 1, "udp", priority, known, outward.port, "host"))
        for candidate in found:
            known_places = [(other.host, other.port) for other in told]
            tellable = self._policy.allow_private or ipaddress.ip_address(candidate.host).is_global
            if tellable and (candidate.host, candidate.port) not in known_places:
                told.append(candidate)
        return tuple(candidate.to_sdp() for candidate in told)


async def _answers(asked: list[asyncio.Task[tuple[Candidate, None]]]) -> list[Candidate]:
    if not asked:
        return []
    try:
        done, _ = await asyncio.wait(asked, timeout=SERVERS_S)
    finally:
        for task in asked:
            task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    return [task.result()[0] for task in done if not task.cancelled() and task.exception() is None]


def _bound_socket(address: str, port_range: tuple[int, int] | None) -> socket.socket | None:
    """Bound to a free port of the range, from a random one on; None if there is none, or no such address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setblocking(False)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    for port in _ports(port_range):
        try:
            made.bind((address, port))
        except OSError:
            continue
        return made
    made.close()
    return None


def _ports(port_range: tuple[int, int] | None) -> list[int]:
    if port_range is None:
        return [0]
    first, last = port_range
    start = random.randrange(first, last + 1)
    return [*range(start, last + 1), *range(first, start)]
