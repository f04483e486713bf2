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
from gateway.transports.sip.framing import Framer
from gateway.transports.sip.message import Malformed
from gateway.transports.sip.transaction import Peer, TransportName

_log = structlog.get_logger(__name__)

CONNECT_S = 5.0
PARTIAL_S = 10.0
"""For the rest of a message that has begun, and for the first one of a connection."""
IDLE_S = 180.0
"""A stranger's connection without a word, not even a ping. One that a call may need stays."""
MAX_UNSENT_BYTES = 256 * 1024
MAX_PER_SOURCE = 32
"""Connections of one address that has no call and needs a password, if any."""
MAX_LOOKUPS = 64
PORT_TRIES = 16
PING = b"\r\n\r\n"


class Above(Protocol):
    """What the messages are for. None of these block, none raise."""

    def takes(self, host: str) -> bool:
        """Whether one more message of this source is looked at."""

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
        self._servers: list[asyncio.Server] = []
        self._flows = itertools.count(1)
        self._connections: dict[int, _Connection] = {}
        self._opened: dict[tuple[TransportName, str, int], _Connection | _Opening] = {}
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
        name: TransportName = "tls" if tls is not None else "tcp"
        loop = asyncio.get_running_loop()
        handshake_s = CONNECT_S if tls is not None else None
        server = await loop.create_server(
            lambda: _Connection(self, name), host, port, ssl=tls, ssl_handshake_timeout=handshake_s
        )
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        self.ports[name] = bound
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
            self._start(self._open(key, connection))
        connection.send(data)

    def _send_udp(self, data: bytes, peer: Peer) -> None:
        if self._udp is None:
            self._above.count("sip_no_udp")
        elif is_address(peer.host):
            self._send_datagram(data, peer.host, peer.port)
        elif len(self._tasks) >= MAX_LOOKUPS:
            self._above.count("sip_lookups_full")  # it is repeated
        else:
            self._start(self._look_up_and_send(data, peer))

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

    async def _open(self, key: tuple[TransportName, str, int], opening: _Opening) -> None:
        transport, host, port = key
        tls = self._tls_client if transport == "tls" else None
        try:
            if transport == "tls" and tls is None:
                raise OSError("TLS is off")  # what is meant to be secret does not go in clear
            async with asyncio.timeout(CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self, transport, key), host, port, ssl=tls
                )
        except (OSError, TimeoutError, ValueError):  # the last: a name that cannot be one
            self._above.count("sip_connect_failed")
            del self._opened[key]
            self._above.unreachable(lambda peer: peer.flow not in self._connections and _reached_by(peer) == key)
            return
        self._opened[key] = connection
        for data in opening.waiting:
            connection.send(data)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="sip socket")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def admit(self, connection: _Connection) -> bool:
        """A connection that came up. Ours are not counted against a source."""
        source = source_of(connection.peer.host)
        if connection.opened_as is None:
            crowded = self._by_source[source] >= MAX_PER_SOURCE and not self._above.trusts(connection.peer.host)
            if crowded or len(self._connections) >= self._max_connections:
                self._above.count("sip_connections_refused")
                return False
        self._by_source[source] += 1
        self._connections[connection.flow] = connection
        return True

    def gone(self, connection: _Connection) -> None:
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

    def next_flow(self) -> int:
        return next(self._flows)

    @property
    def above(self) -> Above:
        return self._above

    async def close(self) -> None:
        self._closed = True
        for server in self._servers:
            server.close()
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
        if not self._above.takes(addr[0]):
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


class _Connection(asyncio.Protocol):
    """One TCP or TLS connection. ``opened_as``: where we connected to; None: the peer connected to us."""

    def __init__(
        self, sockets: Sockets, name: TransportName, opened_as: tuple[TransportName, str, int] | None = None
    ) -> None:
        self.flow = sockets.next_flow()
        self.opened_as = opened_as
        self.peer: Peer
        self._sockets = sockets
        self._name = name
        self._framer = Framer()
        self._pings = 0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        address = transport.get_extra_info("peername") or ("", 0)
        self.peer = Peer(self._name, address[0], address[1], flow=self.flow)
        if not self._sockets.admit(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(high=MAX_UNSENT_BYTES)
        self._expect(PARTIAL_S if self.opened_as is None else IDLE_S)

    def data_received(self, data: bytes) -> None:
        above = self._sockets.above
        try:
            messages = self._framer.feed(data)
        except Malformed:
            above.count("sip_malformed")
            self.abort()
            return
        for message in messages:
            if self._transport.is_closing():
                return
            if above.takes(self.peer.host):
                above.receive(message, self.peer)
            else:
                above.count("sip_over_rate")
        if self._framer.pings > self._pings:
            self._pings = self._framer.pings
            self.send(b"\r\n")
        self._expect(PARTIAL_S if self._framer.partial else IDLE_S, again=not self._framer.partial or bool(messages))

    def send(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._sockets.above.count("sip_peer_not_reading")
            self.abort()
            return
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._sockets.gone(self)

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _expect(self, within_s: float, *, again: bool = True) -> None:
        """Cut the connection if nothing comes ``within_s``; not ``again``: the time that runs already holds."""
        if self._timer is not None:
            if not again and self._expects_rest:
                return
            self._timer.cancel()
        self._expects_rest = within_s == PARTIAL_S
        self._timer = asyncio.get_running_loop().call_later(within_s, self._nothing_came)

    def _nothing_came(self) -> None:
        if not self._expects_rest and self._sockets.above.keeps(self.peer.host):
            self._expect(IDLE_S)
        else:
            self.abort()

    _expects_rest = False


def _reached_by(peer: Peer) -> tuple[TransportName, str, int]:
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
