"""A bad network in the way of one call: RTP through a UDP relay, TCP through one that holds and bursts.

What is impaired depends on what carries the call: packets of SIP and WebRTC are lost, delayed and reordered; a
WebSocket's or AudioSocket's connection, on which nothing is lost, stalls. The relays run on the callers' own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from loadtest.address import CallAddress
from loadtest.call import Transport
from loadtest.phone_address import sip_address
from loadtest.tcp_hold import Stalls, TcpHold
from loadtest.udp_relay import Address, BurstLoss, Impairment, Loss, RandomLoss, RelayRoute, RtpRelay

_STREAMS = (Transport.WEBSOCKET, Transport.TWILIO, Transport.AUDIOSOCKET)
"""Transports on which nothing is lost."""

_PORTS = {"ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class PacketFate:
    """What becomes of the packets of one direction. ``loss`` is the share that is lost, one by one or (``burst``) in
    bursts of so many packets on average; the rest as in :class:`~loadtest.udp_relay.Impairment`."""

    loss: float = 0.0
    burst: float | None = None
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    reorder: float = 0.0
    reorder_ms: float = 30.0
    duplicate: float = 0.0

    def impairment(self) -> Impairment:
        return Impairment(
            self._loss if self.loss else None,
            self.delay_ms,
            self.jitter_ms,
            self.reorder,
            self.reorder_ms,
            self.duplicate,
        )

    def _loss(self) -> Loss:
        if self.burst is None:
            return RandomLoss(self.loss)
        to_good = 1 / self.burst
        return BurstLoss(min(1.0, self.loss * to_good / (1 - self.loss)), to_good)


@dataclass(frozen=True, slots=True)
class Network:
    """``up`` is the caller's way to the server."""

    up: PacketFate
    down: PacketFate
    stalls: Stalls | None


class CallNetwork:
    """One call's. What is not None goes into the call's plan (:class:`~loadtest.call.CallPlan`): ``via`` is where the
    connection is made to in place of the server, ``route`` is WebRTC's, ``rtp_route`` SIP's."""

    def __init__(
        self, hold: TcpHold | None = None, route: RelayRoute | None = None, rtp_route: RtpRelay | None = None
    ) -> None:
        self.via: Address | None = hold.address if hold is not None else None
        self.route = route
        self.rtp_route = rtp_route
        self._hold = hold

    def counts(self) -> dict[str, int]:
        """What it did, by name; of packets, in both directions together."""
        if self._hold is not None:
            return asdict(self._hold.counts)
        relay = self.rtp_route.relay if self.rtp_route is not None else None
        if self.route is not None:
            relay = self.route.opened
        if relay is None:
            return {}
        up, down = asdict(relay.up.counts), asdict(relay.down.counts)
        return {name: up[name] + down[name] for name in up}


@contextlib.asynccontextmanager
async def call_network(network: Network | None, address: CallAddress, seed: int) -> AsyncIterator[CallNetwork]:
    """The network of one call, by its own seed, while the block runs; one that does nothing where none is wanted.
    Raises :class:`OSError` where the server's name is not known, or there is no socket left."""
    if network is None or (address.transport in _STREAMS and network.stalls is None):
        yield CallNetwork()
        return
    up, down = network.up.impairment(), network.down.impairment()
    if address.transport is Transport.WEBRTC:
        route = RelayRoute(up=up, down=down, seed=seed)
        with contextlib.closing(route):
            yield CallNetwork(route=route)
        return
    server = await _server(address)
    if network.stalls is None or address.transport not in _STREAMS:
        with contextlib.closing(await RtpRelay.open(server, up=up, down=down, seed=seed)) as relay:
            yield CallNetwork(rtp_route=relay)
        return
    hold = await TcpHold.open(server, network.stalls, seed=seed)
    try:
        yield CallNetwork(hold)
    finally:
        await hold.close()


async def _server(address: CallAddress) -> Address:
    """By number: the relays take no names."""
    if address.transport is Transport.SIP:
        called = sip_address(address.url, None)
        host, port = called.host, called.port
    else:
        parts = urlsplit(address.url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    resolved = found[0][4]
    return str(resolved[0]), int(resolved[1])
