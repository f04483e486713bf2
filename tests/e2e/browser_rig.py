"""A real Chromium that calls a real gateway: its microphone is a file, and its ears are a tap on what arrives."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import time
import urllib.request
import wave
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, BrowserType, ConsoleMessage, Page, sync_playwright

from engines.api import Pcm16
from loadtest.voice import say_line
from tests.web.page_rig import CHROMIUM, FLAGS

RATE_HZ = 48_000
PATIENCE_S = 45.0
"""For whatever must come: other things run on the machine, too."""
TAIL_MS = 500
"""What was sent may still be heard so long after the end of it is told: it is in the browser's jitter buffer."""
LEAD_MS = 300
"""And so long before the start of a reply is told, if the page was busy."""
SILENT = 33
"""Of 32,768: -60 dBFS."""
ARTEFACTS = "OFFHOOK_TEST_ARTEFACTS"
"""Names a folder that keeps the screenshots."""

_TAP = (Path(__file__).parent / "tap.js").read_text("utf-8")
_MICROPHONES = ("Fake Audio Input 1", "Fake Audio Input 2")


@dataclass(frozen=True)
class Sound:
    """What arrived, without gaps. ``begin_ms`` is of the page's clock, as the events' times are."""

    pcm: Pcm16
    rate_hz: int
    begin_ms: float

    def between(self, from_ms: float, until_ms: float) -> Pcm16:
        first, last = (max(0, round((ms - self.begin_ms) * self.rate_hz / 1000)) for ms in (from_ms, until_ms))
        return self.pcm[first:last]


@dataclass
class Chromium:
    """``microphone`` is read anew whenever a page opens a microphone: that is when it speaks."""

    browser: Browser
    microphone: Path

    def page(self, **options: Any) -> BrowserPage:
        """In a profile of its own. ``options`` are those of Playwright's ``new_context``."""
        context = self.browser.new_context(permissions=["microphone"], **options)
        context.set_default_timeout(PATIENCE_S * 1000)
        context.add_init_script(_TAP)
        page = BrowserPage(context.new_page(), self)
        page.page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.page.on("console", page.note)
        return page

    def hush(self) -> None:
        """The next microphone that is opened is silent."""
        self.will_say(np.zeros(RATE_HZ // 10, np.int16))

    def will_say(self, pcm: Pcm16) -> None:
        with wave.open(str(self.microphone), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_HZ)
            file.writeframes(pcm.astype("<i2").tobytes())


@dataclass
class BrowserPage:
    page: Page
    chromium: Chromium
    faults: list[str] = field(default_factory=list)
    """What the page's console said of errors."""
    _cues: int = 0

    def note(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.faults.append(f"{said.text} {said.location['url']}")

    def call(self, url: str, query: str = "?raw=1") -> None:
        """Be in a call, with the call page, its microphone silent."""
        self.chromium.hush()
        self.page.goto(f"{url}/call{query}")
        self.page.get_by_role("button", name="Call", exact=True).click()
        self.page.wait_for_selector('#stage[data-state="in-call"]')

    def say(self, text: str) -> float:
        """Say it now, by choosing a microphone that speaks. Returns how long it takes, in seconds."""
        self._cues += 1
        spoken = say_line(text, RATE_HZ)
        # A little silence first: the page gets the sound of its new microphone a moment after it was opened.
        self.chromium.will_say(np.concatenate((np.zeros(RATE_HZ // 2, np.int16), spoken)))
        name = _MICROPHONES[self._cues % 2]
        self.page.evaluate(
            """(name) => {
              if (window.chooseMicrophone) return window.chooseMicrophone(name);
              const select = document.getElementById("microphone");
              select.value = [...select.options].find(({ text }) => text === name).value;
              select.dispatchEvent(new Event("change"));
            }""",
            name,
        )
        return len(spoken) / RATE_HZ + 0.5

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """The server events so far: each with ``at_ms``, of the page's clock."""
        told: list[dict[str, Any]] = self.page.evaluate("() => tap.events")
        return [event for event in told if kind in ("", event["type"])]

    def expect(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The ``count``-th event of a kind, when it is there."""
        self.page.wait_for_function(
            "([kind, count]) => tap.events.filter(({ type }) => type === kind).length >= count", arg=[kind, count]
        )
        return self.events(kind)[count - 1]

    def spoken(self, response_id: str) -> tuple[float, float]:
        """From when to when, by what the server says, a reply is heard; its end may be a cut. Waits for it."""
        self.page.wait_for_function(
            """(id) => tap.events.some(({ type, response_id }) => response_id === id &&
                ["output_audio_buffer.stopped", "output_audio_buffer.cleared"].includes(type))""",
            arg=response_id,
        )
        times = [
            event["at_ms"]
            for event in self.events()
            if event["type"].startswith("output_audio_buffer.") and event["response_id"] == response_id
        ]
        return times[0], times[-1]

    def hears(self) -> Sound:
        """All that arrived of the agent."""
        taken = self.page.evaluate("() => tap.take()")
        pcm = np.frombuffer(base64.b64decode(taken["pcm"]), "<i2").astype(np.int16)
        return Sound(pcm, taken["rate"], taken["begin_ms"])

    def screenshot(self, folder: Path, name: str) -> None:
        self.page.screenshot(path=folder / f"{name}.png", full_page=True)


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Chromium]:
    """``folder`` is for the sound of its microphone."""
    with sync_playwright() as playwright, launched(playwright.chromium, folder) as browser:
        yield browser


@contextlib.contextmanager
def launched(kind: BrowserType, folder: Path) -> Iterator[Chromium]:
    """One more beside those that run (``browser.browser_type``): Playwright itself may be there once only."""
    microphone = folder / "microphone.wav"
    heard_from = f"--use-file-for-fake-audio-capture={microphone}%noloop"
    browser = kind.launch(executable_path=CHROMIUM, args=[*FLAGS, heard_from])
    try:
        yield Chromium(browser, microphone)
    finally:
        browser.close()


def artefacts(otherwise: Path) -> Path:
    folder = Path(os.environ.get(ARTEFACTS) or otherwise)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# --- what the server knows ------------------------------------------------------------------------------------


def asked(url: str, path: str, key: str | None = None) -> Any:
    request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def calls(url: str, key: str | None = None) -> list[dict[str, Any]]:
    """The records of all calls, the newest first, whole."""
    rows = asked(url, "/v1/calls", key)["data"]
    return [asked(url, f"/v1/calls/{row['id']}", key) for row in rows]


def ended_calls(url: str, key: str | None = None) -> list[dict[str, Any]]:
    """The same, when all have ended."""

    def over() -> list[dict[str, Any]]:
        found = calls(url, key)
        return found if all(call["state"] == "ended" for call in found) else []

    ended: list[dict[str, Any]] = until(over)
    return ended


def hang_up(url: str, call_id: str) -> None:
    request = urllib.request.Request(f"{url}/v1/realtime/calls/{call_id}/hangup", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def until(what: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """Wait for what is something."""
    end = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
    return found


def ended_at(call: Mapping[str, Any]) -> float:
    """Unix time, to a millisecond."""
    return datetime.fromisoformat(call["started_at"]).timestamp() + float(call["ended_ms"]) / 1000


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
