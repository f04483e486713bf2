"""A bad network in the way of real calls to scripted servers."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from loadtest.address import call_address
from loadtest.call import CallPlan, CallTape, EndCause
from loadtest.measure import voiced_spans
from loadtest.network import Network, PacketFate, call_network
from loadtest.placing import place_planned_call
from loadtest.script import Line, Patience, Say, conversation
from loadtest.tcp_hold import Stalls
from loadtest.udp_relay import RelayRoute
from tests.loadtest import audiosocket_server, realtime_server, sip_server, twilio_server

QUICK = Patience(greeting_ms=200, answer_ms=1_500, pause_ms=120, stalled_ms=800, agent_turn_ms=3_000)
NONE = PacketFate()
STALLS = Stalls(0.05, (0.1, 0.15))


def line(rate_hz: int) -> Say:
    wave = 6_000 * np.sin(2 * np.pi * 200 * np.arange(rate_hz * 300 // 1000) / rate_hz)
    return Say(Line("hello", wave.astype(np.int16), 300.0))


async def call_over(network: Network | None, url: str) -> tuple[CallTape, dict[str, int]]:
    address = call_address(url, None)
    async with call_network(network, address, 1) as net:
        plan = CallPlan(
            url,
            conversation([line(address.rate_hz)]),
            patience=QUICK,
            rate_hz=address.rate_hz,
            via=net.via,
            route=net.route,
            rtp_route=net.rtp_route,
        )
        return await place_planned_call(plan), net.counts()


async def test_no_network_is_no_relay() -> None:
    async with call_network(None, call_address("ws://127.0.0.1:1/v1/realtime", None), 1) as net:
        assert (net.via, net.route, net.rtp_route, net.counts()) == (None, None, None, {})


async def test_packets_of_a_websocket_are_not_lost() -> None:
    lossy = Network(PacketFate(loss=0.5), NONE, None)
    async with call_network(lossy, call_address("ws://127.0.0.1:1/v1/realtime", None), 1) as net:
        assert net.via is None


async def test_a_sip_call_loses_packets_both_ways_and_speaks_to_the_relay_alone() -> None:
    lossy = Network(PacketFate(loss=0.2), PacketFate(loss=0.1, burst=2), Stalls(1))
    async with sip_server.sip_server(sip_server.Script()) as (url, seen):
        tape, counts = await call_over(lossy, url)
    assert tape.end_cause is EndCause.HANGUP
    assert tape.media is not None
    assert tape.media.packets_lost > 0
    sequences = [sequence for _, _, sequence, _, _ in seen.rtp]
    assert 0 < (sequences[-1] - sequences[0] & 0xFFFF) + 1 - len(sequences) <= counts["lost"]
    assert counts["media"] == counts["lost"] + counts["delivered"]
    assert counts["unroutable"] == 0
    (answer,) = voiced_spans(tape.agent, 8_000)
    assert answer.end > answer.start


async def test_the_same_seed_loses_the_same_packets() -> None:
    lost = []
    for _ in range(2):
        path = PacketFate(loss=0.1, burst=3).impairment()
        assert path.loss is not None
        model, dice = path.loss(), random.Random(4)
        lost.append([model.lost(dice) for _ in range(3_000)])
    assert lost[0] == lost[1]
    assert sum(lost[0]) / len(lost[0]) == pytest.approx(0.1, abs=0.03)
    bursts = "".join("x" if gone else " " for gone in lost[0]).split()
    assert sum(map(len, bursts)) / len(bursts) == pytest.approx(3, abs=0.7)


async def test_a_websocket_call_stalls_and_loses_nothing() -> None:
    async with realtime_server.realtime_server(realtime_server.Script(replies=(400,))) as (url, seen):
        tape, counts = await call_over(Network(NONE, NONE, STALLS), url)
    assert (tape.end_cause, tape.log.errors) == (EndCause.HANGUP, [])
    assert counts["stalls"] > 2
    assert counts["held_bytes"] > 0
    sent = np.frombuffer(bytes(seen.audio), dtype="<i2")
    assert np.array_equal(sent[: len(tape.caller)], tape.caller[: len(sent)])


async def test_a_carriers_stream_stalls_too() -> None:
    async with twilio_server.twilio_server(twilio_server.Script()) as (url, _):
        tape, counts = await call_over(Network(NONE, NONE, STALLS), url)
    assert tape.end_cause is EndCause.HANGUP
    assert counts["stalls"] > 2


async def test_audiosocket_stalls_too() -> None:
    async with audiosocket_server.audiosocket_server(audiosocket_server.Script()) as (url, _):
        tape, counts = await call_over(Network(NONE, NONE, STALLS), url)
    assert tape.end_cause is EndCause.HANGUP
    assert counts["stalls"] > 2


async def test_webrtc_gets_a_route() -> None:
    async with call_network(Network(NONE, NONE, STALLS), call_address("http://127.0.0.1:1", None), 1) as net:
        assert isinstance(net.route, RelayRoute)
        assert net.counts() == {}
        offer = "v=0\r\na=ice-pwd:x\r\na=candidate:1 1 udp 1 127.0.0.1 9 typ host\r\n"
        assert "a=candidate" not in net.route.offer(offer)
        answer = await net.route.answer(offer)
        assert f" {net.route.relay.address[1]} typ host" in answer
        assert net.counts()["media"] == 0
    await asyncio.sleep(0)


async def test_a_server_whose_name_is_not_known_is_an_error() -> None:
    with pytest.raises(OSError, match=r"."):
        async with call_network(Network(NONE, NONE, STALLS), call_address("ws://nowhere.invalid/v1", None), 1):
            pass
