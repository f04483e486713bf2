"""The presets in engine hosts, as ``offhook serve`` runs them: a host is killed while two real callers are up."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from engines.host.hosts import Hosts
from engines.opening import open_engines
from engines.registry import find_lineup
from gateway.settings import AgentSettings, Settings
from loadtest.command import CallOptions, Say, place_call
from loadtest.report import CallReport
from tests.engines.host.rig import the_host
from tests.serving import Served, eventually, served

pytestmark = [pytest.mark.models, pytest.mark.timeout(600)]

STORY, COST = "Tell me a story.", "How much does it cost?"
SETTINGS = Settings(
    preset="null",
    max_calls=4,
    agents={
        "anna": AgentSettings(greeting="", instructions="You are a friendly shop assistant.", max_output_tokens=32)
    },
)


async def call(here: Served) -> CallReport:
    lines = tuple(Say(line) for line in (STORY, COST))
    return await place_call(CallOptions(here.ws, lines, agent="anna"))


@pytest.mark.parametrize(
    ("preset", "victim"), [("embedded", "cpu"), pytest.param("mlx-cpu", "mlx", marks=pytest.mark.slow)]
)
async def test_a_host_killed_in_mid_reply_costs_no_call(preset: str, victim: str) -> None:
    place = Hosts()
    async with open_engines(find_lineup(preset), place=place) as engines, served(engines, SETTINGS) as here:
        pids = {name: the_host(place, name).pid for name in engines.health().hosts}
        assert len(set(pids.values())) == (2 if preset == "mlx-cpu" else 1)
        calls = [asyncio.create_task(call(here)) for _ in range(2)]
        board = here.gateway.switchboard
        await eventually(lambda: any(record.phase == "speaking" for record in board.calls()), 60.0)
        pid = pids[victim]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        reports = await asyncio.gather(*calls)
        await eventually(lambda: engines.health().healthy, 120.0)
        assert the_host(place, victim).restarts == 1
        again = await call(here)
    for report in reports:
        assert (report.answered, report.end_cause) == (True, "hangup")
        said = [turn.agent_transcript for turn in report.turns]
        assert said[0] or said[1], said
    assert all(turn.agent_transcript and turn.voice_to_voice_ms for turn in again.turns)
    assert {name: the_host(place, name).exit_code for name in pids} == dict.fromkeys(pids, 0)
