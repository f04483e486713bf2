"""``offhook loadtest`` as it is run: processes of callers on a served gateway with scripted engines, in real time.

These machines are shared, so whether the callers themselves were in time is not asserted: a void run counts its calls
all the same.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.settings import Settings
from tests.serving import Served, served

pytestmark = pytest.mark.e2e

SETTINGS = Settings(preset="null", max_calls=3)
SCENARIO = """\
name: quick
about: Ask one thing.
length_s: 4
patience: {greeting_ms: 300, answer_ms: 5000, pause_ms: 200}
expect: {answer_within_ms: null, max_late_share: null, setup_within_ms: null}
steps:
  - wait_agent
  - say: "Stop."
  - wait_agent
"""
GOOD, NOT_GOOD, VOID, INTERRUPTED = 0, 1, 3, 130


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "quick.yaml"
    path.write_text(SCENARIO)
    return path


Ended = asyncio.Task[tuple[int, dict[str, Any], str]]


async def started(here: Served, folder: Path, *words: str) -> tuple[asyncio.subprocess.Process, Ended]:
    """The command, and its exit code, report and last words once it has ended. They are waited for from the start: the
    gateway is on this loop, and whose tasks those of a test are it does not know."""
    own = ("--url", here.ws, "--json", str(folder / "report.json"), "--html", str(folder / "report.html"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli", "loadtest", *words, *own, stderr=asyncio.subprocess.PIPE
    )
    return process, asyncio.create_task(_ended(process, folder / "report.json"))


async def _ended(process: asyncio.subprocess.Process, document: Path) -> tuple[int, dict[str, Any], str]:
    _, told = await process.communicate()
    assert process.returncode is not None
    return process.returncode, _read(document, told.decode()), told.decode()


def _read(document: Path, told: str) -> dict[str, Any]:
    assert document.exists(), told
    report: dict[str, Any] = json.loads(document.read_bytes())
    return report


async def two_up(here: Served) -> None:
    async with asyncio.timeout(40):
        while here.gateway.switchboard.live < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_callers_in_two_processes_hear_their_own_words_and_the_server_tells_of_itself(
    scenario: Path, tmp_path: Path
) -> None:
    words = ("--calls", "3", "--ramp", "0.5", "--for", "3", "--processes", "2")
    async with served(settings=SETTINGS) as here:
        _, ending = await started(here, tmp_path, str(scenario), *words)
        code, report, told = await ending
    assert code in (GOOD, VOID), told
    assert "FAKE ENGINES" in told
    assert report["fake_engines"] is True
    assert report["calls"]["offered"] == report["calls"]["completed"] == 3
    assert report["cross_talk"]["own"] == report["cross_talk"]["turns_checked"] == 3
    assert report["cross_talk"]["foreign"] == 0
    assert [generator["calls"] for generator in report["generators"]] == [2, 1]
    assert all(generator["problem"] is None for generator in report["generators"])
    assert report["latency_ms"]["voice_to_voice"]["count"] == 3
    assert report["server"]["info"]["preset"] == "null"
    assert max(reading["calls_live"] for reading in report["server"]["readings"]) >= 2
    assert report["stages_ms"]["decision"]["count"] == 3
    assert any(detail["stages"] for detail in report["calls_detail"])
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count("<audio") == 3


async def test_more_than_there_is_room_for_is_refused_and_told(scenario: Path, tmp_path: Path) -> None:
    words = ("--calls", "6", "--ramp", "0", "--for", "2")
    async with served(settings=SETTINGS) as here:
        _, ending = await started(here, tmp_path, str(scenario), *words)
        code, report, told = await ending
    assert code in (NOT_GOOD, VOID), told
    assert report["calls"]["refused"] == 3
    assert report["calls"]["completed"] == 3
    assert report["faults"]["refused"] == 3
    assert report["goodput"] == 0.5


async def test_a_drain_serves_who_is_up_and_refuses_who_comes(tmp_path: Path) -> None:
    """Two callers are up when it begins, and two come after that."""
    path = tmp_path / "drain.yaml"
    longer = SCENARIO + '  - pause_s: 5\n  - say: "Stop."\n  - wait_agent\n'
    path.write_text(longer + "arrivals: {pattern: burst, calls: 2, every_s: 4, for_s: 5, ramp_s: 0}\n")
    async with served(settings=Settings(preset="null", max_calls=10)) as here:
        _, ending = await started(here, tmp_path, str(path))
        await two_up(here)
        draining = asyncio.create_task(here.gateway.switchboard.drain(grace_s=120))
        _, report, told = await ending
        await draining
        causes = [record.cause for record in here.gateway.recent]
    calls = report["calls"]
    assert (calls["completed"], calls["refused"], calls["dropped"], calls["failed"]) == (2, 2, 0, 0), told
    assert report["faults"]["refused"] == 2
    assert report["latency_ms"]["refusal"]["count"] == 2
    assert causes == ["caller_hung_up"] * 2


async def test_ctrl_c_hangs_up_and_writes_the_report(tmp_path: Path) -> None:
    async with served(settings=SETTINGS) as here:
        process, ending = await started(here, tmp_path, "talk", "--calls", "2", "--ramp", "0", "--for", "600")
        await two_up(here)
        process.send_signal(signal.SIGINT)
        code, report, told = await ending
        await here.empty()
        causes = {record.cause for record in here.gateway.recent}
    assert code == INTERRUPTED, told
    assert report["interrupted"] is True
    assert report["calls"]["abandoned"] == 2
    assert causes == {"caller_hung_up"}


async def test_a_generator_that_is_killed_makes_the_run_void(tmp_path: Path) -> None:
    async with served(settings=SETTINGS) as here:
        process, ending = await started(here, tmp_path, "talk", "--calls", "2", "--ramp", "0", "--for", "600")
        await two_up(here)
        children = psutil.Process(process.pid).children()
        (generator,) = (child for child in children if "loadtest.generator" in child.cmdline())
        generator.kill()
        code, report, told = await ending
    assert code == VOID
    assert report["void_reasons"] == ["generator 0 died (signal 9)"]
    assert "VOID" in told
