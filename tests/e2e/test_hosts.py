"""Live calls while a host is killed: real sockets, real host processes, scripted engines in them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path

import pytest

from engines.api import EngineHealth, EngineSet
from engines.turn.scripted import ScriptedTurn
from engines.vad.scripted import EnergyVad
from gateway.settings import AgentSettings, Settings
from loadtest.command import CallOptions, Say, place_call
from loadtest.report import CallReport
from loadtest.script import Patience
from tests.engines.host.rig import TIMES, hosts, spec, the_host
from tests.serving import Served, eventually, served

pytestmark = pytest.mark.e2e

ASKED = "How much does it cost?"
STORY = " ".join(f"word{number}" for number in range(25))
APOLOGY = "Sorry, that went wrong. Please say it again."
SETTINGS = Settings(
    preset="null",
    max_calls=4,
    agents={"anna": AgentSettings(greeting="", apology=APOLOGY, silence_ms=300)},
)
PATIENCE = Patience(greeting_ms=500, answer_ms=8_000, pause_ms=300)


async def call(here: Served, *lines: str) -> CallReport:
    said = tuple(Say(line) for line in lines)
    return await place_call(CallOptions(here.ws, said, agent="anna", patience=PATIENCE))


@pytest.mark.parametrize("victim", ["mlx", "cpu"])
async def test_killed_in_mid_reply_both_callers_hear_an_answer_or_an_apology_and_it_is_back(victim: str) -> None:
    async with hosts() as place:
        stt = place.engine(spec("stt", "cpu", lines=[STORY, ASKED, ASKED]), [])
        tts = place.engine(spec("tts", "cpu", word_ms=100, realtime_factor=0.5), [])
        llm = place.engine(spec("llm", "mlx", token_delay_s=0.05), [])
        await asyncio.gather(stt.start(), tts.start(), llm.start())
        engines = EngineSet(EnergyVad(), ScriptedTurn(), stt, llm, tts, place.health)
        async with served(engines, SETTINGS) as here:
            calls = [asyncio.create_task(call(here, ASKED, ASKED, ASKED)) for _ in range(2)]
            board = here.gateway.switchboard
            await eventually(lambda: [record.phase for record in board.calls()] == ["speaking"] * 2)
            pid = the_host(place, victim).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: not place.health().healthy)
            assert board.live == 2
            reports = await asyncio.gather(*calls)
            assert place.health().healthy
            assert the_host(place, victim).restarts == 1
            assert [record.cause for record in here.gateway.recent] == ["caller_hung_up"] * 2
    for report in reports:
        assert report.answered
        assert report.end_cause == "hangup"
        said = [turn.agent_transcript or "" for turn in report.turns]
        assert len(said) == 3
        assert all(text for text in said), said
        assert said[0].endswith(APOLOGY) or said[1].startswith((APOLOGY, "You said")), said
        assert said[2].startswith("You said: "), said


@pytest.mark.parametrize("victim", ["mlx", "cpu"])
async def test_a_host_that_stands_still_in_mid_reply_is_heard_as_an_apology_and_may_go_on(victim: str) -> None:
    times = dataclasses.replace(TIMES, suspect_pings=20, silent_pings=10_000)
    async with hosts(times=times) as place:
        stt = place.engine(spec("stt", "cpu", lines=[STORY, ASKED, ASKED, ASKED]), [])
        tts = place.engine(spec("tts", "cpu", word_ms=100, realtime_factor=0.5), [])
        llm = place.engine(spec("llm", "mlx", token_delay_s=0.05), [])
        await asyncio.gather(stt.start(), tts.start(), llm.start())
        engines = EngineSet(EnergyVad(), ScriptedTurn(), stt, llm, tts, place.health)
        async with served(engines, SETTINGS) as here:
            calling = asyncio.create_task(call(here, ASKED, ASKED, ASKED))
            board = here.gateway.switchboard
            await eventually(lambda: [record.phase for record in board.calls()] == ["speaking"])
            host = the_host(place, victim)
            pid = host.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                record = next(iter(board.calls()))
                await eventually(lambda: any(entry.text == APOLOGY for entry in record.transcript), 20.0)
                assert not place.health().healthy
            finally:
                os.kill(pid, signal.SIGCONT)
            report = await calling
            assert (host.restarts, host.pid, place.health().healthy) == (0, pid, True)
            assert [record.cause for record in here.gateway.recent] == ["caller_hung_up"]
    said = [turn.agent_transcript or "" for turn in report.turns]
    assert said[-1].startswith("You said: "), said


async def test_while_nothing_stands_in_new_callers_are_told_at_once() -> None:
    async with hosts() as place:
        stt, tts = place.engine(spec("stt"), []), place.engine(spec("tts"), [])
        llm = place.engine(spec("llm"), [])
        await asyncio.gather(stt.start(), tts.start(), llm.start())

        def health() -> EngineHealth:
            return dataclasses.replace(place.health(), takes_calls=llm.available)

        engines = EngineSet(EnergyVad(), ScriptedTurn(), stt, llm, tts, health)
        async with served(engines, SETTINGS) as here:
            host = the_host(place)
            host._backoff._first_s = host._backoff._next_s = 2.0
            assert host.pid is not None
            os.kill(host.pid, signal.SIGKILL)
            await eventually(lambda: not llm.available)
            report = await call(here, ASKED)
            assert (report.answered, report.end_cause) == (False, "busy")
            told = b"".join(here.gateway.metrics.exposition()).decode()
            assert 'offhook_calls_refused_total{reason="engines_down"} 1.0' in told
            await eventually(lambda: llm.available)
            assert (await call(here, ASKED)).answered
            here.faults.clear()  # uvicorn logs an error of every denial


def autogroup_niceness(pid: str) -> int | None:
    """What Linux shares cores by between sessions; None where it does not, or lets nobody say."""
    file = Path(f"/proc/{pid}/autogroup")
    said = file.read_text(encoding="ascii").split() if os.access(file, os.W_OK) else []
    return int(said[-1]) if said else None


async def test_the_cpu_host_gives_way_to_the_gateway_with_all_its_threads_and_the_mlx_host_does_not() -> None:
    async with hosts() as place:
        await asyncio.gather(*(place.engine(spec("llm", name), []).start() for name in ("cpu", "mlx")))
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        for name, expected in (("cpu", min(ours + 10, 19)), ("mlx", ours)):
            threads = os.listdir(f"/proc/{the_host(place, name).pid}/task")
            assert len(threads) > 1
            assert {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in threads} == {expected}, name
            of_session = autogroup_niceness(threads[0])
            assert of_session in (None, 10 if name == "cpu" else 0), "in a session of its own only this counts"
