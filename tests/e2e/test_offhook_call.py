"""``offhook call`` against the served gateway: real sockets, real time, scripted engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import aioice.ice
import numpy as np
import pytest
from pydantic import SecretStr

from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts, word_tone_hz
from gateway.settings import AgentSettings, Settings
from gateway.transports.webrtc import candidates
from loadtest.command import CallOptions, Say, place_call
from loadtest.report import CallReport
from loadtest.script import Patience
from streaming.audio.wav import read_wav
from tests.gateway.call_rig import Engines
from tests.serving import Served, eventually, served

pytestmark = pytest.mark.e2e

GREETING = "Hello this is Anna speaking."
SETTINGS = Settings(
    preset="null",
    max_calls=3,
    farewell="Goodbye now my friend.",
    agents={
        "anna": AgentSettings(greeting=GREETING, silence_ms=300),
        "long": AgentSettings(greeting="", silence_ms=300),
    },
)
PATIENCE = Patience(greeting_ms=1_000, answer_ms=8_000, pause_ms=300)
COST, STOP, CAPITAL = "How much does it cost?", "Stop.", "Do you deliver?"


def engines(**kwargs: Any) -> Engines:
    return Engines(**{"tts": ScriptedTts(100), "llm": ScriptedLlm(), **kwargs})


Place = Callable[..., Coroutine[Any, Any, CallReport]]


@pytest.fixture(params=["websocket", "webrtc"])
def call(request: pytest.FixtureRequest) -> Place:
    """Places a call; every scenario runs on both transports."""

    async def place(here: Served, *lines: str, agent: str, **options: Any) -> CallReport:
        url = here.url if request.param == "webrtc" else here.ws
        said = tuple(Say(line) for line in lines)
        report = await place_call(CallOptions(url, said, agent=agent, patience=PATIENCE, **options))
        assert report.transport == request.param
        return report

    return place


async def test_a_greeting_and_three_turns(call: Place, tmp_path: Any) -> None:
    heard = (COST, CAPITAL, COST)
    set_ = engines(stt=ScriptedStt(heard, partial_every_ms=300))
    async with served(set_.set, SETTINGS) as here:
        report = await call(here, COST, CAPITAL, COST, agent="anna", record=tmp_path / "call.wav")
    assert report.answered
    assert report.errors == []
    assert report.end_cause == "hangup"
    assert report.greeting is not None
    assert report.greeting.agent_transcript == GREETING
    assert [turn.heard_text for turn in report.turns] == list(heard)
    assert [turn.agent_transcript for turn in report.turns] == [f"You said: {text[:-1]}." for text in heard]
    assert all(turn.voice_to_voice_ms is not None for turn in report.turns)
    prompt = [(message.role, message.content) for message in set_.llm.requests[-1].messages[1:]]
    assert prompt == [
        ("assistant", GREETING),
        ("user", COST),
        ("assistant", "You said: How much does it cost."),
        ("user", CAPITAL),
        ("assistant", "You said: Do you deliver."),
        ("user", COST),
    ]
    pcm, rate_hz = read_wav((tmp_path / "call.wav").read_bytes())
    assert rate_hz == 24_000
    assert len(pcm) > 5 * rate_hz


SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "po")
"""Words of these are spoken as they are written: of "word5", spoken as two words, half may be heard."""


async def test_a_barge_in_is_heard_to_stop_and_the_context_holds_what_was_heard(call: Place) -> None:
    story = " ".join(first + second for first in SYLLABLES for second in SYLLABLES) + "."
    set_ = engines(
        stt=ScriptedStt((COST, "stop"), partial_every_ms=100),
        llm=ScriptedLlm(lambda messages: story if messages[-1].content == COST else "All right."),
    )
    async with served(set_.set, SETTINGS) as here:
        report = await call(here, COST, agent="long", barge_in_after_ms=1_000, barge_in_text=STOP)
    assert report.answered
    assert [turn.heard_text for turn in report.turns] == [COST, "stop"]
    assert report.turns[1].stop_ms is not None
    assert report.turns[1].agent_transcript == "All right."
    messages = {message.content: message.role for message in set_.llm.requests[-1].messages}
    cut = next(content for content, role in messages.items() if role == "assistant")
    assert cut.endswith("…")
    words = cut[:-1].split()
    assert words == story.split()[: len(words)]
    assert 5 <= len(words) <= 30


async def test_two_callers_at_once_hear_only_their_own(call: Place, tmp_path: Any) -> None:
    owners: dict[str, str] = {}

    def line(call_id: str, _: int) -> str:
        return owners.setdefault(call_id, "zebra" if owners else "banjo")

    set_ = engines(stt=ScriptedStt(line), llm=ScriptedLlm(lambda messages: f"{messages[-1].content} " * 6))
    files = [tmp_path / f"{number}.wav" for number in range(2)]
    async with served(set_.set, SETTINGS) as here:
        reports = await asyncio.gather(*(call(here, COST, CAPITAL, agent="long", record=file) for file in files))
    assert sorted(owners.values()) == ["banjo", "zebra"]
    for report, file in zip(reports, files, strict=True):
        own = owners[str(report.call_id)]
        other = next(word for word in owners.values() if word != own)
        assert report.errors == []
        assert [turn.heard_text for turn in report.turns] == [own] * 2
        assert [(turn.agent_transcript or "").split() for turn in report.turns] == [[own] * 6] * 2
        assert power(agent_side(file), word_tone_hz(own)) > 1_000 * power(agent_side(file), word_tone_hz(other))
    for request in set_.llm.requests:
        text = " ".join(message.content for message in request.messages)
        assert owners[request.call] in text
        assert not any(word in text for call_id, word in owners.items() if call_id != request.call)


def agent_side(path: Any) -> np.ndarray[Any, Any]:
    """The right channel of a recording, which a mono reader would mix."""
    data = path.read_bytes()
    return np.frombuffer(data[data.index(b"data") + 8 :], "<i2").reshape(-1, 2)[:, 1]


def power(pcm: np.ndarray[Any, Any], frequency_hz: int) -> float:
    spectrum = np.abs(np.fft.rfft(pcm.astype(float))) ** 2
    bins = np.fft.rfftfreq(len(pcm), 1 / 24_000)
    return float(spectrum[np.abs(bins - frequency_hz) < 12].max())


async def test_a_drain_says_goodbye_and_ends_the_call(call: Place) -> None:
    set_ = engines(llm=ScriptedLlm(lambda messages: "word " * 200))
    async with served(set_.set, SETTINGS) as here:
        calling = asyncio.create_task(call(here, COST, agent="long"))
        await eventually(lambda: any(record.phase == "speaking" for record in here.gateway.switchboard.calls()))
        await asyncio.sleep(1)  # some of it is heard
        draining = asyncio.create_task(here.gateway.switchboard.drain(0))
        report = await calling
        await draining
        assert [record.cause for record in here.gateway.recent] == ["server_drain"]
        record = next(iter(here.gateway.recent))
        assert record.transcript[-1].text == SETTINGS.farewell
        assert record.transcript[-2].cut
    assert report.answered
    assert report.end_cause == "agent_hangup"
    assert (report.turns[0].agent_transcript or "").endswith(SETTINGS.farewell)


async def test_a_client_secret_calls_its_agent_and_may_hang_up() -> None:
    set_ = engines()
    async with served(set_.set, Settings(preset="null", key=SecretStr("k" * 20), agents=SETTINGS.agents)) as here:
        options = CallOptions(here.url, agent="anna", key="k" * 20, ephemeral=True, patience=PATIENCE)
        report = await place_call(options)
        assert (report.answered, report.end_cause, report.errors) == (True, "hangup", [])
        await here.empty()
        assert [record.cause for record in here.gateway.recent] == ["caller_hung_up"]
        refused = await place_call(replace(options, key="wrong"))
        assert refused.end_cause == "unauthorized"


async def test_a_machine_with_loopback_alone_is_enough_for_a_call_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda use_ipv4, use_ipv6: [])
    monkeypatch.setattr(candidates, "host_addresses", list)
    async with served(engines().set, SETTINGS) as here:
        report = await place_call(CallOptions(here.url, agent="anna", patience=PATIENCE))
    assert (report.answered, report.end_cause) == (True, "hangup")


async def test_a_caller_beyond_the_cap_is_told_that_the_line_is_busy(call: Place) -> None:
    set_ = engines()
    async with served(set_.set, Settings(preset="null", max_calls=1, agents=SETTINGS.agents)) as here:
        first = asyncio.create_task(call(here, COST, agent="anna"))
        await eventually(lambda: here.gateway.switchboard.live)
        report = await call(here, COST, agent="anna")
        assert (report.answered, report.end_cause) == (False, "busy")
        assert (await first).answered
        missing = await call(here, COST, agent="nobody")
        assert missing.end_cause == "not_found"
        here.faults.clear()  # uvicorn logs an error of every denial
