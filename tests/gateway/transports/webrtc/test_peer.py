"""A peer against a stock aiortc client, over real sockets on the loopback interface."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os

import numpy as np
import pytest

from engines.api import Pcm16
from gateway.transports.webrtc.candidates import MediaProtocol, NoMediaPort
from gateway.transports.webrtc.data_channel import MAX_BUFFERED_BYTES
from gateway.transports.webrtc.peer import BadOffer, MediaPeer
from streaming.audio.level import rms_dbfs
from tests.gateway.transports.webrtc.peer_rig import POLICY, Client, Told, call, loopback_only

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback_only(monkeypatch)


def frame(number: int, amplitude: int = 10_000) -> Pcm16:
    at = (np.arange(480) + 480 * number) / 24_000
    return (amplitude * np.sin(2 * np.pi * 440.0 * at)).astype(np.int16)


async def speak(peer: MediaPeer, frames: int) -> None:
    for number in range(frames):
        peer.play(frame(number))
        await asyncio.sleep(0.02)


async def test_both_are_heard_at_the_level_that_was_sent() -> None:
    client = Client()
    async with call(client) as (peer, told):
        await speak(peer, 60)
        await told.until(lambda: len(told.heard) > 16_000)
    level = 20 * math.log10(10_000 / math.sqrt(2) / 32_768)
    assert rms_dbfs(told.heard[8000:16_000]) == pytest.approx(level, abs=0.5)
    heard = client.heard
    loudest = max(rms_dbfs(heard[at : at + 9600]) for at in range(0, len(heard) - 9600, 960))
    assert loudest == pytest.approx(level, abs=0.5)
    stats = peer.stats()
    assert stats.lost == stats.malformed == stats.duplicates == 0
    assert stats.packets_in >= 50


async def test_events_go_both_ways_in_order() -> None:
    client = Client()
    async with call(client) as (peer, told):
        assert client.channel is not None
        client.channel.send("one")
        client.channel.send(b"two")
        client.channel.send("three é")
        assert peer.send("hello")
        assert peer.send("x" * 100_000)
        await told.event(("message", "three é"))
        assert [what for what in told.log if what not in ("connected", "channel_open")] == [
            ("message", "one"),
            "binary",
            ("message", "three é"),
        ]
        await asyncio.wait_for(client.second.wait(), 5)
    assert client.messages == ["hello", "x" * 100_000]
    assert not peer.send("too late")


async def test_what_waits_to_be_sent_is_bounded_and_its_end_is_told() -> None:
    async with call(Client(tone=False)) as (peer, told):
        message = "x" * 60_000
        sent = 0
        while peer.send(message):
            sent += 1
        assert MAX_BUFFERED_BYTES - len(message) <= peer.buffered_bytes <= MAX_BUFFERED_BYTES
        assert sent < 100
        await told.event("writable")
        assert peer.send(message)


async def test_a_defect_while_it_connects_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("of a library")

    monkeypatch.setattr("gateway.transports.webrtc.peer.remote_candidates", broken)
    told, client = Told(), Client()
    peer = MediaPeer(POLICY, told)
    await peer.answer(await client.offer())
    await told.event(("lost", "protocol_error"))
    await peer.close()
    await client.close()


async def test_a_message_that_the_peer_would_not_take_is_refused() -> None:
    async with call(Client(tone=False)) as (peer, _):
        assert not peer.send("x" * (1 << 20))
        assert peer.send("hello")


async def test_a_client_that_closes_is_noticed_at_once() -> None:
    client = Client()
    async with call(client) as (_, told):
        await client.connection.close()
        await told.event(("lost", "peer_closed"))
        count = len(told.pcm)
        await asyncio.sleep(0.05)
        assert len(told.pcm) == count
        assert told.log.count(("lost", "peer_closed")) == 1


async def test_a_channel_that_closes_ends_the_call() -> None:
    client = Client()
    async with call(client) as (_, told):
        assert client.channel is not None
        client.channel.close()
        await told.event(("lost", "peer_closed"))


async def test_a_call_without_a_channel_is_heard_too() -> None:
    async with call(Client(channel=False)) as (peer, told):
        await told.until(lambda: len(told.heard) > 3200)
        assert not peer.send("nobody listens")


async def test_silence_is_suspect_then_well_again_or_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = False
    receive = MediaProtocol.datagram_received

    def sometimes(self: MediaProtocol, data: bytes | str, addr: tuple[object, ...]) -> None:
        if not deaf:
            receive(self, data, addr)

    monkeypatch.setattr(MediaProtocol, "datagram_received", sometimes)
    policy = dataclasses.replace(POLICY, suspect_after_s=0.3, lost_after_s=1.0)
    async with call(Client(), policy) as (_, told):
        await told.until(lambda: len(told.heard) > 3200)
        deaf = True
        await told.event(("suspect", True))
        deaf = False
        await told.event(("suspect", False))
        deaf = True
        await told.event(("lost", "media_timeout"))
    assert [what for what in told.log if isinstance(what, tuple)] == [
        ("suspect", True),
        ("suspect", False),
        ("suspect", True),
        ("lost", "media_timeout"),
    ]


async def test_a_peer_that_only_listens_lives_by_its_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioice.ice.CONSENT_INTERVAL", 0.2)
    policy = dataclasses.replace(POLICY, suspect_after_s=0.6, lost_after_s=1.2)
    client = Client(tone=False)
    async with call(client, policy) as (peer, told):
        await speak(peer, 75)
        assert ("suspect", True) not in told.log
    assert len(client.heard) > 24_000


async def test_an_offer_that_nobody_follows_up_ends() -> None:
    told = Told()
    peer = MediaPeer(dataclasses.replace(POLICY, setup_s=0.1), told)
    client = Client()
    await peer.answer(await client.offer())
    await told.event(("lost", "never_connected"))
    await peer.close()
    await client.close()


async def test_another_certificate_than_the_offers_is_not_talked_to() -> None:
    told, client = Told(), Client()
    peer = MediaPeer(POLICY, told)
    offer = await client.offer()
    digest = offer.split("a=fingerprint:sha-256 ")[1][:8]
    await client.take(await peer.answer(offer.replace(digest, "00:00:00" if digest != "00:00:00" else "11:11:11")))
    await told.event(("lost", "never_connected"))
    await peer.close()
    await client.close()


async def test_nothing_is_left_of_an_offer_that_cannot_be_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    before = process_state()
    with pytest.raises(BadOffer):
        await MediaPeer(POLICY, Told()).answer("v=0\r\n")
    client = Client(channel=False)
    monkeypatch.setattr("gateway.transports.webrtc.candidates.local_addresses", lambda policy: [])
    with pytest.raises(NoMediaPort):
        await MediaPeer(POLICY, Told()).answer(await client.offer())
    await client.close()
    assert process_state() == before


async def test_closing_at_any_time_leaves_nothing() -> None:
    before = process_state()
    for turns in (0, 1, 2, 5, 20):
        client, told = Client(), Told()
        peer = MediaPeer(POLICY, told)
        answering = asyncio.create_task(peer.answer(await client.offer()))
        for _ in range(turns):
            await asyncio.sleep(0.001)
        if turns:
            await client.take(await answering)
        else:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        await asyncio.gather(peer.close(), peer.close())
        assert not peer.send("late")
        peer.play(frame(0))
        peer.clear()
        await client.close()
        assert not [what for what in told.log if isinstance(what, tuple)], "who closes is not told of it"
    with pytest.raises(RuntimeError):
        await peer.answer("v=0")
    await settled()
    assert process_state() == before


@pytest.mark.slow
async def test_fifty_calls_leave_no_task_thread_or_socket() -> None:
    before = process_state()
    for _ in range(10):
        clients = [Client() for _ in range(5)]
        async with asyncio.TaskGroup() as calls:
            for client in clients:
                calls.create_task(one_call(client))
    await settled()
    assert process_state() == before


async def one_call(client: Client) -> None:
    async with call(client) as (peer, told):
        peer.play(frame(0))
        await told.until(lambda: len(told.heard) > 640)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0.01)


def process_state() -> tuple[int, int]:
    return len(asyncio.all_tasks()), len(os.listdir("/dev/fd"))
