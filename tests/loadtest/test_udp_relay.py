from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable, Sequence

import pytest

from loadtest import udp_relay
from loadtest.udp_relay import BurstLoss, Impairment, Path, RandomLoss, RelayRoute, UdpRelay, is_media

STUN = b"\x00\x01" + bytes(18)
DTLS = b"\x16\xfe\xfd" + bytes(20)
RTCP = b"\x80\xc8" + bytes(26)


def rtp(number: int) -> bytes:
    return struct.pack("!BBHII", 0x80, 111, number, number * 960, 1) + b"payload"


def carried(path: Path, count: int = 200, interval_s: float = 0.02) -> list[tuple[int, float]]:
    """Number and delay in ms of the packets that arrive, in the order in which they do."""
    arrived: list[tuple[int, float]] = []

    def take(until_s: float) -> None:
        while path.next_s is not None and path.next_s <= until_s:
            now_s = path.next_s
            for packet in path.take(now_s):
                number = int.from_bytes(packet[2:4], "big")
                arrived.append((number, (now_s - number * interval_s) * 1000))

    for number in range(count):
        take(number * interval_s)
        path.put(rtp(number), number * interval_s)
    take(1e9)
    return arrived


def test_a_good_network_changes_nothing() -> None:
    path = Path(Impairment(), seed=1)
    assert [number for number, delay_ms in carried(path, 5) if delay_ms < 1e-6] == list(range(5))
    assert path.counts == udp_relay.PathCounts(media=5, delivered=5)


@pytest.mark.parametrize("loss", [lambda: RandomLoss(0.05), lambda: BurstLoss(0.02, 0.3)])
def test_the_same_seed_loses_the_same_packets(loss: Callable[[], udp_relay.Loss]) -> None:
    same = [[number for number, _ in carried(Path(Impairment(loss=loss), seed=7))] for _ in range(2)]
    assert same[0] == same[1]
    assert 0 < 200 - len(same[0]) < 60
    assert same[0] != [number for number, _ in carried(Path(Impairment(loss=loss), seed=8))]


def test_what_is_no_media_is_let_through_and_costs_no_dice() -> None:
    how = Impairment(loss=lambda: RandomLoss(0.3), delay_ms=100)
    alone, mixed = Path(how, seed=3), Path(how, seed=3)
    fates = [number for number, _ in carried(alone, 50)]
    delivered: list[bytes] = []
    for number in range(50):
        for packet in (STUN, rtp(number), DTLS, RTCP):
            mixed.put(packet, 0.0)
    delivered = mixed.take(0.2)
    assert [delivered.count(packet) for packet in (STUN, DTLS, RTCP)] == [50, 50, 50]
    assert [int.from_bytes(packet[2:4], "big") for packet in delivered if is_media(packet)] == fates
    assert mixed.counts.other == 150
    assert mixed.counts.lost == 50 - len(fates)


def test_all_may_be_lost_if_one_asks_for_it() -> None:
    path = Path(Impairment(loss=lambda: RandomLoss(1.0), media_only=False), seed=1)
    path.put(STUN, 0.0)
    assert (path.take(1.0), path.counts.lost) == ([], 1)


def test_bursts_are_longer_than_chance_makes_them() -> None:
    def bursts(loss: Callable[[], udp_relay.Loss]) -> tuple[float, float]:
        arrived = {number for number, _ in carried(Path(Impairment(loss=loss), seed=5), 20_000)}
        fates = [number not in arrived for number in range(20_000)]
        begun = sum(lost and not before for lost, before in zip(fates, [False, *fates], strict=False))
        return sum(fates) / len(fates), sum(fates) / begun

    share, mean = bursts(lambda: BurstLoss(to_bad=0.01, to_good=0.25))
    assert share == pytest.approx(0.01 / 0.26, rel=0.2)
    assert mean == pytest.approx(4, rel=0.15)
    share, mean = bursts(lambda: RandomLoss(0.04))
    assert share == pytest.approx(0.04, rel=0.1)
    assert mean == pytest.approx(1.04, rel=0.1)


def test_delay_and_jitter_keep_the_order() -> None:
    arrived = carried(Path(Impairment(delay_ms=50, jitter_ms=70), seed=2))
    numbers, delays = [number for number, _ in arrived], [delay for _, delay in arrived]
    assert numbers == list(range(200))
    assert 50 <= min(delays) < 60
    assert 100 < max(delays) <= 120


def test_some_are_held_back_while_others_pass() -> None:
    path = Path(Impairment(reorder=0.1, reorder_ms=50), seed=4)
    arrived = [number for number, _ in carried(path)]
    assert sorted(arrived) == list(range(200))
    late = [number for number, after in itertools.pairwise(arrived) if after < number]
    assert 0 < len(late) <= path.counts.reordered < 50


def test_duplicates_arrive_twice() -> None:
    path = Path(Impairment(duplicate=0.2), seed=4)
    arrived = [number for number, _ in carried(path)]
    assert sorted(set(arrived)) == list(range(200))
    assert len(arrived) == 200 + path.counts.duplicated
    assert 20 < path.counts.duplicated < 60


def test_what_is_under_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp_relay, "MAX_QUEUED", 10)
    path = Path(Impairment(delay_ms=1_000), seed=1)
    for number in range(15):
        path.put(rtp(number), 0.0)
    assert path.counts.overflowed == 5
    assert len(path.take(2.0)) == 10


class Peer(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.received: asyncio.Queue[tuple[bytes, tuple[str, int]]] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.received.put_nowait((data, addr))


async def peers(count: int) -> list[tuple[asyncio.DatagramTransport, Peer]]:
    loop = asyncio.get_running_loop()
    return [await loop.create_datagram_endpoint(Peer, local_addr=("127.0.0.1", 0)) for _ in range(count)]


async def test_a_relay_carries_both_ways_between_two_and_no_others() -> None:
    (client, to_client), (server, to_server), (stranger, to_stranger) = opened = await peers(3)
    relay = await UdpRelay.open(server.get_extra_info("sockname"), up=Impairment(delay_ms=1))
    client.sendto(STUN, relay.address)
    assert await to_server.received.get() == (STUN, relay.server_side)
    stranger.sendto(STUN, relay.address)
    stranger.sendto(STUN, relay.server_side)
    for number in range(3):
        client.sendto(rtp(number), relay.address)
        server.sendto(rtp(100 + number), relay.server_side)
    assert [await to_server.received.get() for _ in range(3)] == [(rtp(n), relay.server_side) for n in range(3)]
    assert [await to_client.received.get() for _ in range(3)] == [(rtp(100 + n), relay.address) for n in range(3)]
    assert to_stranger.received.empty()
    assert (relay.up.counts.media, relay.up.counts.other, relay.up.counts.unroutable) == (3, 1, 1)
    assert (relay.down.counts.delivered, relay.down.counts.unroutable) == (3, 1)
    client.sendto(rtp(3), relay.address)
    relay.close()
    for transport, _ in opened:
        transport.close()
    await asyncio.sleep(0)


OFFER = """v=0\r
m=audio 50000 UDP/TLS/RTP/SAVPF 96\r
a=candidate:1 1 udp 2130706431 192.0.2.5 50000 typ host\r
a=candidate:2 1 udp 1677722175 198.51.100.4 50000 typ srflx raddr 192.0.2.5 rport 50000\r
a=end-of-candidates\r
a=ice-ufrag:abcd\r
a=ice-pwd:0123456789012345678901\r
"""


def candidates(sdp: str) -> Sequence[str]:
    return [line for line in sdp.splitlines() if "candidate" in line]


async def test_a_route_leaves_the_relay_as_the_only_way() -> None:
    route = RelayRoute()
    with pytest.raises(RuntimeError):
        assert route.relay
    assert candidates(route.offer(OFFER)) == []
    answer = await route.answer(OFFER)
    host, port = route.relay.address
    assert candidates(answer) == [f"a=candidate:1 1 udp 2130706431 {host} {port} typ host", "a=end-of-candidates"]
    assert route.relay._server == ("192.0.2.5", 50000)
    local = RelayRoute()
    await local.answer(OFFER.replace("a=ice-ufrag", "a=candidate:3 1 udp 1 127.0.0.1 50001 typ host\r\na=ice-ufrag"))
    assert local.relay._server == ("127.0.0.1", 50001)
    local.close()
    route.close()
    with pytest.raises(ValueError, match="no UDP address"):
        await RelayRoute().answer("v=0\r\n")
    await asyncio.sleep(0)
