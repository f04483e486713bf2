"""The call page in a real browser, without a gateway: its files come as ``gateway/web_pages.py`` sends them, its
requests get scripted answers, and the far end of its call is a second page, so that the connection is a real one.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, sync_playwright

from gateway.web_pages import answer_file

ORIGIN = "https://offhook.test"
"""Nothing resolves it: every request is answered here."""

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

TWO_AGENTS = [
    {"name": "bakery", "greeting": "Hello, this is Blue Door Bakery. How can I help you?", "language": "en"},
    {"name": "night-desk", "greeting": "", "language": "en"},
]

_FAR_END = """() => {
window.received = [];
window.answer = async (offer) => {
  const far = (window.far = new RTCPeerConnection());
  far.ondatachannel = ({ channel }) => {
    window.channel = channel;
    channel.onmessage = ({ data }) => window.received.push(JSON.parse(data));
  };
  far.ontrack = ({ streams }) => { window.heard = streams[0]; };
  await far.setRemoteDescription({ type: "offer", sdp: offer });
  const audio = (window.audio = new AudioContext());
  const out = audio.createMediaStreamDestination();
  const tone = new OscillatorNode(audio, { frequency: 300 });
  const volume = (window.volume = new GainNode(audio, { gain: 0.2 }));
  tone.connect(volume).connect(out);
  tone.start();
  far.addTrack(out.stream.getAudioTracks()[0], out.stream);
  await far.setLocalDescription();
  if (far.iceGatheringState !== "complete") {
    await new Promise((done) => {
      far.onicegatheringstatechange = () => far.iceGatheringState === "complete" && done();
    });
  }
  return far.localDescription.sdp;
};
}"""


@dataclass
class Answer:
    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def refusal(cls, status: int, code: str, **headers: str) -> Answer:
        return cls(status, {"error": {"code": code, "message": code}}, headers)


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: str | None

    @property
    def json(self) -> Any:
        return json.loads(self.body or "null")


class FakeGateway:
    """What the page asks, in order, and what it is told. ``answers`` replaces the good answer to a path."""

    def __init__(self, context: BrowserContext) -> None:
        self.asked: list[Asked] = []
        self.answers: dict[str, Answer | Callable[[Asked], Answer]] = {}
        self.agents: list[dict[str, str]] = TWO_AGENTS
        self.notice = ""
        self.far = context.new_page()
        context.route("**/*", self._route)
        self.far.goto(f"{ORIGIN}/far")
        self.far.evaluate(_FAR_END)

    def _route(self, route: Route) -> None:
        request = route.request
        path = urlsplit(request.url).path
        if path.startswith("/web/") or path == "/call":
            name = "call/index.html" if path == "/call" else path.removeprefix("/web/")
            file = answer_file(name, {})
            return route.fulfill(status=file.status_code, headers=dict(file.headers), body=bytes(file.body))
        if path == "/far":
            return route.fulfill(content_type="text/html", body="<!doctype html><title>far end</title>")
        asked = Asked(request.method, path, request.headers, request.post_data)
        self.asked.append(asked)
        scripted = self.answers.get(path)
        answer = scripted(asked) if callable(scripted) else scripted
        if answer is None:
            answer = self._good_answer(asked)
        body = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        return route.fulfill(status=answer.status, headers=answer.headers, body=body)

    def _good_answer(self, asked: Asked) -> Answer:
        if asked.path == "/v1/agents":
            return Answer(
                200, {"object": "list", "data": self.agents, **({"notice": self.notice} if self.notice else {})}
            )
        if asked.path == "/v1/realtime/client_secrets":
            return Answer(200, {"value": "ek_one", "expires_at": 0, "session": {}, "ice_servers": []})
        if asked.path == "/v1/realtime/calls":
            answer = self.far.evaluate("(offer) => window.answer(offer)", asked.body)
            return Answer(201, answer, {"Location": "/v1/realtime/calls/rtc_one", "Content-Type": "application/sdp"})
        return Answer(200, {})

    def paths(self) -> list[str]:
        return [f"{asked.method} {asked.path}" for asked in self.asked]

    def of(self, path: str) -> Asked:
        """The one request to this path."""
        (asked,) = [asked for asked in self.asked if asked.path == path]
        return asked

    def wait_for(self, path: str) -> Asked:
        """The first request to this path, which is on its way."""
        for _ in range(500):
            found = [asked for asked in self.asked if asked.path == path]
            if found:
                return found[0]
            self.far.wait_for_timeout(10)
        raise AssertionError(f"nothing was asked of {path}, only {self.paths()}")

    def send(self, *events: dict[str, Any]) -> None:
        """Server events, in order."""
        self.far.evaluate("(events) => events.forEach((e) => channel.send(JSON.stringify(e)))", list(events))

    def received(self) -> list[dict[str, Any]]:
        """The client events that came so far."""
        events: list[dict[str, Any]] = self.far.evaluate("() => received")
        return events

    def hang_up(self) -> None:
        self.far.evaluate("() => { channel.close(); far.close(); }")


@dataclass
class Rig:
    page: Page
    gateway: FakeGateway
    faults: list[str]
    """What the page's console said of errors. A test that means one clears it."""

    def open(self, query: str = "") -> Page:
        self.page.goto(f"{ORIGIN}/call{query}")
        return self.page

    def call(self) -> Page:
        """Open the page and be in a call."""
        self.open()
        self.page.get_by_role("button", name="Call", exact=True).click()
        self.page.wait_for_selector('#stage[data-state="in-call"]')
        return self.page


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def rig(browser: Browser, *, microphone: bool = True, **options: Any) -> Iterator[Rig]:
    """A browser profile of its own; ``options`` are those of Playwright's ``new_context``."""
    context = browser.new_context(permissions=["microphone"] if microphone else [], **options)
    try:
        gateway = FakeGateway(context)
        page = context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        yield Rig(page, gateway, faults)
    finally:
        context.close()
