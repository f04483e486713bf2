"""The far end of a WebSocket as an ASGI server shows it, for virtual time: it can stop reading, and it can vanish."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
from starlette.applications import Starlette

from engines.api import Pcm16
from engines.llm.scripted import ScriptedLlm
from engines.tts.scripted import ScriptedTts
from gateway.app import create_app
from gateway.settings import AgentSettings, Settings
from gateway.state import Gateway
from tests.gateway.call_rig import Engines
from tests.gateway.realtime.checker import OrderChecker

Event = dict[str, Any]
FRAME_MS = 20
LONG = "One two three four five six seven eight. Nine ten eleven twelve thirteen fourteen fifteen sixteen."
ANNA = Settings(
    preset="null",
    max_calls=4,
    agents={"anna": AgentSettings(instructions="Be brief.", greeting="Hello there.", apology="Sorry.", silence_ms=300)},
)


def replying(text: str, **tts: Any) -> Engines:
    return Engines(llm=ScriptedLlm(lambda messages: text), tts=ScriptedTts(**tts))


@contextlib.asynccontextmanager
async def gateway_with(
    engines: Engines | None = None, settings: Settings | None = None, *, strict: bool = True
) -> AsyncIterator[tuple[Starlette, Gateway]]:
    """A warm gateway without a server. Fails if a call is left."""
    engines = engines or Engines()
    app = create_app(settings or Settings(preset="null", max_calls=4), engines.set, strict=strict)
    async with app.router.lifespan_context(app):
        await app.state.startup.settled.wait()
        assert app.state.startup.error is None
        tasks = len(asyncio.all_tasks())
        yield app, app.state.gateway
        assert app.state.gateway.switchboard.live == 0
        assert len(asyncio.all_tasks()) == tasks
        assert engines.vad.open_streams == 0
        assert engines.stt.open_streams == 0
        assert engines.llm.running == 0


class Peer:
    """``headers`` and ``query`` as a client would send them. ``checker`` sees every event in and out."""

    def __init__(
        self, app: Starlette, query: str = "", *, headers: dict[str, str] | None = None, onset_cancels: bool = True
    ) -> None:
        self.events: list[Event] = []
        self.times: list[float] = []
        self.checker = OrderChecker(onset_cancels=onset_cancels)
        self.closed: tuple[int, str] | None = None
        self.accepted: Event | None = None
        self.denied: int | None = None
        self.denial = b""
        self.reading = asyncio.Event()
        self.reading.set()
        self.read_delay_s = 0.0
        self.gone = False
        self.rate_hz, self.encode = 24_000, encode_pcm
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._inbox.put_nowait({"type": "websocket.connect"})
        self._news = asyncio.Event()
        sent = {"host": "127.0.0.1", **(headers or {})}
        self._scope = {
            "type": "websocket",
            "scheme": "ws",
            "path": "/v1/realtime",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "subprotocols": [p.strip() for p in sent.get("sec-websocket-protocol", "").split(",") if p],
            "extensions": {"websocket.http.response": {}},
        }
        self.task = asyncio.create_task(app(self._scope, self._receive, self._send))
        self.on_event: Callable[[Event], None] | None = None

    async def _receive(self) -> Event:
        return await self._inbox.get()

    async def _send(self, message: Any) -> None:
        if self.read_delay_s:
            await asyncio.sleep(self.read_delay_s)
        await self.reading.wait()
        if self.gone:
            raise OSError("the peer is gone")
        kind = message["type"]
        if kind == "websocket.accept":
            self.accepted = dict(message)
        elif kind == "websocket.send":
            event = json.loads(message["text"])
            self.events.append(event)
            self.times.append(asyncio.get_running_loop().time())
            self.checker.feed(event)
            if self.on_event is not None:
                self.on_event(event)
        elif kind == "websocket.close":
            self.closed = (message.get("code", 1000), message.get("reason", ""))
        elif kind == "websocket.http.response.start":
            self.denied = message["status"]
        else:
            self.denial += message["body"]
        self._news.set()

    # --- what it does -----------------------------------------------------------------------------------------

    def send(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, **fields}
        self.checker.sent(event)
        self._inbox.put_nowait({"type": "websocket.receive", "text": json.dumps(event)})

    def send_text(self, text: str) -> None:
        self._inbox.put_nowait({"type": "websocket.receive", "text": text})

    def send_bytes(self, data: bytes) -> None:
        self._inbox.put_nowait({"type": "websocket.receive", "bytes": data})

    def append(self, pcm: Pcm16) -> None:
        self.send("input_audio_buffer.append", audio=base64.b64encode(self.encode(pcm)).decode())

    async def speak(self, ms: int, level: int = 6_000) -> None:
        """Frames in real time."""
        half = self.rate_hz // 1000  # a 500 Hz square, which every resampler lets pass
        frame = np.tile(np.repeat(np.array([level, -level], np.int16), half), FRAME_MS // 2)
        for _ in range(ms // FRAME_MS):
            self.append(frame)
            await asyncio.sleep(FRAME_MS / 1000)

    async def hush(self, ms: int) -> None:
        await self.speak(ms, 0)

    async def update(self, **session: Any) -> Event:
        self.send("session.update", session={"type": "realtime", **session})
        return await self.expect("session.updated")

    async def expect(self, kind: str, count: int = 1, within_s: float = 60.0) -> Event:
        """Wait for the ``count``-th event of a type since the call began."""
        async with asyncio.timeout(within_s):
            while len(found := self.of(kind)) < count:
                self._news.clear()
                await self._news.wait()
        return found[count - 1]

    def hang_up(self, code: int = 1000) -> None:
        self.gone = True
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})

    def vanish(self) -> None:
        """As uvicorn tells of a connection that was lost."""
        self.gone = True
        self.reading.set()
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1005})

    async def ended(self) -> None:
        async with asyncio.timeout(30):
            await self.task

    # --- what it got ------------------------------------------------------------------------------------------

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def audio(self) -> bytes:
        return b"".join(base64.b64decode(event["delta"]) for event in self.of("response.output_audio.delta"))

    @property
    def errors(self) -> list[tuple[str, str | None]]:
        return [(event["error"]["code"], event["error"]["event_id"]) for event in self.of("error")]


def encode_pcm(pcm: Pcm16) -> bytes:
    return pcm.astype("<i2").tobytes()


async def finish(peer: Peer) -> None:
    """Everything half done comes to its end, then the peer leaves."""
    await asyncio.sleep(10)
    peer.checker.finish()
    peer.hang_up()
    await peer.ended()


def causes(gateway: Gateway) -> list[str | None]:
    return [record.cause for record in gateway.recent]


def message(text: str, item_id: str | None = None) -> dict[str, Any]:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return item if item_id is None else {**item, "id": item_id}
