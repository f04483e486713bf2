"""The two UDP ports of one call's media, without a transport or a task between the socket and the call."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import random
import socket
from collections.abc import Callable

from gateway.transports.sip.address import is_address

Source = tuple[str, int]

MAX_DATAGRAM_BYTES = 1500
"""A longer one is no RTP of speech (and would not come whole through most networks): it is counted and dropped."""
_READ_BYTES = MAX_DATAGRAM_BYTES + 1
_TRIES = 32
MOST_TRIED = 128
"""Of a range, before it is taken for full: a few milliseconds."""
ANYWHERE = "192.0.2.1"
"""An address beyond every router (RFC 5737), for the way that most packets leave by."""
_EXPEDITED = 0xB8
"""DSCP EF: what networks that tell traffic apart expect of voice (RFC 4594, section 4.1)."""


class PortsExhausted(Exception):  # noqa: N818 (an answer: 503)
    """No pair of ports of the range is free."""


def bind_pair(ip: str, ports: tuple[int, int] | None, rng: random.Random) -> tuple[socket.socket, socket.socket]:
    """RTP's socket at an even port, RTCP's above it, both not blocking. ``ports``: the first and the last; None: any.

    Raises :class:`PortsExhausted`, and :class:`OSError` if the address is none of this machine's. Which of the range is
    chance: packets of the call that had the port before find nobody. Of a large range not all are tried, for the calls
    that are up wait meanwhile: when nine in ten are taken, one in 700,000 calls finds none.
    """
    if ports is None:
        candidates = [0] * _TRIES
    else:
        pairs = range(ports[0] + ports[0] % 2, ports[1], 2)
        candidates = rng.sample(pairs, min(len(pairs), MOST_TRIED))
    for port in candidates:
        pair = _bind_two(ip, port)
        if pair is not None:
            return pair
    raise PortsExhausted("no two UDP ports in a row are free")


def _bind_two(ip: str, port: int) -> tuple[socket.socket, socket.socket] | None:
    first = second = None
    try:
        first = _bound(ip, port)
        number = first.getsockname()[1]
        if number % 2 == 0:
            second = _bound(ip, number + 1)
            return first, second
    except OSError as error:
        if first is None and error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
    if first is not None:
        first.close()
    return None


def _bound(ip: str, port: int) -> socket.socket:
    version = ipaddress.ip_address(ip).version
    made = socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        with contextlib.suppress(OSError):  # a wish
            if version == 6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _EXPEDITED)
            else:
                made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _EXPEDITED)
        made.bind((ip, port))
    except BaseException:
        made.close()
        raise
    return made


def route_to(host: str) -> str:
    """Which of this machine's addresses packets to an address leave from. Empty: there is no way to it. A name is not
    looked up, which would hold up every call: it is taken for somewhere out there."""
    ip = host if is_address(host) else ANYWHERE
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ip, 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return ""


class RtpSocket:
    """Both sockets on the loop. ``on_rtp`` and ``on_rtcp`` take a datagram and where it came from; they must not
    raise."""

    def __init__(
        self,
        pair: tuple[socket.socket, socket.socket],
        on_rtp: Callable[[bytes, Source], None],
        on_rtcp: Callable[[bytes, Source], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._rtp, self._rtcp = pair
        self.port: int = self._rtp.getsockname()[1]
        self.oversize = 0
        self.unsent = 0
        """Datagrams that the system did not take: its buffer was full, or there is no way to the address."""
        self._closed = False
        self._loop.add_reader(self._rtp, self._read, self._rtp, on_rtp)
        self._loop.add_reader(self._rtcp, self._read, self._rtcp, on_rtcp)

    def send_rtp(self, data: bytes, to: Source) -> None:
        try:
            self._rtp.sendto(data, to)
        except OSError:
            self.unsent += 1

    def send_rtcp(self, data: bytes, to: Source) -> None:
        try:
            self._rtcp.sendto(data, to)
        except OSError:
            self.unsent += 1

    def close(self) -> None:
        """Twice is fine."""
        if self._closed:
            return
        self._closed = True
        for one in (self._rtp, self._rtcp):
            self._loop.remove_reader(one)
            one.close()

    def _read(self, one: socket.socket, take: Callable[[bytes, Source], None]) -> None:
        """One datagram: the loop comes back for the next, after the other calls had their turn."""
        try:
            data, source = one.recvfrom(_READ_BYTES)
        except OSError:  # nothing there after all, or a port of the far end is closed (ICMP): the next read goes on
            return
        if len(data) > MAX_DATAGRAM_BYTES:
            self.oversize += 1
        else:
            take(data, source[:2])
