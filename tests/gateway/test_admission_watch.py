from __future__ import annotations

import asyncio

import pytest

from gateway.admission import Limits, Load, LoadGate
from gateway.admission_watch import GateReadings, watch_load
from gateway.telemetry.metrics import Metrics
from tests.gateway.telemetry.test_metrics import read
from tests.virtual_time import virtual

LIMITS = Limits(loop_lag_s=0.06, late_frames=0.01, lane_late_s=1.0, lane_use=0.98)


@virtual
async def test_it_is_said_once_that_calls_are_refused_and_once_that_they_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gate = LoadGate(LIMITS, asyncio.get_running_loop().time())
    metrics = Metrics()
    metrics.watch_beside(GateReadings(gate))
    frames = late = 0

    def load() -> Load:
        return Load(frames, late)

    watching = asyncio.create_task(watch_load(gate, load))
    for _ in range(30):
        frames, late = frames + 100, late + 5
        await asyncio.sleep(1)
    assert str(gate.closed_by) == "late_frames"
    seen = read(metrics)
    assert seen["offhook_admission_load_ratio", "late_frames"] == pytest.approx(5.0)
    assert seen["offhook_admission_overloaded", "late_frames"] == 1
    assert seen["offhook_admission_overloaded", "loop_lag"] == 0
    await asyncio.sleep(30)
    assert gate.closed_by is None
    watching.cancel()
    said = capsys.readouterr().out
    assert said.count("new calls are refused: the load is over a limit") == 1
    assert "measure=late_frames" in said
    assert said.count("new calls are taken again") == 1
