"""The caller's end of a connection, without a network."""

from __future__ import annotations

import aioice.ice
import pytest
from aiortc import RTCPeerConnection
from aiortc.rtp import RtpPacket

from loadtest import webrtc_peer
from loadtest.call import CallOver, EndCause
from loadtest.rtp_playout import RtpPlayout
from loadtest.webrtc_peer import Peer
from tests.loadtest.test_rtp_playout import Numbers


async def test_the_private_names_of_aiortc_and_aioice_that_are_used_are_there() -> None:
    connection = RTCPeerConnection()
    receiver = connection.addTransceiver("audio").receiver
    assert hasattr(receiver, webrtc_peer._JITTER_BUFFER), "aiortc keeps a receiver's jitter buffer elsewhere"
    gatherer = receiver.transport.transport.iceGatherer
    assert isinstance(gatherer._connection, aioice.ice.Connection), "aiortc keeps aioice's connection elsewhere"
    assert callable(gatherer._connection.get_component_candidates), "aioice gathers candidates by another name"
    await connection.close()


@pytest.mark.parametrize("loopback", [True, False])
async def test_loopback_is_offered_where_it_is_called_and_only_there(
    loopback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda use_ipv4, use_ipv6: [])
    peer = Peer(loopback)
    offer = await peer.offer()
    assert ("127.0.0.1" in "".join(line for line in offer.splitlines() if "candidate" in line)) is loopback
    assert "opus/48000/2" in offer
    assert "webrtc-datachannel" in offer
    await peer.close()


def packet(number: int) -> RtpPacket:
    made = RtpPacket(payload_type=96, sequence_number=number, timestamp=number * 960)
    made.payload = str(number).encode()
    return made


async def test_what_comes_before_the_session_is_kept_for_it_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webrtc_peer, "_MAX_EARLY", 3)
    peer = Peer(loopback=True)
    tap = webrtc_peer._Tap(peer)
    assert [tap.add(packet(number)) for number in range(1, 6)] == [(False, None)] * 5
    assert peer.times.audio_s is not None
    ear = RtpPlayout(peer.times.audio_s, Numbers())
    peer.listen(ear)
    tap.add(packet(4))
    assert ear.counts.received == 4
    await peer.close()


async def test_the_first_end_stands_and_everything_says_so() -> None:
    peer = Peer(loopback=True)
    peer._on_message("before")
    peer.end(CallOver(EndCause.CONNECTION_LOST, "gone"))
    peer.end(CallOver(EndCause.AGENT_HANGUP))
    assert await peer.receive() == "before"
    for _ in range(2):
        with pytest.raises(CallOver) as over:
            await peer.receive()
        assert over.value.cause is EndCause.CONNECTION_LOST
    with pytest.raises(CallOver, match="gone"):
        peer.send("x")
    await peer.close()


async def test_messages_that_nobody_takes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webrtc_peer, "_MAX_EVENTS", 2)
    peer = Peer(loopback=True)
    for _ in range(5):
        peer._on_message("x")
    assert peer.overflowed == 3
    await peer.close()
