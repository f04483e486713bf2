"""Whole calls from the page in a real browser, answered by real models."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from playwright.sync_api import expect

from gateway.agent_settings import BAKERY_GREETING, AgentSettings
from gateway.transports.webrtc.peer import MediaPeer
from loadtest.hearing import hear_spans
from loadtest.measure import Span, voiced_spans
from tests.e2e import openai_agents
from tests.e2e.browser_rig import (
    LEAD_MS,
    SILENT,
    TAIL_MS,
    BrowserPage,
    artefacts,
    ended_calls,
    plain,
    until,
)
from tests.models.heard import was_heard
from tests.models.live import LiveGateway, ears, live_gateway
from tests.web.page_rig import needs_chromium

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.models,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    needs_chromium,
]

HOURS = "What are your opening hours?"
STORY = "Tell me a story about a dog."
WAIT = "Wait, one moment please."
TOLD_MS = 2_500
"""So much sound of the story is heard before the caller cuts in."""


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Engines start threads when they have work, not when they start: they are counted when the gateway ends."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[LiveGateway]:
    stories = AgentSettings(instructions="You tell long stories.", max_output_tokens=120)
    with live_gateway("embedded", {"stories": stories}) as served:
        yield served


def heard_of(caller: BrowserPage, from_ms: float, until_ms: float) -> str:
    """What an ear hears of the agent in this time."""
    sound = caller.hears()
    part = sound.between(from_ms - LEAD_MS, until_ms + TAIL_MS)
    return hear_spans(part, sound.rate_hz, [Span(0, len(part))], ears())[0] or ""


def said_by(caller: BrowserPage, who: str) -> list[str]:
    return [plain(text) for text in caller.page.locator(f"#turns > .turn.{who} .said").all_inner_texts()]


def replies(caller: BrowserPage) -> list[str]:
    return [event["response_id"] for event in caller.events("output_audio_buffer.started")]


def test_a_whole_call(gateway: LiveGateway, caller: BrowserPage, tmp_path: Path) -> None:
    page, shots = caller.page, artefacts(tmp_path)
    caller.chromium.hush()
    page.goto(f"{gateway.http}/call?raw=1&agent=default")
    page.get_by_role("button", name="Call", exact=True).wait_for()
    caller.screenshot(shots, "call-before")
    sockets = len(udp_sockets())
    page.get_by_role("button", name="Call", exact=True).click()
    page.wait_for_selector('#stage[data-state="in-call"]')

    caller.expect("output_audio_buffer.started")
    greeted = caller.spoken(replies(caller)[0])
    assert said_by(caller, "agent") == [BAKERY_GREETING]
    assert was_heard(BAKERY_GREETING, heard_of(caller, *greeted))

    caller.say(HOURS)
    caller.expect("output_audio_buffer.started", 2)
    caller.screenshot(shots, "call-answering")
    answered = caller.spoken(replies(caller)[1])
    (asked,) = said_by(caller, "you")
    assert was_heard(HOURS, asked)
    answer = said_by(caller, "agent")[1]
    assert len(answer.split()) >= 3
    assert was_heard(answer, heard_of(caller, *answered))
    expect(page.locator("#waterfall > li")).to_have_count(1)
    caller.screenshot(shots, "call-answered")

    page.get_by_role("button", name="Hang up").click()
    page.wait_for_selector('#stage[data-state="ended"]')
    expect(page.locator("#status")).to_contain_text("You hung up.")
    caller.screenshot(shots, "call-ended")
    assert set(page.evaluate("() => tap.microphones.map((track) => track.readyState)")) == {"ended"}
    assert page.evaluate("() => tap.connections.map(({ connectionState }) => connectionState)") == ["closed"]
    call = ended_calls(gateway.http)[0]
    assert (call["transport"], call["agent"], call["cause"]) == ("webrtc", "default", "caller_hung_up")
    assert [entry["text"] for entry in call["transcript"]] == [BAKERY_GREETING, asked, answer]
    assert not any(entry["cut"] for entry in call["transcript"])
    until(lambda: not peers_left())
    until(lambda: len(udp_sockets()) <= sockets)


def peers_left() -> list[object]:
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is MediaPeer]


def udp_sockets() -> list[object]:
    return list(psutil.Process().net_connections("udp"))


def test_a_caller_who_cuts_in_is_given_silence(gateway: LiveGateway, caller: BrowserPage, tmp_path: Path) -> None:
    page, shots = caller.page, artefacts(tmp_path)
    caller.call(gateway.http, "?raw=1&agent=stories")
    caller.say(STORY)
    begun_ms = caller.expect("output_audio_buffer.started")["at_ms"]
    page.wait_for_function("(ms) => tap.sounded() > ms", arg=TOLD_MS)
    caller.say(WAIT)
    caller.expect("output_audio_buffer.cleared")
    _, cut_ms = caller.spoken(replies(caller)[0])
    cut = page.locator("#turns > .turn.agent").first
    expect(cut).to_contain_text("You cut in here; the rest was not heard")
    expect(page.locator("#spoken > p", has_text="(you cut in)")).to_have_count(1)
    caller.screenshot(shots, "cut")
    next_ms = caller.expect("output_audio_buffer.started", 2)["at_ms"]
    caller.screenshot(shots, "cut-answered")
    page.get_by_role("button", name="Hang up").click()

    sound = caller.hears()
    told = sound.between(begun_ms - LEAD_MS, cut_ms)
    assert sum(span.end - span.start for span in voiced_spans(told, sound.rate_hz)) > sound.rate_hz
    between = sound.between(cut_ms + TAIL_MS, next_ms - LEAD_MS)
    assert len(between) > sound.rate_hz / 4, "it is not answered before the caller has ended"
    assert np.abs(between.astype(int)).max() < SILENT
    assert was_heard(WAIT, said_by(caller, "you")[1])
    call = ended_calls(gateway.http)[0]
    first = next(entry for entry in call["transcript"] if entry["role"] == "assistant")
    assert first["cut"]
    shown = said_by(caller, "agent")[0]
    assert shown.startswith(first["text"].rstrip())
    # The word under the cut may be lost to an ear, which takes the one before it, too, for another, and goes on with a
    # guess: all that comes before them was heard.
    heard = heard_of(caller, begun_ms, cut_ms)
    assert was_heard(" ".join(first["text"].split()[:-2]), heard, cut=True)


def test_the_stock_client_of_openai(gateway: LiveGateway, caller: BrowserPage) -> None:
    question = "What is the capital of France?"
    openai_agents.connect(caller, gateway.http)
    caller.say(question)
    caller.expect("output_audio_buffer.started")
    answered = caller.spoken(replies(caller)[0])
    (_, _, asked), (_, status, answer) = openai_agents.history(caller)
    assert was_heard(question, asked)
    assert "paris" in answer.lower()
    assert status == "completed"
    assert was_heard(answer, heard_of(caller, *answered))
    assert openai_agents.seen(caller, "errors") == []
    caller.page.evaluate("() => session.close()")
    assert ended_calls(gateway.http)[0]["cause"] == "caller_hung_up"
