"""What an agent does to its line, in virtual time: each once, and answered once, however the line behaves."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable

import pytest

from engines.llm.scripted import ScriptedLlm
from engines.tts.scripted import ScriptedTts
from gateway.phone_settings import PhoneSettings
from gateway.settings import AgentSettings, Settings
from gateway.transports.phone import phone_call
from gateway.transports.phone.line import Ability, LineError
from streaming.effects import SendDtmf, Transfer
from tests.gateway.call_rig import Engines
from tests.gateway.transports.fake_peer import causes, gateway_with
from tests.gateway.transports.phone.fake_line import FakeLine, phoned
from tests.virtual_time import virtual

ALL = frozenset(Ability)
ANNA = AgentSettings(
    apology="",
    silence_ms=300,
    tools=("end_call", "transfer", "send_dtmf", "hold"),
    transfer_targets={"sales": "+15550009"},
)
SETTINGS = Settings(preset="null", agents={"anna": ANNA}, phone=PhoneSettings(agent="anna"))


def calling(name: str, words: str = "One moment please.", **arguments: object) -> Engines:
    """An agent that calls this tool once, and then says how it went."""
    call = json.dumps({"name": name, "arguments": arguments})
    said = itertools.chain([f"{words} <tool_call>{call}</tool_call>"], itertools.repeat("It is done."))
    return Engines(llm=ScriptedLlm(lambda messages: next(said)), tts=ScriptedTts())


def results(engines: Engines) -> list[str]:
    return [message.content for message in engines.llm.requests[-1].messages if message.role == "tool"]


@virtual
async def test_an_agent_transfers_its_caller_once_its_words_were_heard() -> None:
    async with gateway_with(calling("transfer", target="sales"), SETTINGS) as (_, gateway):
        line = FakeLine(abilities=ALL, latency_s=0.1, slow_s=0.4)
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: line.names("transfer"))
            assert line.names("transfer") == ["+15550009"]
            spoken = sum(1 for _, pcm in line.heard if pcm.any())
            assert spoken * 20 >= 750 - 20, "three words, played 600 ms late"
            await line.until(call.call.finished.is_set)
        assert causes(gateway) == ["transferred"]
        assert line.names("hang_up") == ["transferred"]


@virtual
async def test_the_goodbye_is_heard_before_the_agent_hangs_up() -> None:
    async with gateway_with(calling("end_call", "Goodbye to you."), SETTINGS) as (_, gateway):
        line = FakeLine(latency_s=0.1, slow_s=0.8)
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(call.call.finished.is_set)
            assert sum(1 for _, pcm in line.heard if pcm.any()) * 20 >= 730
        assert line.names("hang_up") == ["agent_hung_up"]


@virtual
async def test_keys_and_holds() -> None:
    async with gateway_with(calling("send_dtmf", digits="12#"), SETTINGS) as (_, gateway):
        line = FakeLine(abilities=ALL)
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: len(call.call.record.turns) >= 2)
            assert line.names("dtmf") == ["12#"]
    engines = calling("hold", seconds=2)
    async with gateway_with(engines, SETTINGS) as (_, gateway):
        line = FakeLine(abilities=ALL)
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: len(call.call.record.turns) >= 2)
            assert line.names("hold") == [True, False]
            assert "done" in results(engines)[0]


@virtual
async def test_an_agent_has_only_the_tools_that_its_line_can_do() -> None:
    engines = calling("transfer", target="sales")
    async with gateway_with(engines, SETTINGS) as (_, gateway):
        line = FakeLine(abilities=frozenset({Ability.SEND_DTMF}))
        async with phoned(gateway, line):
            await line.speak(800)
            await line.until(lambda: len(engines.llm.requests) >= 1)
            await line.hush(3_000)
            assert [tool.name for tool in engines.llm.requests[0].tools] == ["end_call", "send_dtmf"]
            assert not line.names("transfer")


@pytest.mark.parametrize(
    ("failing", "code"),
    [
        (lambda: LineError("busy", "that number is busy"), "busy"),
        (lambda: ZeroDivisionError("a line that breaks down"), "line_failed"),
        (lambda: None, "timeout"),
    ],
)
@virtual
async def test_a_transfer_that_fails_is_told_to_the_model_and_the_call_goes_on(
    failing: Callable[[], Exception | None], code: str
) -> None:
    engines = calling("transfer", target="sales")
    async with gateway_with(engines, SETTINGS) as (_, gateway):
        line = FakeLine(abilities=ALL)
        line.fails = failing()
        line.takes_s = 0.3 if line.fails else 1_000.0
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: len(engines.llm.requests) == 2, within_s=200)
            assert f'"error":"{code}"' in results(engines)[0]
            await line.until(lambda: len(call.call.record.turns) >= 2)
            assert not call.call.finished.is_set()
            line.fails = None
        assert line.names("transfer") == ["+15550009"]


@virtual
async def test_a_wire_that_ends_the_call_as_it_hands_it_over_has_transferred_it() -> None:
    for failed, cause in ((None, "transferred"), (LineError("declined", "no"), "caller_hung_up")):
        async with gateway_with(calling("transfer", target="sales"), SETTINGS) as (_, gateway):
            line = FakeLine(abilities=ALL)
            line.takes_s = 2.0
            async with phoned(gateway, line) as call:
                await line.speak(800)
                await line.until(lambda line=line: line.names("transfer"))  # type: ignore[misc]
                line.fails = failed
                line.drop()
                line.drop()
                await asyncio.sleep(1.5)
                assert not call.call.finished.is_set()
                await asyncio.sleep(1)
                assert call.call.finished.is_set()
                line.fails = None
            assert causes(gateway) == [cause]


@virtual
async def test_a_line_that_is_gone_and_never_says_what_became_of_its_transfer_is_waited_for_5_s() -> None:
    async with gateway_with(calling("transfer", target="sales"), SETTINGS) as (_, gateway):
        line = FakeLine(abilities=ALL)
        line.takes_s = 1_000.0
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: line.names("transfer"))
            line.drop("connection_lost")
            call._control(SendDtmf("other", "1"))
            await asyncio.sleep(4.9)
            assert not call.call.finished.is_set()
            await asyncio.sleep(0.2)
            assert call.call.finished.is_set()
        assert causes(gateway) == ["connection_lost"]
        assert not line.names("dtmf")


@virtual
async def test_who_hangs_up_in_the_middle_of_it_leaves_nothing_behind() -> None:
    async with gateway_with(calling("transfer", target="sales"), SETTINGS) as (_, gateway):
        line = FakeLine(abilities=ALL)
        line.takes_s = 1_000.0
        async with phoned(gateway, line) as call:
            await line.speak(800)
            await line.until(lambda: line.names("transfer"))
            call.call.hang_up("operator_hung_up")
        assert line.names("hang_up") == ["operator_hung_up"]


@virtual
async def test_no_more_is_asked_of_a_line_at_once_than_it_may_be() -> None:
    async with gateway_with(settings=SETTINGS) as (_, gateway):
        line = FakeLine(abilities=ALL)
        line.takes_s = 10.0
        async with phoned(gateway, line) as call:
            for number in range(phone_call.MAX_CONTROLS + 1):
                call._control(Transfer(f"t{number}", "+1"))
            await asyncio.sleep(0)
            assert len(line.names("transfer")) == phone_call.MAX_CONTROLS
