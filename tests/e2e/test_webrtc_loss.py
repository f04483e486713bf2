"""Packet loss between a caller and the gateway, by a relay that loses the same packets in every run."""

from __future__ import annotations

import asyncio

import aioice.ice
import pytest

from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from gateway.settings import AgentSettings, Settings
from loadtest.command import CallOptions, Say, place_call
from loadtest.script import Patience
from loadtest.udp_relay import BurstLoss, Impairment, RandomLoss, RelayRoute
from scripts.bench_loss import LossRow, measure_loss
from tests.gateway.call_rig import Engines
from tests.serving import served

pytestmark = pytest.mark.e2e

PACKETS = 200
WAITS_FOR_LOST = 4
"""Packets of 20 ms that are sent before a gap of 60 ms is given up, and the one that tells."""


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda use_ipv4, use_ipv6: ["127.0.0.1"])


async def test_what_is_lost_delays_nothing_that_is_not_and_no_audio_is_missing() -> None:
    losses = (0.0, 1.0, 2.0, 5.0)
    rows = await asyncio.gather(*(measure_loss("ours", percent, packets=PACKETS, seed=3) for percent in losses))
    assert [row.lost for row in rows] == sorted(row.lost for row in rows)
    assert [bool(row.lost) for row in rows] == [False, True, True, True]
    for row in rows:
        assert row.missing == 0, row.loss_percent
        assert row.relayed >= PACKETS
        positions = [heard.last for heard in row.heard]
        assert positions == sorted(positions)
        behind = sorted(packets_behind(row))
        assert behind[len(behind) // 2] == 0  # p50: audio is there before the next packet is sent
        assert behind[-1] <= WAITS_FOR_LOST + 2  # of scheduling


def packets_behind(row: LossRow) -> list[int]:
    """For every frame heard, how many packets had been sent after the one that holds it."""
    return [
        heard.sent - 1 - (row.first + heard.last - back)
        for heard in row.heard
        for back in range(heard.frames)
        if row.first + heard.last - back < row.packets
    ]


async def test_a_call_over_a_bad_network_is_answered_and_all_its_media_goes_that_way() -> None:
    engines = Engines(
        tts=ScriptedTts(100), stt=ScriptedStt(("How much does it cost?",)), llm=ScriptedLlm(lambda _: "Five pounds.")
    )
    settings = Settings(preset="null", agents={"a": AgentSettings(greeting="", silence_ms=300)})
    route = RelayRoute(
        up=Impairment(loss=lambda: RandomLoss(0.05), delay_ms=10, jitter_ms=10, reorder=0.02, duplicate=0.02),
        down=Impairment(loss=lambda: BurstLoss(0.02, 0.5), delay_ms=10),
        seed=5,
    )
    try:
        async with served(engines.set, settings) as here:
            options = CallOptions(
                here.url,
                (Say("How much does it cost?"),),
                agent="a",
                patience=Patience(greeting_ms=500, answer_ms=8_000, pause_ms=300),
                route=route,
            )
            report = await place_call(options)
    finally:
        route.close()
    assert (report.answered, report.end_cause, report.errors) == (True, "hangup", [])
    assert [turn.heard_text for turn in report.turns] == ["How much does it cost?"]
    assert [turn.agent_transcript for turn in report.turns] == ["Five pounds."]
    up, down = route.relay.up.counts, route.relay.down.counts
    assert up.lost > 0
    assert up.unroutable == down.unroutable == 0
    assert up.media > 100
    assert report.media is not None
    # Nothing reached the caller but what the relay delivered: every packet it received is one of those.
    assert 0 < report.media.packets_received <= down.media - down.lost + down.duplicated
