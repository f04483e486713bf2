"""What callers do beside talking, against the served gateway: hold and vanish. Real sockets, scripted engines."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from loadtest.call import CALL_RATE_HZ, PHONE_RATE_HZ, CallPlan, CallTape, EndCause
from loadtest.placing import place_planned_call
from loadtest.script import HoldLine, Line, Pause, Say, Step, Vanish
from loadtest.voice import say_line
from tests.e2e.test_offhook_call_phones import COST, engines, settings
from tests.serving import eventually, served

pytestmark = pytest.mark.e2e

STORY = " ".join(
    f"{word}ing" for word in "go see try do be say ask eat run walk sing read cook fly row dig".split() * 4
)


def say(rate_hz: int) -> Say:
    pcm = say_line(COST, rate_hz)
    return Say(Line(COST, pcm, len(pcm) * 1000 / rate_hz))


def heard_s(tape: CallTape, begin_s: float, end_s: float) -> float:
    """How many seconds of the agent's voice there are in a part of a call."""
    part = tape.agent[int(begin_s * tape.rate_hz) : int(end_s * tape.rate_hz)]
    slots = part[: len(part) // 160 * 160].reshape(-1, 160)
    return float(np.count_nonzero(slots.any(axis=1)) * 160 / tape.rate_hz)


async def test_an_agent_on_hold_is_silent_and_speaks_again_when_it_is_taken_back() -> None:
    set_ = engines(stt=ScriptedStt((COST,) * 2, partial_every_ms=100), llm=ScriptedLlm(lambda _messages: STORY))
    steps: tuple[Step, ...] = (say(PHONE_RATE_HZ), Pause(3_000), HoldLine(2_000), say(PHONE_RATE_HZ), Pause(3_000))
    async with served(set_.set, settings()) as here:
        url = f"sip:long@127.0.0.1:{here.gateway.settings.sip.port}"
        tape = await place_planned_call(CallPlan(url, steps, rate_hz=PHONE_RATE_HZ))
        await here.empty()
    first, second = (mark.start / PHONE_RATE_HZ for mark in tape.marks)
    held_s = second - 2
    assert heard_s(tape, first, held_s) > 0.5
    assert heard_s(tape, held_s + 1, second) == 0  # what was under way is heard yet
    assert heard_s(tape, second, len(tape.agent) / PHONE_RATE_HZ) > 0.5
    assert (tape.end_cause, tape.heard.frames_lost, tape.log.errors) == (EndCause.HANGUP, 0, [])


@pytest.mark.parametrize("wire", ["websocket", "audiosocket"])
async def test_who_vanishes_is_missed_when_the_connection_breaks_and_no_sooner(wire: str) -> None:
    async with served(engines(stt=ScriptedStt((COST,))).set, settings()) as here:
        tables = here.gateway.settings
        if wire == "websocket":
            url, rate_hz = f"{here.ws}?agent=long", CALL_RATE_HZ
        else:
            uuid = next(iter(tables.audiosocket.uuids))
            url, rate_hz = f"audiosocket://127.0.0.1:{tables.audiosocket.port}/{uuid}", PHONE_RATE_HZ
        switchboard = here.gateway.switchboard
        calling = asyncio.create_task(
            place_planned_call(CallPlan(url, (Pause(300), Vanish()), rate_hz=rate_hz, linger_s=1.5))
        )
        await eventually(lambda: switchboard.live)
        await asyncio.sleep(1.0)
        assert switchboard.live  # nobody said goodbye
        tape = await calling
        await here.empty()
        (record,) = here.gateway.recent
    assert tape.end_cause is EndCause.VANISHED
    # Asterisk ends every call by ending its connection
    assert record.cause == {"websocket": "connection_lost", "audiosocket": "caller_hung_up"}[wire]
