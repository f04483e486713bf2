"""A small scripted Realtime server on loopback: enough of the protocol for a caller to be tested against.

It hears by energy: 100 ms of sound starts an utterance, 200 ms of silence ends it. A reply is a 300 Hz tone sent as
fast as the socket takes it, as hosted Realtime services do, unless it is paced.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

RATE_HZ = 24_000


def tone(ms: int) -> bytes:
    wave = 6_000 * np.sin(2 * np.pi * 300 * np.arange(RATE_HZ * ms // 1000) / RATE_HZ)
    return wave.astype("<i2").tobytes()


@dataclass
class Script:
    """What the server does. Replies are lengths in ms, one an utterance; None stays silent."""

    replies: Sequence[int | None] = (400,)
    greeting_ms: int | None = None
    reply_gap_ms: int = 0
    transcribe: bool = True
    status: int | None = None
    close_at_once: tuple[int, str] | None = None
    close_after_reply: int | None = None
    abort_after_reply: bool = False
    deaf: bool = False
    mute: bool = False
    first_event: str = "session.created"
    raw: Sequence[str] = ()


@dataclass
class Seen:
    """What callers sent."""

    paths: list[str] = field(default_factory=list)
    authorization: list[str | None] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    audio: bytearray = field(default_factory=bytearray)


class FakeCall:
    def __init__(self, connection: ServerConnection, script: Script, seen: Seen) -> None:
        self._connection = connection
        self._script = script
        self._seen = seen
        self._turn = 0
        self._loud_ms = 0
        self._quiet_ms = 0
        self._speaking = False

    async def send(self, kind: str, **fields: Any) -> None:
        await self._connection.send(json.dumps({"type": kind, "event_id": f"event_{id(fields)}", **fields}))

    async def run(self) -> None:
        if self._script.mute:
            await self._connection.wait_closed()
        await self.send(self._script.first_event, session={"id": "sess_1", "type": "realtime"})
        if self._script.greeting_ms is not None:
            await self._respond("greeting", self._script.greeting_ms)
        for text in self._script.raw:
            await self._connection.send(text)
        async for message in self._connection:
            event = json.loads(message)
            if event["type"] == "session.update":
                self._seen.events.append(event)
                await self.send("session.updated", session=event["session"])
            elif event["type"] == "input_audio_buffer.append":
                await self._on_audio(base64.b64decode(event["audio"]))
            else:
                self._seen.events.append(event)

    async def _on_audio(self, pcm: bytes) -> None:
        self._seen.audio += pcm
        loud = float(np.abs(np.frombuffer(pcm, dtype="<i2").astype(np.float64)).mean()) > 100
        self._loud_ms = self._loud_ms + 20 if loud else 0
        self._quiet_ms = 0 if loud else self._quiet_ms + 20
        if not self._script.deaf and not self._speaking and self._loud_ms >= 100:
            self._speaking = True
            await self.send("input_audio_buffer.speech_started", audio_start_ms=0, item_id=f"user_{self._turn}")
        elif self._speaking and self._quiet_ms >= 200:
            self._speaking = False
            await self._answer()

    async def _answer(self) -> None:
        turn, self._turn = self._turn, self._turn + 1
        await self.send("input_audio_buffer.committed", item_id=f"user_{turn}", previous_item_id=None)
        length = self._script.replies[turn] if turn < len(self._script.replies) else None
        if length is not None:
            await self._respond(f"answer {turn}", length)
        if self._script.transcribe:
            kind = "conversation.item.input_audio_transcription.completed"
            await self.send(kind, item_id=f"user_{turn}", content_index=0, transcript=f"utterance {turn}")
        if self._script.abort_after_reply:
            self._connection.transport.abort()
        if self._script.close_after_reply is not None:
            await asyncio.sleep(0.6)
            await self._connection.close(self._script.close_after_reply)

    async def _respond(self, text: str, length_ms: int) -> None:
        names = {"response_id": f"resp_{text}", "item_id": f"item_{text}", "output_index": 0, "content_index": 0}
        await self.send("response.created", response={"id": f"resp_{text}", "status": "in_progress"})
        await self.send("response.output_audio_transcript.delta", delta=text[:3], **names)
        pcm = tone(length_ms)
        half = len(pcm) // 4 * 2
        await self.send("response.output_audio.delta", delta=base64.b64encode(pcm[:half]).decode(), **names)
        await asyncio.sleep(self._script.reply_gap_ms / 1000)
        await self.send("response.output_audio.delta", delta=base64.b64encode(pcm[half:]).decode(), **names)
        await self.send("response.output_audio.done", **names)
        await self.send("response.output_audio_transcript.done", transcript=text, **names)
        await self.send("response.done", response={"id": f"resp_{text}", "status": "completed"})


@asynccontextmanager
async def realtime_server(script: Script) -> AsyncIterator[tuple[str, Seen]]:
    """Yields the URL and what callers sent."""
    seen = Seen()

    def admit(_connection: ServerConnection, request: Request) -> Response | None:
        seen.paths.append(request.path)
        seen.authorization.append(request.headers.get("Authorization"))
        if script.status is None:
            return None
        return _connection.respond(HTTPStatus(script.status), "because of the script\n")

    async def handle(connection: ServerConnection) -> None:
        if script.close_at_once is not None:
            await connection.close(*script.close_at_once)
            return
        await FakeCall(connection, script, seen).run()

    server: Server
    async with serve(handle, "127.0.0.1", 0, process_request=admit, max_queue=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}/v1/realtime", seen
