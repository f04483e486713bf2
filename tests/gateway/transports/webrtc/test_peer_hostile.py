"""Peers that say goodbye, go quiet, lose packets, or mean harm once they are in."""

from __future__ import annotations

import asyncio
import random
from struct import pack
from typing import cast

import pytest
from aioice import stun
from aiortc.rtcsctptransport import DataChunk
from aiortc.rtp import RtcpByePacket, RtcpRrPacket
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.transports.rtp.receiver import RtpReceiver
from gateway.transports.webrtc.candidates import (
    MAX_DATAGRAM_BYTES,
    MAX_UNREAD,
    IceConnection,
    IceServer,
    MediaPolicy,
    MediaProtocol,
)
from gateway.transports.webrtc.data_channel import MAX_CHANNELS
from gateway.transports.webrtc.peer import MAX_SOURCES, MediaPeer
from tests.gateway.transports.webrtc.peer_rig import POLICY, Client, Told, call, loopback_only

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback_only(monkeypatch)


async def test_a_lossy_way_costs_no_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    throws, receive = random.Random(4), MediaProtocol.datagram_received

    def lossy(self: MediaProtocol, data: bytes | str, addr: tuple[object, ...]) -> None:
        media = isinstance(data, bytes) and 127 < data[0] < 192 and data[1] & 0x7F < 0x40 + 64
        if not media or throws.random() >= 0.05:
            receive(self, data, addr)

    monkeypatch.setattr(MediaProtocol, "datagram_received", lossy)
    async with call(Client()) as (peer, told):
        await told.until(lambda: len(told.heard) > 48_000)
        stats = peer.stats()
        receiver = peer._receiver
    assert stats.lost > 0
    assert stats.concealed_ms >= stats.lost * 20
    assert isinstance(receiver, RtpReceiver)
    waiting = len(receiver._buffer._held)
    decoded = stats.packets_in - waiting
    assert len(told.heard) == decoded * 320 + stats.concealed_ms * 16


async def test_media_that_is_forged_is_counted_and_not_heard() -> None:
    async with call(Client()) as (peer, told):
        await told.until(lambda: len(told.heard) > 3200)
        for data in (b"\x80\x60" + bytes(40), b"\x80\xc8" + bytes(40), b"\x80", b"\xbf" * 1500):
            peer._on_media(data)
        assert peer.stats().malformed == 4
        heard = len(told.heard)
        await told.until(lambda: len(told.heard) > heard)


async def test_a_goodbye_with_nothing_behind_it_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.webrtc.peer.GOODBYE_S", 0.3)
    client = Client()
    async with call(client) as (_, told):
        await told.until(lambda: len(told.heard) > 3200)
        sender = client.connection.getSenders()[0]
        goodbye = bytes(RtcpRrPacket(ssrc=1)) + bytes(RtcpByePacket(sources=[sender._ssrc]))
        await sender.transport._send_rtp(goodbye)
        await told.until(lambda: len(told.heard) > 16_000)
        assert "lost" not in str(told.log), "its media went on"
        await sender.stop()
        await sender.transport._send_rtp(goodbye)
        await told.event(("lost", "peer_closed"))


async def test_more_channels_than_anybody_needs_end_the_call() -> None:
    client = Client()
    async with call(client) as (_, told):
        for number in range(MAX_CHANNELS):
            client.connection.createDataChannel(f"more-{number}")
        await told.event(("lost", "protocol_error"))


async def test_more_sources_than_anybody_needs_end_the_call() -> None:
    client = Client()
    async with call(client) as (peer, told):
        await told.until(lambda: len(told.heard) > 3200)
        transport = client.connection.getSenders()[0].transport
        for number in range(MAX_SOURCES):
            await transport._send_rtp(pack("!BBHLL", 0x80, 96, 1, 0, number) + b"\x78")
        await told.event(("lost", "protocol_error"))
        assert peer.stats().malformed == 0


async def test_another_channel_is_not_listened_to() -> None:
    client = Client()
    async with call(client) as (_, told):
        other = client.connection.createDataChannel("chat")
        opened = asyncio.Event()
        other.on("open", opened.set)
        await asyncio.wait_for(opened.wait(), 5)
        other.send("psst")
        assert client.channel is not None
        client.channel.send("hello")
        await told.event(("message", "hello"))
        assert ("message", "psst") not in told.log


async def test_chunks_that_break_the_protocol_end_the_call_and_nothing_else() -> None:
    client = Client()
    async with call(client) as (_, told):
        assert client.connection.sctp is not None
        assert client.channel is not None
        chunk = DataChunk()
        chunk.stream_id, chunk.protocol, chunk.tsn = client.channel.id or 0, 50, client.connection.sctp._local_tsn
        chunk.stream_seq = 1
        chunk.flags, chunk.user_data = 3, pack("!BBHLHH", 3, 0, 0, 0, 0, 0)  # opens the channel that is open
        await client.connection.sctp._send_chunk(chunk)
        await told.event(("lost", "protocol_error"))


async def test_messages_that_never_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.webrtc.data_channel.MAX_OPEN_BYTES", 20_000)
    client = Client()
    async with call(client) as (_, told):
        sctp = client.connection.sctp
        assert sctp is not None
        for number in range(30):
            chunk = DataChunk()
            chunk.stream_id, chunk.protocol, chunk.tsn = 0, 51, (sctp._local_tsn + number) % 2**32
            chunk.flags, chunk.user_data = (2 if number == 0 else 0), bytes(1000)
            await sctp._send_chunk(chunk)
        await told.event(("lost", "protocol_error"))


async def test_a_caller_whose_browser_sends_no_silence_is_heard_to_be_silent() -> None:
    """A packet of one byte, and then none for a while."""
    client = Client()
    async with call(client) as (peer, told):
        await told.until(lambda: len(told.heard) > 3200)
        sender = client.connection.getSenders()[0]
        await sender.stop()
        await asyncio.sleep(0.05)
        before = len(told.heard)
        assert peer._receiver is not None
        peer._receiver.quiet = True
        peer._heard(peer._receiver, peer._clock())
        await told.until(lambda: len(told.heard) >= before + 6400)
        assert not told.heard[-3200:].any()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"\x00\x01" + data))
def test_whatever_datagram_comes_it_is_taken(data: bytes) -> None:
    async def take() -> None:
        ice = IceConnection(POLICY)
        await ice.gather_candidates()
        protocol = ice._protocols[0]
        length = pack("!H", max(0, len(data) - 20))
        cookie = bytes.fromhex("2112a442")
        for datagram in (data, b"\x00\x01" + length + cookie + data, b"\x01\x01" + length + cookie + data):
            protocol.datagram_received(datagram, ("127.0.0.1", 4000))
        await ice.close()

    asyncio.run(take())


class StunServer(asyncio.DatagramProtocol):
    """Tells everybody that the world knows them as 198.51.100.77:7777."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        request = stun.parse_message(data)
        answer = stun.Message(request.message_method, stun.Class.RESPONSE, request.transaction_id)
        answer.attributes["XOR-MAPPED-ADDRESS"] = ("198.51.100.77", 7777)
        self._transport.sendto(bytes(answer), addr)


async def test_a_stun_server_is_asked_when_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.webrtc.candidates.SERVERS_S", 0.5)
    loop = asyncio.get_running_loop()
    server, _ = await loop.create_datagram_endpoint(StunServer, local_addr=("127.0.0.1", 0))
    port = server.get_extra_info("sockname")[1]
    for asked, hosts in ((port, ["127.0.0.1", "198.51.100.77"]), (port ^ 1, ["127.0.0.1"])):
        ice = IceConnection(MediaPolicy(allow_loopback=True, ice_servers=(IceServer((f"stun:127.0.0.1:{asked}",)),)))
        await ice.gather_candidates()
        assert [candidate.host for candidate in ice.local_candidates] == hosts
        await ice.close()
    server.close()


async def test_closing_while_a_turn_server_does_not_answer_leaves_nothing() -> None:
    loop = asyncio.get_running_loop()
    deaf, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
    servers = (IceServer((f"turn:127.0.0.1:{deaf.get_extra_info('sockname')[1]}",), "me", "secret"),)
    client, told = Client(), Told()
    peer = MediaPeer(MediaPolicy(allow_loopback=True, ice_servers=servers), told)
    answering = asyncio.create_task(peer.answer(await client.offer()))
    await asyncio.sleep(0.05)
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    await peer.close()
    await client.close()
    deaf.close()


async def test_what_strangers_send_before_anybody_reads_is_bounded() -> None:
    ice = IceConnection(POLICY)
    await ice.gather_candidates()
    protocol = ice._protocols[0]
    for _ in range(2 * MAX_UNREAD):
        for first in (20, 128):  # as DTLS and RTP begin
            protocol.datagram_received(bytes([first]) + bytes(1_000), ("127.0.0.1", 4000))
            protocol.datagram_received(bytes([first]) + bytes(MAX_DATAGRAM_BYTES), ("127.0.0.1", 4000))
    assert ice._queue.qsize() == MAX_UNREAD
    assert {len(data) for data in ice._early} == {1_001}
    await ice.close()


async def test_a_flood_of_checks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.transports.webrtc.candidates.MAX_LEARNED", 3)
    told, client = Told(), Client()
    peer = MediaPeer(POLICY, told)
    answer = await peer.answer(await client.offer())
    assert peer._link is not None
    ice = peer._link.ice
    for port in range(5000, 5020):
        message = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
        message.attributes["USERNAME"] = f"{ice.local_username}:{ice.remote_username}"
        message.attributes["PRIORITY"] = 1
        message.add_message_integrity(ice.local_password.encode())
        await asyncio.sleep(0)
        ice.request_received(message, ("127.0.0.1", port), ice._protocols[0])
    assert len(ice._remote_candidates) <= 3
    assert answer
    await peer.close()
    await client.close()
