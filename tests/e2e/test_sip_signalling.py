"""Calls to the gateway from sipp: every way in which a call begins, changes and ends by SIP."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from gateway.settings import AgentSettings
from tests.e2e.sip_rig import media_of, sip_line
from tests.e2e.sipp_peer import needs_sipp, run_sipp, sipp
from tests.gateway.transports.sip.media_rig import speech

pytestmark = [pytest.mark.e2e, needs_sipp]

GREETS = AgentSettings(greeting="Hello.", silence_ms=300)
USERS = {"alice": "secret"}


def may_send_raw() -> bool:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP):
            return True
    except PermissionError:
        return False


@pytest.mark.parametrize("transport", ["u1", "t1"])
async def test_a_call_and_its_media_both_ways(tmp_path: Path, transport: str) -> None:
    """sipp says again what it hears: what comes back is what the agent said, to the last bit."""
    said = speech(1.5)
    async with sip_line(agent=GREETS, says=said, deaf=True) as line:
        await run_sipp(tmp_path, "call", line.port, "-t", transport, "-rtp_echo", "-d", "2000")
        await line.here.empty()
        (record,) = line.records
        assert (record.cause, record.transport) == ("caller_hung_up", "sip")
        assert media_of(record)["lost"] == 0
        assert line.ears.same_as(said)


async def test_a_call_in_a_law(tmp_path: Path) -> None:
    said = speech(1.0)
    async with sip_line(agent=GREETS, says=said, deaf=True) as line:
        await run_sipp(tmp_path, "alaw", line.port, "-rtp_echo", "-d", "1500")
        await line.here.empty()
        assert line.ears.same_as(said)


async def test_options_follow_readiness(tmp_path: Path) -> None:
    async with sip_line() as line:
        await run_sipp(tmp_path, "options", line.port)
        await line.here.gateway.switchboard.drain(0)
        await run_sipp(tmp_path, "options_unready", line.port)
        ran = await run_sipp(tmp_path, "many", line.port)
        assert ran.counters == {"answered": 0, "busy": 0, "full": 1}


async def test_it_is_cancelled_while_it_rings(tmp_path: Path) -> None:
    async with sip_line(ring_s=20) as line:
        await run_sipp(tmp_path, "cancel", line.port)
        await line.here.empty()
        (record,) = line.records
        assert (record.cause, record.view()["answered_ms"]) == ("caller_hung_up", None)
        assert media_of(record)["frames_out"] == 0


async def test_on_hold_nothing_is_said_and_nothing_is_missing_afterwards(tmp_path: Path) -> None:
    said = speech(2.0)
    async with sip_line(agent=GREETS, says=said, deaf=True) as line:
        async with sipp(tmp_path, "hold", line.port, "-rtp_echo", "-d", "1000") as caller:
            await line.until(lambda: line.counted("line_held"))
            await asyncio.sleep(0.1)  # the last of it is on its way
            before = len(line.ears.heard())
            await asyncio.sleep(0.5)
            assert len(line.ears.heard()) == before
            await line.until(lambda: line.counted("line_resumed"))
            await caller.done()
        await line.here.empty()
        # The agent goes on where it was when it was put on hold: both parts together are what it had to say.
        assert line.ears.same_as(said[:4_000])
        assert line.ears.same_as(said[-4_000:])


async def test_it_rings_reliably(tmp_path: Path) -> None:
    async with sip_line(ring_s=0.2) as line:
        await run_sipp(tmp_path, "prack", line.port)
        await line.here.empty()
        assert [record.cause for record in line.records] == ["caller_hung_up"]


@pytest.mark.skipif(not may_send_raw(), reason="sipp sends recorded packets by a raw socket, which needs root")
async def test_keys_as_rtp_events(tmp_path: Path) -> None:
    async with sip_line() as line:
        await run_sipp(tmp_path, "dtmf", line.port, "-d", "500")
        await line.here.empty()
        assert line.said_by_caller() == ["(keypad: 159*0)"]


async def test_keys_by_info(tmp_path: Path) -> None:
    async with sip_line() as line:
        await run_sipp(tmp_path, "info", line.port, "-d", "500")
        await line.here.empty()
        assert line.said_by_caller() == ["(keypad: 42)"]


async def test_a_password_is_asked_for_and_given(tmp_path: Path) -> None:
    async with sip_line(users=USERS) as line:
        await run_sipp(tmp_path, "digest", line.port, "-au", "alice", "-ap", "secret")
        await line.here.empty()
        assert len(line.records) == 1


async def test_a_wrong_password(tmp_path: Path) -> None:
    async with sip_line(users=USERS) as line:
        await run_sipp(tmp_path, "digest_wrong", line.port, "-au", "alice", "-ap", "guess")
        assert line.records == []


async def test_an_invite_without_an_offer(tmp_path: Path) -> None:
    said = speech(1.0)
    async with sip_line(agent=GREETS, says=said, deaf=True) as line:
        await run_sipp(tmp_path, "late_offer", line.port, "-rtp_echo", "-d", "1500")
        await line.here.empty()
        assert line.ears.same_as(said)


async def test_a_session_timer(tmp_path: Path) -> None:
    async with sip_line() as line:
        await run_sipp(tmp_path, "timer", line.port)
        await line.here.empty()
        assert [record.cause for record in line.records] == ["caller_hung_up"]
