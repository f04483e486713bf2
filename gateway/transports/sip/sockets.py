"""The sockets that SIP messages come and go by: one UDP socket, TCP and TLS listeners, connections both ways.

Nothing here blocks, and nothing waits without bound: a peer that does not read, or sends half a message, is cut off.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

import structlog

from gateway.security.rate_limit import source_of
from gateway.transports.sip.address import is_address
from gateway.transports.sip.connection import MAX_UNSENT_BYTES, Connection, Opened
from gateway.transports.sip.tls_listener import TlsListener
from gateway.transports.sip.transaction import Peer, TransportName

_log = structlog.get_logger(__name__)

CONNECT_S = 5.0
MAX_PER_SOURCE = 32
"""Connections of one address that has no call and needs a password, if any."""
STRANGERS_LEAVE = 4
"""One of so many connections."""
MAX_LOOKUPS = 64
PORT_TRIES = 16
PING = b"\r\n\r\n"


class Above(Protocol):
    """What the messages are for. None of these block, none raise."""

    def takes(self, host: str, size: int = 0) -> bool:
        """Whether one more message of this source, of so many bytes, is looked at."""

    def trusts(self, host: str) -> bool:
        """Whether the limit of connections for each source is not for this one."""

    def keeps(self, host: str) -> bool:
        """Whether its connections are worth keeping while they are idle."""

    def receive(self, data: bytes, source: Peer) -> None: ...

    def unreachable(self, is_gone: Callable[[Peer], bool]) -> None: ...

    def count(self, name: str) -> None: ...


class Sockets:
    """Open with :meth:`listen`; :meth:`close` leaves no socket and no task."""

    def __init__(self, above: Above, *, max_connections: int, tls_client: ssl.SSLContext | None) -> None:
        self.ports: dict[TransportName, int] = {}
        self._above = above
        self._max_connections = max_connections
        self._tls_client = tls_client
        self._udp: asyncio.DatagramTransport | None = None
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._flows = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._opened: dict[Opened, Connection | _Opening] = {}
        self._by_source: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def listen(self, host: str, port: int, transports: Collection[str]) -> None:
        """For ``udp`` and ``tcp`` among those, at one port. Raises :class:`OSError`."""
        for left in reversed(range(PORT_TRIES)):
            at = await self.listen_udp(host, port) if "udp" in transports else port
            try:
                if "tcp" in transports:
                    await self.listen_stream(host, at)
            except OSError:
                if port or not left:
                    raise
                self._close_udp()  # of a port that was picked, the same for TCP need not be free
            else:
                return

    async def listen_udp(self, host: str, port: int) -> int:
        """Raises :class:`OSError`."""
        loop = asyncio.get_running_loop()
        self._udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self._above), (host, port))
        bound: int = self._udp.get_extra_info("sockname")[1]
        self.ports["udp"] = bound
        return bound

    async def listen_stream(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Raises :class:`OSError`."""
        if tls is not None:
            listener = TlsListener(self, host, port, tls)
            self._listeners.append(listener)
            self.ports["tls"] = listener.port
            return listener.port
        server = await asyncio.get_running_loop().create_server(lambda: Connection(self, "tcp"), host, port)
        self._listeners.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        self.ports["tcp"] = bound
        return bound

    def _close_udp(self) -> None:
        if self._udp is not None:
            self._udp.close()
            self._udp = None

    def send(self, data: bytes, peer: Peer) -> None:
        """By the peer's connection, by one that is open to its address, or by a new one."""
        if self._closed:
            return
        if peer.transport == "udp":
            self._send_udp(data, peer)
            return
        by_flow = self._connections.get(peer.flow) if peer.flow is not None else None
        if by_flow is not None:
            by_flow.send(data)
            return
        host, port = peer.otherwise or (peer.host, peer.port)
        key = (peer.transport, host, port)
        connection = self._opened.get(key)
        if connection is None:
            if len(self._opened) >= self._max_connections:
                self._above.count("sip_connections_full")
                return
            connection = self._opened[key] = _Opening()
            self.start(self._open(key, connection))
        connection.send(data)

    def _send_udp(self, data: bytes, peer: Peer) -> None:
        if self._udp is None:
            self._above.count("sip_no_udp")
        elif is_address(peer.host):
            self._send_datagram(data, peer.host, peer.port)
        elif len(self._tasks) >= MAX_LOOKUPS:
            self._above.count("sip_lookups_full")  # it is repeated
        else:
            self.start(self._look_up_and_send(data, peer))

    async def _look_up_and_send(self, data: bytes, peer: Peer) -> None:
        try:
            address = await resolve(peer.host, peer.port, self._family)
        except OSError:
            self._above.count("sip_lookup_failed")
            return
        self._send_datagram(data, address, peer.port)

    def _send_datagram(self, data: bytes, host: str, port: int) -> None:
        """What a peer says of itself may be an address that this socket cannot reach at all."""
        if self._udp is None or self._udp.is_closing():
            return
        if self._family == socket.AF_INET6 and ":" not in host:
            host = f"::ffff:{host}"
        try:
            self._udp.sendto(data, (host, port))
        except (OSError, ValueError):
            self._above.count("sip_socket_errors")

    @property
    def _family(self) -> int:
        assert self._udp is not None
        return int(self._udp.get_extra_info("socket").family)

    async def _open(self, key: Opened, opening: _Opening) -> None:
        transport, host, port = key
        tls = self._tls_client if transport == "tls" else None
        try:
            if transport == "tls" and tls is None:
                raise OSError("TLS is off")  # what is meant to be secret does not go in clear
            async with asyncio.timeout(CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self, transport, key), host, port, ssl=tls
                )
        except (OSError, TimeoutError, ValueError):  # the last: a name that cannot be one
            self._above.count("sip_connect_failed")
            del self._opened[key]
            self._above.unreachable(lambda peer: peer.flow not in self._connections and _reached_by(peer) == key)
            return
        self._opened[key] = connection
        for data in opening.waiting:
            connection.send(data)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="sip socket")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def admit(self, connection: Connection) -> bool:
        """A connection that came up. Ours are not counted against a source."""
        if connection.opened_as is None and not self._has_room(connection.peer.host):
            self._above.count("sip_connections_refused")
            return False
        self._by_source[source_of(connection.peer.host)] += 1
        self._connections[connection.flow] = connection
        return True

    def _has_room(self, host: str) -> bool:
        """A quarter of all is for those who are known, whatever strangers do."""
        trusted = self._above.trusts(host)
        if self._by_source[source_of(host)] >= MAX_PER_SOURCE and not trusted:
            return False
        known = trusted or self._above.keeps(host)
        room = self._max_connections - (0 if known else self._max_connections // STRANGERS_LEAVE)
        return len(self._connections) < room and self._above.takes(host)

    def gone(self, connection: Connection) -> None:
        if self._connections.pop(connection.flow, None) is None:
            return
        source = source_of(connection.peer.host)
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]
        key = connection.opened_as
        if key is not None and self._opened.get(key) is connection:
            del self._opened[key]
        if not self._closed:
            self._above.unreachable(
                lambda peer: peer.flow == connection.flow or (key is not None and _reached_by(peer) == key)
            )

    def address_of(self, peer: Peer) -> str:
        """Where a peer that we call by its name was found, once we are connected to it."""
        connection = self._opened.get(_reached_by(peer))
        return connection.peer.host if isinstance(connection, Connection) else peer.host

    def next_flow(self) -> int:
        return next(self._flows)

    @property
    def above(self) -> Above:
        return self._above

    async def close(self) -> None:
        self._closed = True
        for listener in self._listeners:
            listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections.values()):
            connection.close()
        if self._udp is not None:
            self._udp.close()
        await asyncio.sleep(0)
        for connection in list(self._connections.values()):
            connection.abort()
        for _ in range(3):
            await asyncio.sleep(0)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, above: Above) -> None:
        self._above = above

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if not self._above.takes(addr[0], len(data)):
            self._above.count("sip_over_rate")
        elif len(data) <= 4:
            pass  # a ping of a peer behind NAT
        else:
            self._above.receive(data, Peer("udp", addr[0], addr[1]))

    def error_received(self, exc: Exception) -> None:
        self._above.count("sip_socket_errors")


class _Opening:
    """A connection that is being opened: what is to be sent by it waits, no more than it might hold."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self._bytes = 0

    def send(self, data: bytes) -> None:
        if self._bytes + len(data) <= MAX_UNSENT_BYTES:
            self._bytes += len(data)
            self.waiting.append(data)


def _reached_by(peer: Peer) -> Opened:
    host, port = peer.otherwise or (peer.host, peer.port)
    return peer.transport, host, port


async def resolve(host: str, port: int, family: int = 0) -> str:
    """The first of :func:`addresses_of`."""
    return (await addresses_of(host, port, family))[0]


async def addresses_of(host: str, port: int, family: int = 0) -> list[str]:
    """All addresses of a host. Raises :class:`OSError`: none, or not in time."""
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM)
    except TimeoutError:
        raise OSError("no answer in time") from None
    except UnicodeError:
        raise OSError("that cannot be a name") from None
    return [str(address[0]) for *_, address in found]
