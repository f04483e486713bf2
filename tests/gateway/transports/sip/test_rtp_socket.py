"""Real ports on loopback."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from gateway.transports.sip import rtp_socket as module
from gateway.transports.sip.media import RtpMedia
from gateway.transports.sip.media_policy import RtpPolicy
from gateway.transports.sip.rtp_socket import (
    ANYWHERE,
    MAX_DATAGRAM_BYTES,
    MOST_TRIED,
    PortsExhausted,
    RtpSocket,
    Source,
    bind_pair,
    route_to,
)
from tests.gateway.transports.sip.media_rig import Told

LOOPBACK = "127.0.0.1"
RNG = random.Random(1)


def free_range(pairs: int) -> tuple[int, int]:
    """A range that holds so many pairs, free a moment ago."""
    for first in range(42_000, 60_000, 2 * pairs):
        held: list[socket.socket] = []
        try:
            for port in range(first, first + 2 * pairs):
                held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                held[-1].bind((LOOPBACK, port))
        except OSError:
            continue
        else:
            return first, first + 2 * pairs - 1
        finally:
            for one in held:
                one.close()
    raise AssertionError("no ports are free")


def close(*pairs: tuple[socket.socket, socket.socket]) -> None:
    for pair in pairs:
        for one in pair:
            one.close()


def test_ports_come_in_pairs_and_run_out() -> None:
    ports = free_range(3)
    pairs = [bind_pair(LOOPBACK, ports, RNG) for _ in range(3)]
    numbers = [(rtp.getsockname()[1], rtcp.getsockname()[1]) for rtp, rtcp in pairs]
    assert sorted(number for pair in numbers for number in pair) == list(range(ports[0], ports[1] + 1))
    assert all(rtp % 2 == 0 and rtcp == rtp + 1 for rtp, rtcp in numbers)
    with pytest.raises(PortsExhausted):
        bind_pair(LOOPBACK, ports, RNG)
    close(pairs[1])
    again = bind_pair(LOOPBACK, ports, RNG)
    assert again[0].getsockname()[1] == numbers[1][0]
    close(pairs[0], pairs[2], again)


def test_a_range_that_is_full_is_not_tried_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(module, "_bind_two", lambda ip, port: tried.append(port))
    with pytest.raises(PortsExhausted):
        bind_pair(LOOPBACK, (20_000, 39_999), RNG)
    assert len(tried) == len(set(tried)) == MOST_TRIED
    assert all(20_000 <= port < 39_999 and port % 2 == 0 for port in tried)


def test_an_odd_range_holds_its_even_pairs_only() -> None:
    first, _ = free_range(2)
    pair = bind_pair(LOOPBACK, (first + 1, first + 3), RNG)
    assert pair[0].getsockname()[1] == first + 2
    close(pair)
    with pytest.raises(PortsExhausted):
        bind_pair(LOOPBACK, (first + 1, first + 2), RNG)


def test_any_port_and_no_such_address() -> None:
    pair = bind_pair(LOOPBACK, None, RNG)
    assert pair[1].getsockname()[1] == pair[0].getsockname()[1] + 1
    close(pair)
    with pytest.raises(OSError, match="assign"):
        bind_pair("192.0.2.1", None, RNG)


def test_ports_over_ipv6() -> None:
    try:
        pair = bind_pair("::1", None, RNG)
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert pair[0].family == socket.AF_INET6
    close(pair)


def test_which_address_a_peer_can_reach() -> None:
    assert route_to(LOOPBACK) == LOOPBACK
    assert route_to("255.255.255.255") == "", "permission is denied: there is no way"


def test_a_name_is_never_looked_up_here() -> None:
    assert route_to("localhost") == route_to(ANYWHERE)  # a look-up would hold up the loop, and find 127.0.0.1


async def test_datagrams_both_ways_and_none_after_the_end() -> None:
    came: asyncio.Queue[tuple[str, bytes, Source]] = asyncio.Queue()
    ours = RtpSocket(
        bind_pair(LOOPBACK, None, RNG),
        lambda data, source: came.put_nowait(("rtp", data, source)),
        lambda data, source: came.put_nowait(("rtcp", data, source)),
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind((LOOPBACK, 0))
        peer.settimeout(5.0)
        peer.sendto(b"voice", (LOOPBACK, ours.port))
        assert await asyncio.wait_for(came.get(), 5.0) == ("rtp", b"voice", peer.getsockname())
        peer.sendto(bytes(MAX_DATAGRAM_BYTES + 1), (LOOPBACK, ours.port + 1))
        peer.sendto(b"report", (LOOPBACK, ours.port + 1))
        assert (await asyncio.wait_for(came.get(), 5.0))[:2] == ("rtcp", b"report")
        assert ours.oversize == 1
        ours.send_rtp(b"a", peer.getsockname())
        assert peer.recvfrom(10) == (b"a", (LOOPBACK, ours.port))
        ours.send_rtcp(b"b", peer.getsockname())
        assert peer.recvfrom(10) == (b"b", (LOOPBACK, ours.port + 1))
        where = peer.getsockname()
    ours.send_rtp(b"to nobody", where)
    await asyncio.sleep(0)
    ours.send_rtp(b"?", (LOOPBACK, 0))
    ours.send_rtcp(bytes(70_000), where)
    assert ours.unsent >= 2
    ours.close()
    ours.close()
    ours.send_rtp(b"a", where)


async def test_a_read_that_brings_nothing_is_none() -> None:
    ours = RtpSocket(bind_pair(LOOPBACK, None, RNG), lambda data, source: None, lambda data, source: None)
    ours._read(ours._rtp, lambda data, source: pytest.fail("there is nothing"))
    ours.close()


async def test_media_on_real_ports() -> None:
    told = Told()
    ports = free_range(5)
    policy = RtpPolicy(bind_ip=LOOPBACK, ports=ports, advertised_ip="203.0.113.5", codecs=("pcmu",))
    media = await RtpMedia.open(policy, told)
    offer = media.offer()
    assert "c=IN IP4 203.0.113.5\r\n" in offer
    assert ports[0] <= media.port <= ports[1]
    assert f"m=audio {media.port} RTP/AVP 0 101\r\n" in offer
    peer = await RtpMedia.open(RtpPolicy(codecs=("pcmu",)), Told(), peer_ip=LOOPBACK)
    media.accept(peer.answer(offer.replace("203.0.113.5", LOOPBACK)))
    async with asyncio.timeout(5.0):
        while not told.blocks:  # noqa: ASYNC110 (a real network has no event for it)
            await asyncio.sleep(0.005)
    await media.close()
    await peer.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind((LOOPBACK, media.port))
