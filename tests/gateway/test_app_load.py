"""What an application measures of itself, and what it does about it."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.admission import WARM_UP_S, Load, LoadGate
from gateway.admission_settings import AdmissionSettings
from gateway.settings import Settings
from gateway.switchboard import Overloaded
from tests.gateway.test_app import NULL, warm
from tests.loop_turns import others


def overload(gate: LoadGate | None) -> None:
    """Every frame of the seconds after its warm-up was late. (They are ahead of the clock, so nothing newer comes.)"""
    assert gate is not None
    began = asyncio.get_running_loop().time() + WARM_UP_S
    for second in range(1, 10):
        gate.note(Load(frames=100 * second, late_frames=100 * second), began + second)


async def test_a_load_over_its_limit_refuses_the_next_call_wherever_it_is_asked_for() -> None:
    async with warm() as (client, gateway):
        with await gateway.switchboard.admit():
            overload(gateway.gate)
            response = await client.get("/readyz")
            told = response.json()
            assert (response.status_code, told["status"], told["reason"]) == (503, "overloaded", "late_frames")
            with pytest.raises(Overloaded):
                await gateway.switchboard.admit()
            refused = await client.post(
                "/v1/realtime/calls", content="v=0", headers={"content-type": "application/sdp"}
            )
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
            metrics = (await client.get("/metrics")).text
            assert 'offhook_calls_overloaded_total{measure="late_frames"} 2.0' in metrics
            assert 'offhook_calls_refused_total{reason="overloaded"} 2.0' in metrics
            assert 'offhook_admission_overloaded{measure="late_frames"} 1.0' in metrics
            assert "offhook_ready 0.0" in metrics
            assert gateway.switchboard.live == 1, "who is up stays up"


async def test_who_wants_the_count_alone_gets_it() -> None:
    async with warm(Settings(preset="null", max_calls=2, admission=AdmissionSettings(by_load=False))) as (
        client,
        gateway,
    ):
        assert gateway.gate is None
        assert "offhook_admission" not in (await client.get("/metrics")).text
        assert gateway.load().frames == 0


async def test_it_tells_what_runs_here() -> None:
    async with warm() as (client, _):
        families = list(text_string_to_metric_families((await client.get("/metrics")).text))
        info = next(family.samples[0] for family in families if family.name == "offhook_info")
        assert info.value == 1
        assert info.labels["preset"] == NULL.preset
        assert info.labels["llm"] == "scripted-llm"
        assert info.labels["fake"] == "true"


async def test_a_look_at_the_metrics_holds_up_nobody() -> None:
    async with warm() as (client, _), others() as counted:
        await client.get("/livez")
        before = counted.turns
        families = (await client.get("/metrics")).text.count("# TYPE")
        assert families > 30
        assert counted.turns - before > families / 2
