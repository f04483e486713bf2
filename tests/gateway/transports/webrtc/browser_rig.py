"""A gateway whose browsers are scripted: every way of signalling in virtual time, without ICE, DTLS or RTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from starlette.applications import Starlette

from engines.api import Pcm16
from gateway.app import create_app
from gateway.settings import AgentSettings, Settings
from gateway.state import Gateway
from gateway.transports.webrtc.call_task import MakePeer, PeerListener
from gateway.transports.webrtc.leg import Peer
from gateway.transports.webrtc.peer import LostCause, MediaStats
from tests.gateway.call_rig import Engines, hush, voice
from tests.gateway.realtime.checker import OrderChecker

Event = dict[str, Any]
CALLS, SECRETS = "/v1/realtime/calls", "/v1/realtime/client_secrets"
OFFER, ANSWER = "v=0 offer", "v=0 answer"
SDP = {"content-type": "application/sdp"}
ANNA = AgentSettings(instructions="Be brief.", greeting="Hello there.", apology="Sorry.", silence_ms=300)


class Browser:
    """The far end of one call, in place of its ``MediaPeer``."""

    def __init__(self, listener: PeerListener, fault: Exception | None = None) -> None:
        self.listener = listener
        self.checker = OrderChecker(onset_cancels=False, transport="webrtc")
        self.offer: str | None = None
        self.events: list[Event] = []
        self.frames: list[tuple[float, Pcm16]] = []
        self.clears = 0
        self.closed_at: float | None = None
        self.reading = True
        self.takes_chars = 10**9
        self.buffered_bytes = 0
        self._fault = fault
        self._open = False
        self._news = asyncio.Event()

    # --- the peer that the call sees --------------------------------------------------------------------------

    async def answer(self, offer_sdp: str) -> str:
        self.offer = offer_sdp
        if isinstance(self._fault, TimeoutError):
            await asyncio.sleep(3_600)
        if self._fault is not None:
            raise self._fault
        return ANSWER

    def play(self, pcm: Pcm16) -> None:
        assert len(pcm) == 480
        assert self.closed_at is None
        self.frames.append((self.now(), pcm))

    def clear(self) -> None:
        self.clears += 1

    def send(self, text: str) -> bool:
        if not self._open or len(text) > self.takes_chars or self.closed_at is not None:
            return False
        if not self.reading:
            self.buffered_bytes += len(text)
        event = json.loads(text)
        self.events.append(event)
        self.checker.feed(event)
        self._news.set()
        return True

    def stats(self) -> MediaStats:
        return MediaStats(0, len(self.frames), 0, 0, 0, 0, 0, 0, 0, 0.0, None, 0)

    async def close(self) -> None:
        await asyncio.sleep(0)
        if self.closed_at is None:
            self.closed_at = self.now()
        self._news.set()

    # --- what the test does -----------------------------------------------------------------------------------

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    def connect(self) -> None:
        self.listener.connected()

    def open_channel(self) -> None:
        self._open = True
        self.listener.channel_open()

    def come(self) -> None:
        self.connect()
        self.open_channel()

    def say(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, **fields}
        self.checker.sent(event)
        self.listener.message(json.dumps(event))

    async def speak(self, ms: int) -> None:
        await self._frames(voice(ms))

    async def hush(self, ms: int) -> None:
        await self._frames(hush(ms))

    async def _frames(self, pcm: Pcm16) -> None:
        for at in range(0, len(pcm), 320):
            self.listener.audio(pcm[at : at + 320])
            await asyncio.sleep(0.02)

    def lose(self, cause: LostCause) -> None:
        self.listener.lost(cause)

    async def expect(self, kind: str, count: int = 1, within_s: float = 60.0) -> Event:
        async with asyncio.timeout(within_s):
            while len(found := self.of(kind)) < count:
                self._news.clear()
                await self._news.wait()
        return found[count - 1]

    async def gone(self) -> None:
        async with asyncio.timeout(60):
            while self.closed_at is None:
                self._news.clear()
                await self._news.wait()
        for _ in range(5):
            await asyncio.sleep(0)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def heard_ms(self) -> int:
        return 20 * sum(1 for _, pcm in self.frames if np.any(pcm))


@dataclass
class Rig:
    app: Starlette
    gateway: Gateway
    client: httpx.AsyncClient
    browsers: list[Browser] = field(default_factory=list)
    fault: Exception | None = None
    """What the next peers answer with."""

    def make_peer(self, listener: PeerListener) -> Peer:
        browser = Browser(listener, self.fault)
        self.browsers.append(browser)
        return browser

    async def dial(self, query: str = "", **headers: str) -> Browser:
        """A call that was answered with 201."""
        response = await self.offer(query, **headers)
        assert response.status_code == 201, response.text
        return self.browsers[-1]

    async def offer(self, query: str = "", **headers: str) -> httpx.Response:
        return await self.client.post(CALLS + query, content=OFFER, headers={**SDP, **headers})

    async def mint(self, key: str | None = None, **body: Any) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return await self.client.post(SECRETS, json=body, headers=headers)

    async def secret(self, **body: Any) -> str:
        response = await self.mint(**body)
        assert response.status_code == 200, response.text
        return str(response.json()["value"])

    @property
    def causes(self) -> list[str | None]:
        return [record.cause for record in self.gateway.recent]

    def counted(self, name: str) -> int:
        value = self.gateway.metrics._registry.get_sample_value("offhook_events_total", {"name": name})
        return int(value or 0)


@contextlib.asynccontextmanager
async def browser_rig(
    engines: Engines | None = None, settings: Settings | None = None, *, base: str = "http://127.0.0.1:8080"
) -> AsyncIterator[Rig]:
    """A warm gateway without a server. Fails if a call, a task, a place or a stream is left."""
    engines = engines or Engines()
    known: list[Rig] = []

    def maker(gateway: Gateway) -> MakePeer:
        return known[0].make_peer

    make: Callable[[Gateway], MakePeer] = maker
    settings = settings or Settings(preset="null", max_calls=4, agents={"anna": ANNA})
    app = create_app(settings, engines.set, strict=True, make_peer=make)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=base) as client:
        await app.state.startup.settled.wait()
        assert app.state.startup.error is None
        rig = Rig(app, app.state.gateway, client)
        known.append(rig)
        tasks = len(asyncio.all_tasks())
        yield rig
        for _ in range(10):
            await asyncio.sleep(0)
        assert rig.gateway.switchboard.live == 0
        assert len(asyncio.all_tasks()) == tasks
        assert all(browser.closed_at is not None for browser in rig.browsers)
        assert not rig.gateway.desk._tasks
        assert engines.vad.open_streams == engines.stt.open_streams == engines.llm.running == 0


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def hang_up(rig: Rig, browser: Browser) -> None:
    browser.lose("peer_closed")
    await browser.gone()
