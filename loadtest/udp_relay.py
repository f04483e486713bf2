"""A UDP relay that is a bad network: loss, bursts of it, delay, jitter, reordering and duplicates, by seed.

Each direction is a :class:`Path`, sans-IO and deterministic: what becomes of its n-th packet is a function of the seed
and n alone, whatever the clock does. Media (RTP) and the rest (STUN, DTLS, RTCP) count apart, and only media is
impaired unless one asks for more: a set-up then works as ever, and the n-th RTP packet meets the same fate every time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Address = tuple[str, int]

MAX_QUEUED = 1_000
"""Packets under way in one direction; more are dropped and counted."""


class Loss(Protocol):
    """Tells for one packet after another whether it is lost."""

    def lost(self, chance: random.Random) -> bool: ...


@dataclass(slots=True)
class RandomLoss:
    """Each packet by itself, with ``probability``."""

    probability: float

    def lost(self, chance: random.Random) -> bool:
        return chance.random() < self.probability


@dataclass(slots=True)
class BurstLoss:
    """Gilbert-Elliott: a good state and a bad one (E. O. Elliott, "Estimates of error rates for codes on burst-noise
    channels", 1963). Before each packet the state changes with ``to_bad`` or ``to_good``; it is then lost with
    ``loss_bad`` or ``loss_good``. Mean burst: 1 / ``to_good`` packets."""

    to_bad: float
    to_good: float
    loss_bad: float = 1.0
    loss_good: float = 0.0
    bad: bool = False

    def lost(self, chance: random.Random) -> bool:
        self.bad ^= chance.random() < (self.to_good if self.bad else self.to_bad)
        return chance.random() < (self.loss_bad if self.bad else self.loss_good)


@dataclass(frozen=True, slots=True)
class Impairment:
    """What a direction does to packets. ``jitter_ms`` is the most that is added to ``delay_ms``, evenly spread; it
    keeps the order. ``reorder`` is the share of packets that is held back by ``reorder_ms`` more while others pass.
    ``loss`` makes a fresh model for each path, as some have a state."""

    loss: Callable[[], Loss] | None = None
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    reorder: float = 0.0
    reorder_ms: float = 30.0
    duplicate: float = 0.0
    media_only: bool = True


@dataclass(slots=True)
class PathCounts:
    """Packets. ``media`` and ``other`` came in; of those, what became of them."""

    media: int = 0
    other: int = 0
    lost: int = 0
    delivered: int = 0
    duplicated: int = 0
    reordered: int = 0
    overflowed: int = 0
    unroutable: int = 0


def is_media(packet: bytes) -> bool:
    """RTP, by its first two bytes: not STUN, DTLS or RTCP (RFC 7983; RFC 5761 section 4)."""
    return len(packet) >= 12 and 128 <= packet[0] <= 191 and not 192 <= packet[1] <= 223


class Path:
    """One direction."""

    def __init__(self, impairment: Impairment, seed: int) -> None:
        self.counts = PathCounts()
        self._impairment = impairment
        self._chance = random.Random(seed)
        self._loss = impairment.loss() if impairment.loss is not None else None
        self._last_s = 0.0
        self._queue: list[tuple[float, int, bytes]] = []
        self._number = itertools.count()

    @property
    def next_s(self) -> float | None:
        """When the next packet is due."""
        return self._queue[0][0] if self._queue else None

    def put(self, packet: bytes, now_s: float) -> None:
        """A packet comes in."""
        media = is_media(packet)
        self.counts.media += media
        self.counts.other += not media
        how = self._impairment
        if not media and how.media_only:
            self._queue_at(packet, now_s)
            return
        chance = self._chance
        lost = self._loss is not None and self._loss.lost(chance)
        # Drawn for every packet, lost or not: one setting then leaves the others' dice as they were.
        jitter_ms, holds, doubles = chance.random() * how.jitter_ms, chance.random(), chance.random()
        if lost:
            self.counts.lost += 1
            return
        due_s = now_s + (how.delay_ms + jitter_ms) / 1000
        if holds < how.reorder:
            self.counts.reordered += 1
            due_s += how.reorder_ms / 1000
        else:
            due_s = self._last_s = max(due_s, self._last_s)
        self._queue_at(packet, due_s)
        if doubles < how.duplicate:
            self.counts.duplicated += 1
            self._queue_at(packet, due_s)

    def take(self, now_s: float) -> list[bytes]:
        """The packets that are due by ``now_s``, in the order in which they arrive."""
        due: list[bytes] = []
        while self._queue and self._queue[0][0] <= now_s:
            due.append(heapq.heappop(self._queue)[2])
        self.counts.delivered += len(due)
        return due

    def _queue_at(self, packet: bytes, due_s: float) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self.counts.overflowed += 1
            return
        heapq.heappush(self._queue, (due_s, next(self._number), packet))


class UdpRelay:
    """Between one client and one server. The client sends to :attr:`address`; the server sees :attr:`server_side`.

    Use :meth:`open`, and :meth:`close` at the end: what is still under way is lost then.
    """

    def __init__(self, server: Address | None, up: Path, down: Path) -> None:
        self.up = up
        self.down = down
        self._server = server
        self._client: Address | None = None
        self._near: asyncio.DatagramTransport | None = None
        self._far: asyncio.DatagramTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._timers: dict[Path, asyncio.TimerHandle] = {}

    @classmethod
    async def open(
        cls,
        server: Address | None,
        *,
        up: Impairment | None = None,
        down: Impairment | None = None,
        seed: int = 0,
        host: str = "127.0.0.1",
    ) -> UdpRelay:
        """Relay between ``server`` and whoever sends to the relay first, or between those that :meth:`join` names
        later. ``up`` is the client's way to the server. ``host`` is the address of ours that both reach.

        Raises :class:`OSError`.
        """
        relay = cls(server, Path(up or Impairment(), 2 * seed), Path(down or Impairment(), 2 * seed + 1))
        try:
            relay._near = await _socket(relay._from_client, host)
            relay._far = await _socket(relay._from_server, host)
        except BaseException:
            relay.close()
            raise
        return relay

    @property
    def address(self) -> Address:
        """Where the client sends to."""
        return _name(self._near)

    @property
    def server_side(self) -> Address:
        """Where the server sees the client."""
        return _name(self._far)

    def join(self, *, client: Address | None = None, server: Address | None = None) -> None:
        """From now on these are the ends."""
        self._client = client or self._client
        self._server = server or self._server

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for transport in (self._near, self._far):
            if transport is not None:
                transport.close()

    def _from_client(self, packet: bytes, source: Address) -> None:
        if self._client is None:
            self._client = source
        if source != self._client or self._server is None:
            self.up.counts.unroutable += 1
            return
        self._put(self.up, packet)

    def _from_server(self, packet: bytes, source: Address) -> None:
        if source != self._server or self._client is None:
            self.down.counts.unroutable += 1
            return
        self._put(self.down, packet)

    def _put(self, path: Path, packet: bytes) -> None:
        path.put(packet, self._loop.time())
        self._deliver(path)

    def _deliver(self, path: Path) -> None:
        """Send what is due, and set the timer for what is not. Early by as much as a clock ticks is not early."""
        transport, target = (self._far, self._server) if path is self.up else (self._near, self._client)
        assert transport is not None
        assert target is not None
        for packet in path.take(self._loop.time() + 1e-4):
            transport.sendto(packet, target)
        timer = self._timers.pop(path, None)
        if timer is not None:
            timer.cancel()
        if path.next_s is not None:
            self._timers[path] = self._loop.call_at(path.next_s, self._deliver, path)


class _Endpoint(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes, Address], None]) -> None:
        self._received = received

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._received(data, addr[:2])


async def _socket(received: Callable[[bytes, Address], None], host: str) -> asyncio.DatagramTransport:
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Endpoint(received), local_addr=(host, 0)
    )
    return transport


def _name(transport: asyncio.DatagramTransport | None) -> Address:
    if transport is None:
        raise RuntimeError("the relay is not open")
    host, port = transport.get_extra_info("sockname")[:2]
    return str(host), int(port)


class RelayRoute:
    """Puts a relay into a WebRTC call (:class:`loadtest.call.MediaRoute`).

    The server is told no address of the caller, so it can only answer where checks come from: the relay. The caller is
    told no address of the server but the relay's. ICE could learn others only from packets, and none pass elsewhere.
    """

    def __init__(self, *, up: Impairment | None = None, down: Impairment | None = None, seed: int = 0) -> None:
        self._up = up
        self._down = down
        self._seed = seed
        self._relay: UdpRelay | None = None

    @property
    def opened(self) -> UdpRelay | None:
        """The call's relay, once its answer came."""
        return self._relay

    @property
    def relay(self) -> UdpRelay:
        """As :attr:`opened`, of a call that was answered."""
        if self._relay is None:
            raise RuntimeError("no call has been answered yet")
        return self._relay

    def offer(self, sdp: str) -> str:
        return _joined(line for line in sdp.splitlines() if not line.startswith(_CANDIDATE_LINES))

    async def answer(self, sdp: str) -> str:
        """Opens the relay to the server's first UDP address, on loopback if it has one there.

        Raises :class:`ValueError` if the answer has none.
        """
        lines = sdp.splitlines()
        server = _first_candidate(lines)
        self._relay = await UdpRelay.open(
            server, up=self._up, down=self._down, seed=self._seed, host=address_towards(server)
        )
        host, port = self._relay.address
        kept: list[str] = []
        for line in lines:
            if line.startswith(_CANDIDATE_LINES):
                continue
            kept.append(line)
            if line.startswith("a=ice-pwd:"):
                kept += [f"a=candidate:1 1 udp 2130706431 {host} {port} typ host", "a=end-of-candidates"]
        return _joined(kept)

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()


class RtpRelay:
    """Puts a relay into a SIP call (:class:`loadtest.call.RtpRoute`): each end is told the relay's address in place of
    the other's. Use :meth:`open`, and :meth:`close` at the end."""

    def __init__(self, relay: UdpRelay) -> None:
        self.relay = relay

    @classmethod
    async def open(
        cls, server: Address, *, up: Impairment | None = None, down: Impairment | None = None, seed: int = 0
    ) -> RtpRelay:
        """``server`` is where it is called: its media is expected to be reached the same way. Raises
        :class:`OSError`."""
        return cls(await UdpRelay.open(None, up=up, down=down, seed=seed, host=address_towards(server)))

    def ours(self, address: Address) -> Address:
        """What to tell the server of where the caller's RTP goes."""
        self.relay.join(client=address)
        return self.relay.server_side

    def theirs(self, address: Address) -> Address:
        """Where the caller sends its RTP for the server."""
        self.relay.join(server=address)
        return self.relay.address

    def close(self) -> None:
        self.relay.close()


def address_towards(server: Address) -> str:
    """The address of this machine that a server sees; no packet is sent for it. Raises :class:`OSError`."""
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(server)
        return str(probe.getsockname()[0])


_CANDIDATE_LINES = ("a=candidate:", "a=end-of-candidates")


def _joined(lines: Any) -> str:
    return "".join(f"{line}\r\n" for line in lines)


def _first_candidate(lines: list[str]) -> Address:
    found: list[Address] = []
    for line in lines:
        words = line.split()
        if line.startswith("a=candidate:") and len(words) >= 8 and words[2].lower() == "udp" and ":" not in words[4]:
            found.append((words[4], int(words[5])))
    if not found:
        raise ValueError("the answer names no UDP address")
    return next((address for address in found if address[0].startswith("127.")), found[0])
