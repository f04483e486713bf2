"""Calls that end in every state they can be in, and leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from engines.llm.scripted import ScriptedLlm
from engines.tts.scripted import NEVER
from streaming.conversation import Item, PartKind
from streaming.events import CommitInput, CreateItem, CreateResponse
from tests.gateway.call_rig import (
    AGENT,
    MANUAL,
    PLAIN,
    QUIET_AGENT,
    CallRig,
    Engines,
    hush,
    voice,
)
from tests.virtual_time import VirtualLoop, virtual

LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen fifteen sixteen."


async def ringing(rig: CallRig) -> None:
    pass


async def waiting(rig: CallRig) -> None:
    rig.call.answered()
    await rig.hear(hush(64))


async def greeting(rig: CallRig) -> None:
    rig.call.answered()
    await asyncio.sleep(0.2)


async def hearing(rig: CallRig) -> None:
    await rig.call.hear(voice(500))
    await asyncio.sleep(0.05)


async def pausing(rig: CallRig) -> None:
    await rig.call.hear(voice(300))
    await asyncio.sleep(0.3)
    await rig.call.hear(hush(200))
    await asyncio.sleep(0.01)


async def transcribing(rig: CallRig) -> None:
    rig.engines.stt.final_delay_s = 2.0
    await rig.call.hear(voice(300))
    await asyncio.sleep(0.3)
    await rig.call.hear(hush(1_500))
    await asyncio.sleep(0.01)


async def thinking(rig: CallRig) -> None:
    rig.engines.llm.fault = "stall_first"
    rig.call.handle(CreateResponse())
    await asyncio.sleep(0.1)


async def synthesizing(rig: CallRig) -> None:
    rig.engines.tts._fail_segments = {0: NEVER}
    rig.call.handle(CreateResponse())
    await asyncio.sleep(0.1)


async def speaking(rig: CallRig) -> None:
    rig.call.handle(CreateResponse())
    await asyncio.sleep(0.5)


async def held(rig: CallRig) -> None:
    await speaking(rig)
    await rig.call.hear(voice(160))
    await asyncio.sleep(0.01)


async def congested(rig: CallRig) -> None:
    await speaking(rig)
    rig.leg.congested = True
    await asyncio.sleep(1)


async def playing_out(rig: CallRig) -> None:
    rig.engines.llm._reply = lambda messages: "Yes."
    await speaking(rig)


async def saying_goodbye(rig: CallRig) -> None:
    rig.call.drain()
    await asyncio.sleep(0.1)


async def pressing(rig: CallRig) -> None:
    await rig.call.hear(voice(500))
    await asyncio.sleep(0.01)


async def pressed(rig: CallRig) -> None:
    rig.engines.stt.final_delay_s = 2.0
    await pressing(rig)
    rig.call.handle(CommitInput(rig.call.heard_samples))
    rig.call.handle(CreateResponse())
    await asyncio.sleep(0.1)


async def speculating(rig: CallRig) -> None:
    rig.engines.turn._probabilities = (0.0,)
    rig.engines.llm.first_token_delay_s = 2.0
    await rig.call.hear(voice(300))
    await asyncio.sleep(0.3)
    await rig.call.hear(hush(250))
    await asyncio.sleep(0.2)
    assert rig.engines.llm.running


SPECULATIVE = msgspec.structs.replace(QUIET_AGENT, turn=msgspec.structs.replace(QUIET_AGENT.turn, speculate=True))
STATES: list[tuple[Callable[[CallRig], Coroutine[Any, Any, None]], Any, str]] = [
    (ringing, PLAIN, "waiting"),
    (waiting, PLAIN, "waiting"),
    (greeting, AGENT, "speaking"),
    (hearing, PLAIN, "hearing"),
    (pausing, PLAIN, "hearing"),
    (transcribing, PLAIN, "thinking"),
    (thinking, PLAIN, "thinking"),
    (synthesizing, PLAIN, "thinking"),
    (speaking, PLAIN, "speaking"),
    (held, QUIET_AGENT, "held"),
    (congested, PLAIN, "speaking"),
    (playing_out, PLAIN, "waiting"),
    (saying_goodbye, PLAIN, "speaking"),
    (pressing, MANUAL, "hearing"),
    (pressed, MANUAL, "thinking"),
    (speculating, SPECULATIVE, "hearing"),
]
NAMES = [reach.__name__ for reach, _, _ in STATES]


def timers() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return sum(not timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]


def engines_for_every_state() -> Engines:
    return Engines(llm=ScriptedLlm(lambda messages: LONG))


def assert_back_to_base(engines: Engines, rigs: list[CallRig], tasks: int) -> None:
    assert len(asyncio.all_tasks()) == tasks
    assert timers() == 0
    assert engines.vad.open_streams == 0
    assert engines.stt.open_streams == 0
    assert engines.llm.running == 0
    assert engines.tts.open_segments == 0
    assert sorted(engines.llm.forgotten) == sorted(rig.call.id for rig in rigs)
    for rig in rigs:
        assert rig.call.finished.is_set()
        assert not rig.call._caller._streams
        assert not rig.call._playout._tracks
        assert rig.call._timer is None


@pytest.mark.parametrize(("reach", "config", "state"), STATES, ids=NAMES)
@virtual
async def test_two_hundred_hang_ups_leave_nothing(reach: Any, config: Any, state: str) -> None:
    """CASES.md, leaks: all of them at once, on one set of engines."""
    engines = engines_for_every_state()
    tasks = len(asyncio.all_tasks())
    rigs = [CallRig(config, engines) for _ in range(200)]
    await asyncio.gather(*(reach(rig) for rig in rigs))
    for rig in rigs:
        assert rig.call._session.state == state
        rig.call.hang_up("caller_hung_up")
        rig.call.hang_up("connection_lost")
    before = [len(rig.leg.log) for rig in rigs]
    await asyncio.sleep(5)
    assert_back_to_base(engines, rigs, tasks)
    assert [len(rig.leg.log) for rig in rigs] == before, "nothing leaves after the end"
    assert {rig.record.cause for rig in rigs} == {"caller_hung_up"}
    gone = [weakref.ref(rig.call) for rig in rigs]
    rigs.clear()
    del rig
    gc.collect()
    assert not any(call() for call in gone), "somebody still holds an ended call"


@pytest.mark.parametrize("farewell", [True, False], ids=["farewell", "text only"])
@pytest.mark.parametrize(("reach", "config", "state"), STATES, ids=NAMES)
@virtual
async def test_a_drain_ends_every_state(reach: Any, config: Any, state: str, farewell: bool) -> None:
    engines = engines_for_every_state()
    tasks = len(asyncio.all_tasks())
    rig = CallRig(msgspec.structs.replace(config, audio_output=farewell), engines)
    await reach(rig) if farewell or reach not in (greeting, held, congested) else await waiting(rig)
    rig.leg.congested = False
    engines.tts._fail_segments = {}
    before = rig.leg.samples()
    rig.call.drain()
    rig.call.drain()
    rig.call.writable()
    await asyncio.sleep(3)
    assert rig.record.cause == "server_drain"
    if farewell:
        assert rig.record.transcript[-1].text == "Goodbye now."
        said = rig.leg.samples() - before
        assert said >= 2 * 250 * 24 or reach is saying_goodbye
    assert_back_to_base(engines, [rig], tasks)


@virtual
async def test_the_longest_call_ends_by_itself() -> None:
    rig = CallRig(msgspec.structs.replace(PLAIN, max_call_s=60.0))
    rig.call.handle(CreateItem(Item("item_1", "user", PartKind.INPUT_TEXT, "hello")))
    await asyncio.sleep(61)
    assert rig.record.cause == "max_duration"
    assert rig.record.ended_ms == pytest.approx(60_000)
    assert_back_to_base(rig.engines, [rig], len(asyncio.all_tasks()))


@virtual
async def test_replies_of_every_end_leave_no_audio_behind() -> None:
    """Also those that failed half way or ran into their limit of tokens."""
    engines = Engines(llm=ScriptedLlm(lambda messages: LONG))
    rig = CallRig(PLAIN, engines)
    short = msgspec.structs.replace(PLAIN, max_output_tokens=4)
    limited = CallRig(short, engines)
    for call in (rig, limited):
        engines.llm.fault = "fail_midway" if call is rig else "none"
        for _ in range(3):
            call.call.handle(CreateResponse())
            await asyncio.sleep(9)
            assert not call.call._playout._tracks
    assert [response.status for response in rig.leg.done] == ["failed"] * 3
    assert [response.status for response in limited.leg.done] == ["incomplete"] * 3
    for call in (rig, limited):
        await call.end()
