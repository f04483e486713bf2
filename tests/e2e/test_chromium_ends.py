"""How calls from the page end, and what a person may do in one: a real browser, a real server, scripted engines."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from playwright.sync_api import expect
from pydantic import SecretStr

from engines.api import EngineSet, Pcm16
from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from engines.vad.scripted import EnergyStream, EnergyVad
from gateway.settings import AgentSettings, Settings
from gateway.transports.webrtc.peer import MediaPolicy
from tests.e2e.browser_rig import (
    LEAD_MS,
    SILENT,
    TAIL_MS,
    BrowserPage,
    Chromium,
    artefacts,
    calls,
    ended_at,
    ended_calls,
    hang_up,
    launched,
    plain,
)
from tests.gateway.call_rig import Engines
from tests.serving import Served, served_beside
from tests.web.page_rig import needs_chromium

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180), needs_chromium]

GREETING = "Hello this is Anna."
STORY = (
    " ".join(first + second for first in "ba de fi go lu ma ne po".split() for second in "ka re ti so".split()) + "."
)
COST, STOP = "How much does it cost?", "Stop."
AGENTS = {"anna": AgentSettings(greeting=GREETING, silence_ms=300)}
MARGIN_S = 1.0
"""For a machine that does other things, too."""


class ListeningVad(EnergyVad):
    """Writes down how loud the caller is: the loudest sample of every packet."""

    def __init__(self) -> None:
        self.peaks: list[int] = []

    def open(self, deliver: Callable[[float, int], None]) -> Any:
        stream, peaks = super().open(deliver), self.peaks

        class Listening(EnergyStream):
            def feed(self, pcm: Pcm16) -> None:
                peaks.append(int(np.abs(pcm.astype(int)).max(initial=0)))
                super().feed(pcm)

        stream.__class__ = Listening
        return stream


@dataclass
class Scripted:
    vad: ListeningVad = field(default_factory=ListeningVad)
    stt: ScriptedStt = field(default_factory=lambda: ScriptedStt((COST, STOP), partial_every_ms=200))
    llm: ScriptedLlm = field(default_factory=ScriptedLlm)

    @contextlib.contextmanager
    def served(self, **settings: Any) -> Iterator[Served]:
        @contextlib.asynccontextmanager
        async def engines() -> AsyncIterator[EngineSet]:
            yield Engines(vad=self.vad, stt=self.stt, llm=self.llm, tts=ScriptedTts(100)).set

        with served_beside(
            engines, Settings(**{"preset": "null", "max_calls": 4, "agents": AGENTS, **settings})
        ) as here:
            yield here


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def here(scripted: Scripted) -> Iterator[Served]:
    with scripted.served() as served:
        yield served


# --- callers who just go --------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["close", "go elsewhere"])
def test_a_closed_tab_is_noticed_within_a_second(here: Served, caller: BrowserPage, leave: str) -> None:
    caller.call(here.url)
    caller.expect("output_audio_buffer.started")
    left = time.time()
    if leave == "close":
        caller.page.close(run_before_unload=False)
    else:
        caller.page.goto("about:blank")
    (call,) = ended_calls(here.url)
    assert call["cause"] == "caller_hung_up"
    assert ended_at(call) - left <= 1.0


@pytest.mark.slow
def test_a_browser_that_is_killed_is_noticed_within_ten_seconds(
    here: Served, browser: Chromium, tmp_path: Path
) -> None:
    with launched(browser.browser.browser_type, tmp_path) as doomed:
        caller = doomed.page()
        caller.call(here.url)
        caller.expect("output_audio_buffer.stopped")
        for process in processes_of(doomed):
            process.send_signal(signal.SIGKILL)
        killed = time.time()
        (call,) = ended_calls(here.url)
    assert call["cause"] == "media_timeout"
    took_s = ended_at(call) - killed
    assert MediaPolicy().lost_after_s == 10
    assert took_s <= 10 + MARGIN_S


def processes_of(browser: Chromium) -> list[psutil.Process]:
    """The browser, told by its microphone, and all that it started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(str(browser.microphone) in word for word in process.cmdline()):
                found += [process, *process.children(recursive=True)]
    assert found
    return found


# --- the gateway says no --------------------------------------------------------------------------------------


def test_a_wrong_key_is_told_and_the_right_one_calls(scripted: Scripted, caller: BrowserPage, tmp_path: Path) -> None:
    page = caller.page
    with scripted.served(key=SecretStr("k" * 32), page_key=SecretStr("sesame")) as here:
        page.goto(f"{here.url}/call")
        page.get_by_label("Access key").fill("sesam")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("That key is not accepted. Check it and try again.")
        caller.screenshot(artefacts(tmp_path), "wrong-key")
        page.get_by_label("Access key").fill("sesame")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Call", exact=True).click()
        page.wait_for_selector('#stage[data-state="in-call"]')
        caller.expect("output_audio_buffer.started")
        page.get_by_role("button", name="Hang up").click()
        (call,) = ended_calls(here.url, "k" * 32)
        assert call["cause"] == "caller_hung_up"
    told = [fault for fault in caller.faults if "401" in fault]
    assert caller.faults == told, "the browser's own words of a refused request"
    caller.faults.clear()


def test_a_caller_too_many_is_told_that_the_lines_are_busy(
    scripted: Scripted, browser: Chromium, caller: BrowserPage, tmp_path: Path
) -> None:
    with scripted.served(max_calls=1) as here:
        other = browser.page()
        other.call(here.url)
        caller.page.goto(f"{here.url}/call")
        caller.page.get_by_role("button", name="Call", exact=True).click()
        caller.page.wait_for_selector('#stage[data-state="ended"]')
        expect(caller.page.locator("#phone")).to_contain_text("All lines are busy")
        caller.screenshot(artefacts(tmp_path), "busy")
        assert caller.page.evaluate("() => tap.microphones.map((track) => track.readyState)") == ["ended"]
        other.page.context.close()
        ended_calls(here.url)
        caller.page.get_by_role("button", name="Try again").click()
        caller.page.wait_for_selector('#stage[data-state="in-call"]')
        caller.page.get_by_role("button", name="Hang up").click()
        assert [call["cause"] for call in ended_calls(here.url)] == ["caller_hung_up"] * 2
    assert all("503" in fault for fault in caller.faults)
    caller.faults.clear()


def test_the_page_says_that_the_server_hung_up(here: Served, caller: BrowserPage, tmp_path: Path) -> None:
    caller.call(here.url)
    caller.expect("output_audio_buffer.started")
    (call,) = calls(here.url)
    hang_up(here.url, call["id"])
    caller.page.wait_for_selector('#stage[data-state="ended"]')
    expect(caller.page.locator("#phone")).to_contain_text("The gateway ended the call.")
    caller.screenshot(artefacts(tmp_path), "hung-up-there")
    assert caller.page.evaluate("() => tap.microphones.map((track) => track.readyState)") == ["ended"]
    assert caller.page.evaluate("() => tap.connections.map(({ connectionState }) => connectionState)") == ["closed"]


# --- in the call ----------------------------------------------------------------------------------------------


def test_what_a_caller_cut_is_shown_as_unheard(scripted: Scripted, caller: BrowserPage) -> None:
    page = caller.page
    scripted.llm = ScriptedLlm(lambda messages: STORY if messages[-1].content == COST else "All right.")
    with scripted.served() as here:
        caller.call(here.url, "?raw=1&agent=anna")
        caller.expect("output_audio_buffer.stopped")
        caller.say(COST)
        caller.expect("output_audio_buffer.started", 2)
        page.wait_for_function("() => tap.sounded() > 2500")
        scripted.llm.first_token_delay_s = 2.0
        caller.say(STOP)
        cut = caller.expect("output_audio_buffer.cleared")
        caller.expect("output_audio_buffer.stopped", 2)
        told = page.locator("#turns > .turn.agent").nth(1)
        expect(told).to_contain_text("You cut in here; the rest was not heard")
        heard, unheard = told.locator(".said").inner_text(), told.locator(".said s").inner_text()
        assert plain(heard) == STORY
        assert 3 < len(unheard.split()) < len(STORY.split()) - 3
        expect(page.locator("#spoken > p", has_text="(you cut in)")).to_have_count(1)
        page.get_by_role("button", name="Hang up").click()
        (call,) = ended_calls(here.url)
        assert [entry["cut"] for entry in call["transcript"]] == [False, False, True, False, False]
        assert f"{call['transcript'][2]['text']} {unheard}" == STORY
        assert call["turns"][-2]["cut_to_silence_ms"] is not None
        next_ms = caller.events("output_audio_buffer.started")[2]["at_ms"]
        between = caller.hears().between(cut["at_ms"] + TAIL_MS, next_ms - LEAD_MS)
        assert len(between) > 0
        assert np.abs(between.astype(int)).max() < SILENT


def test_a_muted_caller_is_silent_to_the_server(here: Served, scripted: Scripted, caller: BrowserPage) -> None:
    page, peaks = caller.page, scripted.vad.peaks
    caller.call(here.url)
    caller.expect("output_audio_buffer.stopped")
    page.get_by_role("button", name="Mute").click()
    expect(page.locator("#muted")).to_be_visible()
    fed = len(peaks)
    page.wait_for_timeout((caller.say(COST) + 1) * 1000)
    assert len(peaks) - fed > 20
    assert max(peaks[fed:]) <= 2, "muted"
    page.get_by_role("button", name="Mute").click()
    expect(page.locator("#muted")).to_be_hidden()
    fed = len(peaks)
    caller.say(COST)
    expect(page.locator("#turns > .turn.you")).to_contain_text(COST)
    assert max(peaks[fed:]) > 1_000
    assert len(caller.events("input_audio_buffer.speech_started")) == 1
    page.get_by_role("button", name="Hang up").click()


def test_keys_pressed_on_the_page_are_answered(here: Served, caller: BrowserPage, tmp_path: Path) -> None:
    page = caller.page
    caller.call(here.url)
    caller.expect("output_audio_buffer.stopped")
    page.get_by_role("button", name="Keypad").click()
    for key in ("5", "1", "pound"):
        page.locator("#keys").get_by_role("button", name=key).click()
    caller.expect("output_audio_buffer.stopped", 2)
    keys = [event["event"] for event in caller.events("input_audio_buffer.dtmf_event_received")]
    assert keys == ["5", "1", "#"]
    own, answer = page.locator("#turns > .turn.you"), page.locator("#turns > .turn.agent").last
    expect(own.locator(".said")).to_have_text("51")
    expect(answer).to_contain_text("You said: (keypad: 5 1).")
    caller.screenshot(artefacts(tmp_path), "keypad")
    page.get_by_role("button", name="Hang up").click()
    (call,) = ended_calls(here.url)
    assert [entry["text"] for entry in call["transcript"]][1:] == ["(keypad: 51)", "You said: (keypad: 5 1)."]


@pytest.mark.slow
def test_a_call_as_people_make_it(here: Served, caller: BrowserPage) -> None:
    """With the browser's own processing of the microphone, on a phone's screen, twice."""
    page = caller.page
    page.set_viewport_size({"width": 390, "height": 844})
    for number in (1, 2):
        caller.call(here.url, "")
        caller.expect("output_audio_buffer.stopped")
        caller.say(COST)
        expect(page.locator("#turns > .turn.agent")).to_have_count(2)
        caller.expect("output_audio_buffer.stopped", 2)
        expect(page.locator("#turns > .turn.agent").last).to_contain_text("You said: How much does it cost.")
        page.get_by_role("button", name="Hang up").click()
        page.wait_for_selector('#stage[data-state="ended"]')
        assert len(ended_calls(here.url)) == number
