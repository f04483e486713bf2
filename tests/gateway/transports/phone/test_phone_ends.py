"""How phone calls end: from either side, in every state, with lines that misbehave; and nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from engines.api import Pcm16
from engines.llm.scripted import ScriptedLlm
from engines.tts.scripted import ScriptedTts
from gateway.agents.agent import UnknownAgent
from gateway.call_setup import CallNotSetUp
from gateway.phone_settings import PhoneSettings
from gateway.settings import AgentSettings, Settings
from gateway.state import Gateway
from gateway.transports.phone.line import Ability, Incoming, PlayoutOwner
from gateway.transports.phone.phone_call import HANG_UP_S, PhoneCall
from tests.gateway.call_rig import Engines
from tests.gateway.test_call_setup import BrokenVad
from tests.gateway.transports.fake_peer import LONG, causes, gateway_with, replying
from tests.gateway.transports.phone.fake_line import FakeLine, phoned
from tests.virtual_time import virtual

OWNERS = pytest.mark.parametrize("owner", list(PlayoutOwner))
ANNA = AgentSettings(
    greeting="Hello there.",
    apology="Sorry.",
    silence_ms=300,
    tools=("end_call", "transfer", "send_dtmf", "hold"),
    transfer_targets={"sales": "+15550009"},
)
SETTINGS = Settings(preset="null", max_calls=400, agents={"anna": ANNA}, phone=PhoneSettings(agent="anna"))


def metric(gateway: Gateway, sample: str, **labels: str) -> float:
    return gateway.metrics._registry.get_sample_value(sample, labels) or 0.0


def counted(gateway: Gateway, name: str) -> float:
    return metric(gateway, "offhook_events_total", name=name)


def busy_agent() -> Engines:
    said = itertools.cycle(
        [LONG, *(f"Wait. <tool_call>{json.dumps({'name': n, 'arguments': a})}</tool_call>" for n, a in TOOLS)]
    )
    return Engines(llm=ScriptedLlm(lambda messages: next(said), first_token_delay_s=0.1), tts=ScriptedTts())


TOOLS = (("send_dtmf", {"digits": "1"}), ("hold", {"seconds": 5}), ("transfer", {"target": "sales"}))


@OWNERS
@virtual
async def test_200_calls_hung_up_in_every_state_from_either_side_leave_nothing(owner: PlayoutOwner) -> None:
    """Every 160 ms of a conversation with words, barge-ins, keys, holds and a transfer, by turns from one side and the
    other; 100 calls on each kind of line. What is left of tasks, places and engines' streams fails in
    :func:`gateway_with`."""
    async with gateway_with(busy_agent(), SETTINGS) as (_, gateway):

        async def one(number: int) -> None:
            line = FakeLine(owner, abilities=frozenset(Ability), latency_s=0.03)
            line.takes_s = 0.4
            async with phoned(gateway, line) as call:

                async def talk() -> None:
                    for _ in range(4):
                        await line.hush(1_000)
                        call.dtmf("5")
                        call.held(True)
                        await line.speak(500)
                        call.held(False)
                        await line.speak(800)
                        await line.hush(2_000)

                talking = asyncio.create_task(talk())
                await asyncio.sleep(number * 0.16)
                if number % 2:
                    call.call.hang_up("operator_hung_up")
                else:
                    line.drop("caller_hung_up")
                await talking
            assert len(line.names("hang_up")) == 1
            assert not call._controls

        await asyncio.gather(*(one(number) for number in range(100)))
        assert set(causes(gateway)) <= {"operator_hung_up", "caller_hung_up", "transferred"}
        assert len(causes(gateway)) == 100
        assert counted(gateway, "defect") == 0


@virtual
async def test_a_call_whose_task_is_cancelled_hangs_its_line_up_all_the_same() -> None:
    async with gateway_with(settings=SETTINGS) as (_, gateway):
        line = FakeLine()
        with await gateway.switchboard.admit() as admission:
            call = PhoneCall(gateway, admission, Incoming("sip"), line)
            line.events = call
            running = asyncio.create_task(call.run())
            await line.hush(500)
            running.cancel()
            await asyncio.wait({running})
            assert running.cancelled()
        assert line.names("hang_up") == ["server_stop"]
        assert causes(gateway) == ["server_stop"]


@virtual
async def test_a_line_that_does_not_come_down_or_breaks_down_is_given_up() -> None:
    async with gateway_with(settings=SETTINGS) as (_, gateway):
        loop = asyncio.get_running_loop()
        line = FakeLine()
        line.hang_up_takes_s = 1_000.0
        async with phoned(gateway, line) as call:
            await line.hush(500)
            call.call.hang_up("operator_hung_up")
            begun = loop.time()
        assert loop.time() == pytest.approx(begun + HANG_UP_S)
        assert counted(gateway, "line_hang_up_timeout") == 1
        line = FakeLine()
        async with phoned(gateway, line):
            line.fails = ZeroDivisionError("a line that breaks down")
        assert counted(gateway, "line_defect") == 1
        assert causes(gateway) == ["caller_hung_up", "operator_hung_up"]


class DeafLine(FakeLine):
    def play(self, pcm: Pcm16) -> None:
        raise ZeroDivisionError("a line that breaks its contract")


@virtual
async def test_a_defect_of_a_line_ends_no_call() -> None:
    async with gateway_with(settings=SETTINGS, strict=False) as (_, gateway):
        line = DeafLine()
        async with phoned(gateway, line) as call:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda *_: None)
            await line.speak(800)
            await line.hush(2_000)
            assert not call.call.finished.is_set()
            loop.set_exception_handler(None)


@virtual
async def test_one_that_comes_in_as_the_server_says_goodbye_hears_only_that() -> None:
    async with gateway_with(settings=SETTINGS) as (_, gateway):
        line = FakeLine()
        with await gateway.switchboard.admit() as admission:
            draining = asyncio.create_task(gateway.switchboard.drain(0.0))
            await asyncio.sleep(0.1)
            call = PhoneCall(gateway, admission, Incoming("sip"), line)
            line.events = call
            assert await call.run() == "server_drain"
            assert len(line.heard) > 50
        await draining


@virtual
async def test_a_call_that_cannot_be_set_up_is_an_answer_and_no_call() -> None:
    async with gateway_with(Engines(vad=BrokenVad()), SETTINGS) as (_, gateway):
        with await gateway.switchboard.admit() as admission:
            with pytest.raises(CallNotSetUp):
                PhoneCall(gateway, admission, Incoming("sip"), FakeLine())
            with pytest.raises(UnknownAgent):
                PhoneCall(gateway, admission, Incoming("sip", agent="nobody"), FakeLine())
        assert causes(gateway) == []


@virtual
async def test_an_admission_serves_one_call() -> None:
    async with gateway_with(settings=SETTINGS) as (_, gateway):
        first, line = FakeLine(), FakeLine()
        with await gateway.switchboard.admit() as admission:
            call = PhoneCall(gateway, admission, Incoming("sip"), first)
            other = PhoneCall(gateway, admission, Incoming("sip"), line)
            first.events, line.events = call, other
            running = asyncio.create_task(call.run())
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="registered once"):
                await other.run()
            assert line.names("hang_up") == ["internal_error"]
            call.hung_up("caller_hung_up")
            assert await running == "caller_hung_up"


@virtual
async def test_what_the_line_tells_of_its_media_is_counted_when_it_ends() -> None:
    async with gateway_with(replying(LONG), SETTINGS) as (_, gateway):
        line = FakeLine()
        async with phoned(gateway, line):
            await line.hush(2_000)
            assert metric(gateway, "offhook_phone_frames_total", kind="out") == 0
        assert metric(gateway, "offhook_phone_frames_total", kind="out") == len(line.sent) > 20
        assert metric(gateway, "offhook_phone_jitter_seconds_count") == 0
        gateway.metrics.phone_media(
            {**dict.fromkeys(("frames_in", "frames_out", "lost", "concealed", "late")), "jitter_ms": 7.0}
        )
        assert metric(gateway, "offhook_phone_jitter_seconds_sum") == pytest.approx(0.007)
        record = next(iter(gateway.recent))
        assert record.view()["quality"]["frames_out"] == len(line.sent)
