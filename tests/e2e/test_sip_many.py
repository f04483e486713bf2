"""Many calls from sipp: none is lost, none leaves anything behind (:meth:`tests.e2e.sip_rig.Line.empty`)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.settings import AgentSettings
from gateway.transports.sip.server import SipServer
from tests.e2e.sip_rig import Line, media_of, sip_line
from tests.e2e.sipp_peer import Ran, Sipp, needs_sipp, run_sipp, sipp
from tests.gateway.transports.sip.media_rig import speech

pytestmark = [pytest.mark.e2e, needs_sipp]

CALLS = 300
GREETS = AgentSettings(greeting="Hello.", silence_ms=300)


async def test_a_burst_beyond_capacity_is_answered_or_refused(tmp_path: Path) -> None:
    async with sip_line(max_calls=60) as line:
        ran = await run_sipp(tmp_path, "many", line.port, "-d", "3000", calls=CALLS)
        assert (ran.good, ran.failed) == (CALLS, 0)
        assert ran.counters == {"answered": 60, "busy": 0, "full": CALLS - 60}
        await line.empty()
        assert [record.cause for record in line.records] == ["caller_hung_up"] * 60


async def test_a_burst_of_one_address_beyond_its_share(tmp_path: Path) -> None:
    async with sip_line(max_calls=40, calls_per_source=10) as line:
        ran = await run_sipp(tmp_path, "many", line.port, "-d", "1500", calls=100)
        assert ran.counters == {"answered": 10, "busy": 90, "full": 0}


@pytest.mark.parametrize("transport", ["u1", "tn"])
async def test_three_hundred_at_a_rate_are_all_answered(tmp_path: Path, transport: str) -> None:
    """``tn``: each by a TCP connection of its own."""
    async with sip_line(max_calls=CALLS) as line:
        options = ("-t", transport, "-max_socket", "1000", "-d", "300")
        ran = await run_sipp(tmp_path, "many", line.port, *options, calls=CALLS, rate=60)
        assert ran.counters == {"answered": CALLS, "busy": 0, "full": 0}
        await line.here.empty()
        assert all(record.cause == "caller_hung_up" for record in line.records)


HUNG_UP_BY_CALLER = ("cancel", "early_cancel", "at_once", "unacknowledged", "held_bye", "reinvite_bye")
HUNG_UP_BY_US = ("wait", "held_wait", "both", "both_later")
EACH = 20


async def test_two_hundred_calls_hung_up_in_every_state(tmp_path: Path) -> None:
    """While they ring, before and after the ACK, on hold, with an offer open, by either side and by both at once."""
    scenarios = (*HUNG_UP_BY_CALLER, *HUNG_UP_BY_US)
    async with sip_line(max_calls=200, ring_s=0.2) as line, contextlib.AsyncExitStack() as stack:
        ending = asyncio.create_task(hang_up_those_of(line, HUNG_UP_BY_US))
        stack.push_async_callback(stop, ending)
        runs = [await stack.enter_async_context(call_as(tmp_path / name, line.port, name)) for name in scenarios]
        # sipp has no step for a BYE that comes as it begins to send its own: it answers it, and counts a failure.
        came_to: list[Ran] = await asyncio.gather(*(run.done(all_good="both" not in run.name) for run in runs))
        for name, ran in zip(scenarios, came_to, strict=True):
            crossed = ran.errors.count("Aborting call on an unexpected BYE") if "both" in name else 0
            assert (ran.good + crossed, ran.failed) == (EACH, crossed), (name, ran)
        await line.empty()
        causes = {record.cause for record in line.records}
        assert causes == {"caller_hung_up", "agent_hung_up"}
        for record in line.records:
            if record.view()["dialled"] in ("wait", "held_wait"):
                assert record.cause == "agent_hung_up"


def call_as(folder: Path, port: int, name: str) -> contextlib.AbstractAsyncContextManager[Sipp]:
    return sipp(folder, name.removesuffix("_later"), port, "-s", name, calls=EACH, rate=10)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def hang_up_those_of(line: Line, dialled: Sequence[str]) -> None:
    """End the calls to these names, each some time after it came up. The callers of ``both`` hang up after 300 ms, so
    that half of those cross."""
    loop, rng = asyncio.get_running_loop(), random.Random(1)
    due: dict[str, float] = {}
    while True:
        for record in line.live:
            if record.view()["dialled"] in dialled:
                at = due.setdefault(record.id, loop.time() + rng.uniform(0.2, 0.4))
                if loop.time() >= at:
                    line.hang_up(record)
        await asyncio.sleep(0.005)


async def test_who_never_acknowledges_is_hung_up(tmp_path: Path) -> None:
    async with sip_line() as line, sipp(tmp_path, "no_ack", line.port, calls=5) as callers:
        await line.until(lambda: len(line.sip.ua.sessions) == 5)
        await line.until(lambda: all(session.sdp is not None for session in line.sip.ua.sessions.values()))
        line.let_time_pass()
        ran = await callers.done()
        assert ran.good == 5


async def test_a_server_that_stops_ends_what_rings_and_what_is_up(tmp_path: Path) -> None:
    async with sip_line(max_calls=50, ring_s=1.0) as line, contextlib.AsyncExitStack() as stack:
        async with SipServer(line.here.gateway).listening() as server:
            callers = await stack.enter_async_context(
                sipp(tmp_path, "stopped", server.ports["udp"], calls=40, rate=100)
            )
            await line.until(lambda: len(line.live) >= 5)
        ran = await callers.done()
        assert server.idle
    assert ran.good == 40
    assert min(ran.counters.values()) >= 5


async def test_a_scanners_flood_beside_ten_calls(tmp_path: Path) -> None:
    """The callers hear what is said to them; the scanner hears nothing. (A machine that is busy with something else may
    cost them a frame: so a few are forgiven. A flood that got through would cost most of them.)"""
    said = speech(4.0)
    open_to_all: dict[str, Any] = {"host": "0.0.0.0", "allow": ["127.0.0.1/32"]}
    async with sip_line(agent=GREETS, says=said, deaf=True, max_calls=20, **open_to_all) as line:
        async with sipp(tmp_path / "callers", "call", line.port, "-rtp_echo", "-d", "5000", calls=10) as callers:
            await line.until(lambda: len(line.live) == 10)
            scan = await run_sipp(tmp_path / "scanner", "scanner", line.port, calls=2_000, rate=1_000, host="127.0.0.2")
            assert len(line.live) == 10
            assert len(line.sip.ua.sessions) == 10
            await callers.done()
        await line.here.empty()
        assert (scan.good, scan.strays) == (2_000, 0)
        # Four messages each; the system's own buffer may lose some.
        assert 4_000 < line.counted("sip_over_rate") + line.counted("sip_dropped") <= 8_000
        for call, record in enumerate(line.records):
            media = media_of(record)
            assert media["lost"] == 0
            assert media["late"] + media["concealed"] <= 12
            assert media["frames_in"] >= 225  # of the 250 of five seconds
            assert line.ears.same_as(said, call)
