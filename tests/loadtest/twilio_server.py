"""A scripted server of Twilio Media Streams on loopback: what stands behind a TwiML ``<Connect><Stream>``."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from streaming.audio.g711 import decode_mulaw, encode_mulaw
from tests.loadtest.phone_agent import ScriptedAgent


@dataclass
class Script:
    """A reply is sent at once, with a mark after every 200 ms and at its end; an interruption clears it."""

    replies: Sequence[int | None] = (400,)
    greeting_ms: int | None = None
    status: int | None = None
    close_after_mark: int | None = None
    """Close with this code when the last mark of a reply has come back."""
    close_at_once: int | None = None
    """Take the upgrade and close with this code."""
    raw: Sequence[str] = ()
    """Sent after ``start``, with the stream's id for ``SID``."""


@dataclass
class Seen:
    """What the caller sent."""

    paths: list[str] = field(default_factory=list)
    signatures: list[str | None] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["event"] == event]


class FakeStream:
    def __init__(self, connection: ServerConnection, script: Script, seen: Seen) -> None:
        self._connection = connection
        self._script = script
        self._seen = seen
        self._agent = ScriptedAgent(script.replies, script.greeting_ms)
        self._sid = ""
        self._marks = 0
        self._last_mark = ""

    async def run(self) -> None:
        if self._script.close_at_once is not None:
            await self._connection.close(self._script.close_at_once)
        async for raw in self._connection:
            message = json.loads(raw)
            self._seen.messages.append(message)
            match message["event"]:
                case "start":
                    self._sid = message["streamSid"]
                    for text in self._script.raw:
                        await self._connection.send(text.replace("SID", self._sid))
                    await self._speak()
                case "media":
                    what = self._agent.hear(decode_mulaw(base64.b64decode(message["media"]["payload"])))
                    if what == "started":
                        await self._send("clear")
                    await self._speak()
                case "mark" if message["mark"]["name"] == self._last_mark and self._script.close_after_mark:
                    await self._connection.close(self._script.close_after_mark)

    async def _speak(self) -> None:
        frames = self._agent.frames
        while frames:
            payload = b"".join(encode_mulaw(frames.popleft()) for _ in range(min(10, len(frames))))
            await self._send("media", media={"payload": base64.b64encode(payload).decode()})
            self._marks += 1
            self._last_mark = f"m{self._marks}"
            await self._send("mark", mark={"name": self._last_mark})

    async def _send(self, event: str, **content: Any) -> None:
        await self._connection.send(json.dumps({"event": event, "streamSid": self._sid, **content}))


@asynccontextmanager
async def twilio_server(script: Script) -> AsyncIterator[tuple[str, Seen]]:
    """Yields the address (``twilio+ws://…``) and what the caller sent."""
    seen = Seen()

    def admit(connection: ServerConnection, request: Request) -> Response | None:
        seen.paths.append(request.path)
        seen.signatures.append(request.headers.get("X-Twilio-Signature"))
        return (
            None if script.status is None else connection.respond(HTTPStatus(script.status), "because of the script\n")
        )

    async def handle(connection: ServerConnection) -> None:
        await FakeStream(connection, script, seen).run()

    async with serve(handle, "127.0.0.1", 0, process_request=admit) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"twilio+ws://127.0.0.1:{port}/v1/carriers/twilio/stream", seen
        await asyncio.sleep(0)
