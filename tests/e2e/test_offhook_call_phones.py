"""``offhook call`` over the phone wires against the served gateway: real sockets, real time, scripted engines."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import SecretStr

from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts, word_tone_hz
from gateway.settings import AgentSettings, Settings
from loadtest.call import PhoneOptions
from loadtest.command import CallOptions, Press, Say, place_call
from loadtest.report import CallReport
from loadtest.script import Patience
from tests.gateway.call_rig import Engines
from tests.serving import Served, eventually, served

pytestmark = pytest.mark.e2e

GREETING = "Hello this is Anna speaking."
PATIENCE = Patience(greeting_ms=1_500, answer_ms=8_000, pause_ms=500)
COST, STOP, CAPITAL = "How much does it cost?", "Stop.", "Do you deliver?"
TOKEN = "an auth token of Twilio's"
PHONES = ("sip", "sip-tcp", "twilio", "audiosocket")
IDS = {name: (uuid.uuid4(), uuid.uuid4()) for name in ("anna", "long", "clerk")}
"""Whom AudioSocket calls: each agent has two UUIDs."""
AGENTS = {
    "anna": AgentSettings(greeting=GREETING, silence_ms=300),
    "long": AgentSettings(greeting="", silence_ms=300),
    "clerk": AgentSettings(
        greeting="",
        silence_ms=300,
        tools=("end_call", "transfer", "send_dtmf", "hold"),
        transfer_targets={"billing": "sip:billing@pbx.example"},
    ),
}


def settings(**given: Any) -> Settings:
    return Settings.model_validate(
        {
            "preset": "null",
            "max_calls": 3,
            "farewell": "Goodbye now my friend.",
            "agents": AGENTS,
            "sip": {"enabled": True, "port": free_port()},
            "twilio": {"enabled": True, "auth_token": SecretStr(TOKEN), "api_url": "http://127.0.0.1:9"},
            "audiosocket": {
                "enabled": True,
                "port": free_port(),
                "uuids": {str(call): agent for agent, calls in IDS.items() for call in calls},
            },
            **given,
        }
    )


def free_port() -> int:
    with socket.socket() as udp_too, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        udp_too.bind(("127.0.0.1", 0))
        port: int = udp_too.getsockname()[1]
        taken.bind(("127.0.0.1", port))
        return port


def engines(**kwargs: Any) -> Engines:
    return Engines(**{"tts": ScriptedTts(100), "llm": ScriptedLlm(), **kwargs})


Place = Callable[..., Coroutine[Any, Any, CallReport]]


@pytest.fixture(params=PHONES)
def call(request: pytest.FixtureRequest) -> Place:
    """Places a call; every scenario runs on every phone."""
    ids = {agent: itertools.cycle(calls) for agent, calls in IDS.items()}

    async def place(here: Served, *lines: str | Press, agent: str, **options: Any) -> CallReport:
        tables = here.gateway.settings
        phone: str | None = agent
        match request.param:
            case "sip":
                url = f"sip:127.0.0.1:{tables.sip.port}"
            case "sip-tcp":
                url = f"sip:127.0.0.1:{tables.sip.port};transport=tcp"
            case "twilio":
                url = f"twilio+{here.url.replace('http', 'ws', 1)}/v1/carriers/twilio/stream"
            case _:
                url = f"audiosocket://127.0.0.1:{tables.audiosocket.port}/{next(ids[agent])}"
                phone = None
        said = tuple(Say(line) if isinstance(line, str) else line for line in lines)
        given = {"patience": PATIENCE, "phone": PhoneOptions(auth_token=TOKEN), **options}
        report = await place_call(CallOptions(url, said, agent=phone, **given))
        assert report.transport == request.param.removesuffix("-tcp")
        return report

    return place


async def test_a_greeting_and_two_turns(call: Place, tmp_path: Path) -> None:
    heard = (COST, CAPITAL)
    set_ = engines(stt=ScriptedStt(heard, partial_every_ms=300))
    record = tmp_path / "call.wav"
    async with served(set_.set, settings()) as here:
        report = await call(here, COST, CAPITAL, agent="anna", record=record)
        await here.empty()
        (record_there,) = here.gateway.recent
    assert (report.answered, report.errors, report.end_cause) == (True, [], "hangup")
    assert report.greeting is not None
    assert all(turn.voice_to_voice_ms is not None for turn in report.turns)
    assert [(line.role, line.text) for line in record_there.transcript] == [
        ("assistant", GREETING),
        ("user", COST),
        ("assistant", "You said: How much does it cost."),
        ("user", CAPITAL),
        ("assistant", "You said: Do you deliver."),
    ]
    assert record_there.cause == "caller_hung_up"
    assert record_there.summary()["wire_id"] == report.call_id
    agent = agent_side(record)
    said = " ".join(line.text for line in record_there.transcript if line.role == "assistant").split()
    tones = {word_tone_hz(word) for word in said}  # each word is one: what the gateway said was heard
    unsaid = next(hz for hz in range(350, 3_300, 50) if all(abs(hz - tone) >= 150 for tone in tones))
    assert min(power(agent, tone) for tone in tones) > 100 * power(agent, unsaid)


async def test_a_barge_in_is_heard_to_stop_and_the_context_holds_what_was_heard(call: Place) -> None:
    syllables = ("ba", "de", "fi", "go", "lu", "ma", "ne", "po")
    story = " ".join(first + second for first in syllables for second in syllables) + "."
    set_ = engines(
        stt=ScriptedStt((COST, "stop"), partial_every_ms=100),
        llm=ScriptedLlm(lambda messages: story if messages[-1].content == COST else "All right."),
    )
    async with served(set_.set, settings()) as here:
        report = await call(here, COST, agent="long", barge_in_after_ms=1_000, barge_in_text=STOP)
    assert report.answered
    assert report.turns[1].stop_ms is not None
    messages = {message.content: message.role for message in set_.llm.requests[-1].messages}
    cut = next(content for content, role in messages.items() if role == "assistant")
    assert cut.endswith("…")
    words = cut[:-1].split()
    assert words == story.split()[: len(words)]
    assert 5 <= len(words) <= 30


async def test_keys_are_heard_as_an_answer(call: Place) -> None:
    set_ = engines()
    async with served(set_.set, settings()) as here:
        report = await call(here, Press("42#"), agent="anna")
    assert (report.answered, report.errors) == (True, [])
    assert report.turns[0].pressed_keys == "42#"
    said = set_.llm.requests[-1].messages[-1].content
    assert "4" in said
    assert "2" in said


async def test_a_drain_says_goodbye_and_ends_the_call(call: Place) -> None:
    set_ = engines(llm=ScriptedLlm(lambda messages: "word " * 200))
    async with served(set_.set, settings()) as here:
        patience = Patience(pause_ms=5_000)  # longer than a gateway tries to reach the carrier's API, which is not here
        calling = asyncio.create_task(call(here, COST, agent="long", patience=patience))
        await eventually(lambda: any(record.phase == "speaking" for record in here.gateway.switchboard.calls()))
        await asyncio.sleep(1)  # some of it is heard
        draining = asyncio.create_task(here.gateway.switchboard.drain(0))
        report = await calling
        await draining
        assert [record.cause for record in here.gateway.recent] == ["server_drain"]
    assert (report.answered, report.end_cause) == (True, "agent_hangup")


async def test_a_caller_beyond_the_cap_is_told_so(call: Place) -> None:
    set_ = engines()
    async with served(set_.set, settings(max_calls=1)) as here:
        admission = await here.gateway.switchboard.admit("sip")
        with admission:
            report = await call(here, COST, agent="anna")
        assert not report.answered
        assert report.end_cause in ("busy", "agent_hangup")  # AudioSocket has no word for it
        here.faults.clear()  # uvicorn logs an error of every denial


async def test_two_callers_at_once_hear_only_their_own(call: Place, tmp_path: Path) -> None:
    owners: dict[str, str] = {}

    def line(call_id: str, _: int) -> str:
        return owners.setdefault(call_id, "zebra" if owners else "banjo")

    set_ = engines(stt=ScriptedStt(line), llm=ScriptedLlm(lambda messages: f"{messages[-1].content} " * 6))
    files = [tmp_path / f"{number}.wav" for number in range(2)]
    async with served(set_.set, settings()) as here:
        reports = await asyncio.gather(*(call(here, COST, CAPITAL, agent="long", record=file) for file in files))
        await here.empty()
        ids = {record.id: record.summary()["wire_id"] for record in here.gateway.recent}
    assert sorted(owners.values()) == ["banjo", "zebra"]
    by_wire = {ids[call_id]: word for call_id, word in owners.items()}
    for report, file in zip(reports, files, strict=True):
        own = by_wire[str(report.call_id)]
        other = next(word for word in owners.values() if word != own)
        assert report.answered
        assert power(agent_side(file), word_tone_hz(own)) > 1_000 * power(agent_side(file), word_tone_hz(other))


def calls(words: str, tool: str, **arguments: object) -> ScriptedLlm:
    """A model that answers the caller with words and a tool, and says of any result that it is done."""
    call = f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"
    return ScriptedLlm(lambda messages: "That is done." if messages[-1].role == "tool" else f"{words} {call}")


async def test_the_agent_hangs_up_when_its_goodbye_was_heard(call: Place, tmp_path: Path) -> None:
    record = tmp_path / "call.wav"
    patience = Patience(pause_ms=5_000)
    async with served(engines(llm=calls("Goodbye dear caller.", "end_call")).set, settings()) as here:
        report = await call(here, COST, agent="clerk", record=record, patience=patience)
        await here.empty()
        assert [each.cause for each in here.gateway.recent] == ["agent_hung_up"]
    assert (report.answered, report.end_cause) == (True, "agent_hangup")
    agent = agent_side(record)
    for word in ("goodbye", "dear", "caller"):
        assert power(agent, word_tone_hz(word)) > 0.05 * power(agent, word_tone_hz("goodbye"))


async def test_a_sip_caller_is_handed_over() -> None:
    async with served(engines(llm=calls("One moment.", "transfer", target="billing")).set, settings()) as here:
        url = f"sip:clerk@127.0.0.1:{here.gateway.settings.sip.port}"
        report = await place_call(CallOptions(url, (Say(COST),), patience=Patience(pause_ms=5_000)))
        await here.empty()
        assert [each.cause for each in here.gateway.recent] == ["transferred"]
    assert (report.end_cause, report.transferred_to) == ("agent_hangup", "sip:billing@pbx.example")


async def test_a_sip_caller_hears_the_agents_keys() -> None:
    async with served(engines(llm=calls("I press.", "send_dtmf", digits="19#")).set, settings()) as here:
        url = f"sip:clerk@127.0.0.1:{here.gateway.settings.sip.port}"
        report = await place_call(CallOptions(url, (Say(COST),), patience=Patience(pause_ms=2_500)))
    assert (report.keys_heard, report.errors) == ("19#", [])
    assert report.media is not None
    assert report.media.packets_lost == 0


async def test_a_sip_caller_is_put_on_hold_and_taken_back() -> None:
    set_ = engines(llm=calls("Please hold.", "hold", seconds=1))
    async with served(set_.set, settings()) as here:
        url = f"sip:clerk@127.0.0.1:{here.gateway.settings.sip.port}"
        report = await place_call(CallOptions(url, (Say(COST), Say(CAPITAL)), patience=Patience(pause_ms=3_000)))
        (record,) = here.gateway.recent
    assert (report.end_cause, report.errors) == ("hangup", [])
    assert all(turn.voice_to_voice_ms is not None for turn in report.turns)
    assert sum(line.role == "user" for line in record.transcript) == 2  # it hears the caller again


def agent_side(path: Path) -> np.ndarray[Any, Any]:
    data = path.read_bytes()
    return np.frombuffer(data[data.index(b"data") + 8 :], "<i2").reshape(-1, 2)[:, 1]


def power(pcm: np.ndarray[Any, Any], frequency_hz: int) -> float:
    spectrum = np.abs(np.fft.rfft(pcm.astype(float))) ** 2
    bins = np.fft.rfftfreq(len(pcm), 1 / 8_000)
    return float(spectrum[np.abs(bins - frequency_hz) < 12].max())
