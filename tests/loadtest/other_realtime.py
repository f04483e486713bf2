"""A Realtime server that is none of ours, as OpenAI documents its own: nothing but the ``websockets`` package, and
facts of that documentation (GA event names; "Realtime API with WebSocket", "Server events").

It is unlike ours where the protocol lets it be: its JSON is pretty-printed and full of fields, events that nobody asked
for come in between, audio comes a second at a time and faster than it plays, a truncation is checked, and it has no
``/metrics``.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

KEY = "sk-other"
RATE_HZ = 24_000
PIECE_MS = 1_000
PIECE_EVERY_S = 0.1
ONSET_MS, SILENCE_MS = 100, 300
LOUD = 300.0


@dataclass
class Manner:
    """What it does to callers."""

    greeting_ms: int | None = None
    reply_ms: int = 2_400
    room: int = 100
    """More callers at once get 429."""
    full: str | None = None
    """Every caller is let in, and told this error in place of ``session.created``."""
    drop_after_s: float | None = None
    """The connection is reset then."""
    goodbye_after_s: float | None = None
    """The session is closed then, as after its longest time."""
    beta: bool = False
    """It speaks as the beta did."""


@dataclass
class Seen:
    callers: int = 0
    asked: list[str] = field(default_factory=list)
    """Paths that are not the Realtime's."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """What callers sent, but for audio."""
    errors: list[str] = field(default_factory=list)
    """What they were told that they did wrong."""


class _Session:
    def __init__(self, connection: ServerConnection, manner: Manner, seen: Seen) -> None:
        self._connection, self._manner, self._seen = connection, manner, seen
        self._numbers = count(1)
        self._heard_ms = self._loud_ms = self._quiet_ms = 0
        self._utterance: str | None = None
        self._last_item: str | None = None
        self._lengths_ms: dict[str, int] = {}
        self._replying: asyncio.Task[None] | None = None

    async def run(self) -> None:
        manner = self._manner
        if manner.full is not None:
            await self._error("invalid_request_error", manner.full, "You have too many sessions open.")
            await self._connection.close(1008, "rate limit")
            return
        await self._tell("session.created", session=self._description({}))
        await self._tell("rate_limits.updated", rate_limits=[{"name": "tokens", "limit": 40_000, "remaining": 39_990}])
        if manner.greeting_ms is not None:
            self._reply(manner.greeting_ms)
        async with asyncio.TaskGroup() as tasks:
            ending = tasks.create_task(self._end())
            try:
                async for message in self._connection:
                    await self._on_event(json.loads(message))
            finally:
                ending.cancel()
                if self._replying is not None:
                    self._replying.cancel()

    async def _end(self) -> None:
        manner = self._manner
        if manner.drop_after_s is not None:
            await asyncio.sleep(manner.drop_after_s)
            self._connection.transport.abort()
        if manner.goodbye_after_s is not None:
            await asyncio.sleep(manner.goodbye_after_s)
            await self._error("invalid_request_error", "session_expired", "Your session hit the maximum duration.")
            await self._connection.close(1001, "session expired")

    async def _on_event(self, event: dict[str, Any]) -> None:
        if event["type"] == "input_audio_buffer.append":
            await self._hear(np.frombuffer(base64.b64decode(event["audio"], validate=True), "<i2"))
            return
        self._seen.events.append(event)
        match event["type"]:
            case "session.update":
                wanted = event["session"]
                if wanted.get("type") != "realtime" or set(wanted) - {"type", "audio", "instructions"}:
                    await self._error("invalid_request_error", "unknown_parameter", "Unknown parameter.")
                await self._tell("session.updated", session=self._description(wanted))
            case "conversation.item.truncate":
                length_ms = self._lengths_ms.get(event["item_id"], -1)
                if event["content_index"] != 0 or not 0 <= event["audio_end_ms"] <= length_ms:
                    said = f"Audio content of {length_ms}ms is already shorter than {event['audio_end_ms']}ms"
                    await self._error("invalid_request_error", "invalid_value", said)
                else:
                    await self._tell("conversation.item.truncated", **{**event, "type": None, "event_id": None})
            case other:
                await self._error("invalid_request_error", "invalid_value", f"Invalid value: '{other}'.")

    async def _hear(self, pcm: np.ndarray[Any, np.dtype[np.int16]]) -> None:
        ms = len(pcm) * 1000 // RATE_HZ
        self._heard_ms += ms
        is_loud = float(np.abs(pcm.astype(np.float32)).mean()) > LOUD
        self._loud_ms, self._quiet_ms = (self._loud_ms + ms, 0) if is_loud else (0, self._quiet_ms + ms)
        if self._utterance is None and self._loud_ms >= ONSET_MS:
            self._utterance = self._name("item")
            start_ms = max(0, self._heard_ms - self._loud_ms - 300)
            await self._tell("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=self._utterance)
            if self._replying is not None:
                self._replying.cancel()
        elif self._utterance is not None and self._quiet_ms >= SILENCE_MS:
            item_id, self._utterance = self._utterance, None
            await self._tell("input_audio_buffer.speech_stopped", audio_end_ms=self._heard_ms, item_id=item_id)
            await self._tell("input_audio_buffer.committed", previous_item_id=self._last_item, item_id=item_id)
            await self._item(item_id, "user", {"type": "input_audio", "transcript": None, "audio": None})
            about = {"item_id": item_id, "content_index": 0}
            kind = "conversation.item.input_audio_transcription"
            await self._tell(f"{kind}.delta", **about, delta="What", logprobs=None)
            await self._tell(f"{kind}.completed", **about, transcript="What?", usage={"type": "duration", "seconds": 1})
            self._reply(self._manner.reply_ms)

    def _reply(self, length_ms: int) -> None:
        self._replying = asyncio.create_task(self._respond(length_ms))

    async def _respond(self, length_ms: int) -> None:
        response_id, item_id = self._name("resp"), self._name("item")
        at = {"response_id": response_id, "item_id": item_id, "output_index": 0, "content_index": 0}
        response = {"object": "realtime.response", "id": response_id, "status": "in_progress", "output": []}
        self._lengths_ms[item_id] = 0
        wave = (6_000 * np.sin(2 * np.pi * 300 * np.arange(RATE_HZ * length_ms // 1000) / RATE_HZ)).astype("<i2")
        audio = "response.audio" if self._manner.beta else "response.output_audio"
        await self._tell("response.created", response=response)
        try:
            await self._tell(
                "response.output_item.added", response_id=response_id, output_index=0, item={"id": item_id}
            )
            await self._item(item_id, "assistant", {"type": "output_audio", "transcript": ""})
            await self._tell("response.content_part.added", **at, part={"type": "audio", "transcript": ""})
            # What another vendor adds to the protocol is not ours to understand.
            await self._tell(
                "response.animation_viseme.delta", **at, delta={"viseme": 3}, transcript=["a"], error="none"
            )
            for start in range(0, len(wave), RATE_HZ * PIECE_MS // 1000):
                piece = wave[start : start + RATE_HZ * PIECE_MS // 1000]
                self._lengths_ms[item_id] += len(piece) * 1000 // RATE_HZ
                await self._tell(f"{audio}.delta", **at, delta=base64.b64encode(piece.tobytes()).decode())
                await self._tell(f"{audio}_transcript.delta", **at, delta="la ", obfuscation="x8Jd")
                await asyncio.sleep(PIECE_EVERY_S)
        except asyncio.CancelledError:
            cancelled = {"type": "cancelled", "reason": "turn_detected"}
            await self._tell("response.done", response={**response, "status": "cancelled", "status_details": cancelled})
            raise
        await self._tell(f"{audio}.done", **at)
        await self._tell(f"{audio}_transcript.done", **at, transcript="la la la")
        await self._tell("response.output_item.done", response_id=response_id, output_index=0, item={"id": item_id})
        usage = {"total_tokens": 253, "output_token_details": {"audio_tokens": 91}}
        await self._tell("response.done", response={**response, "status": "completed", "usage": usage})

    async def _item(self, item_id: str, role: str, content: dict[str, Any]) -> None:
        item = {"id": item_id, "type": "message", "status": "completed", "role": role, "content": [content]}
        await self._tell("conversation.item.added", previous_item_id=self._last_item, item=item)
        await self._tell("conversation.item.done", previous_item_id=self._last_item, item=item)
        self._last_item = item_id

    async def _error(self, kind: str, code: str, message: str) -> None:
        self._seen.errors.append(f"{code}: {message}")
        await self._tell("error", error={"type": kind, "code": code, "message": message, "param": None})

    async def _tell(self, kind: str, **fields: Any) -> None:
        event = {"event_id": self._name("event"), **fields, "type": kind}
        await self._connection.send(json.dumps(event, indent=4, ensure_ascii=False))

    def _description(self, wanted: dict[str, Any]) -> dict[str, Any]:
        form = {"type": "audio/pcm", "rate": RATE_HZ}
        detection = {"type": "server_vad", "threshold": 0.5, "idle_timeout_ms": None, "interrupt_response": True}
        audio = {
            "input": {"format": form, "turn_detection": detection, "noise_reduction": None, "transcription": None},
            "output": {"format": form, "voice": "märchen", "speed": 1.0},
        }
        session: dict[str, Any] = {
            "object": "realtime.session",
            "id": "sess_CBFk",
            "model": "gpt-realtime",
            "tools": [],
            "prompt": None,
        }
        return {**session, "max_output_tokens": "inf", "expires_at": 1_756_324_625, "audio": audio, **wanted}

    def _name(self, kind: str) -> str:
        return f"{kind}_{id(self):x}{next(self._numbers):04}"


@asynccontextmanager
async def other_realtime(manner: Manner) -> AsyncIterator[tuple[str, Seen]]:
    """Yields the address, with the model in its query, and what callers did."""
    seen = Seen()

    def admit(connection: ServerConnection, request: Request) -> Response | None:
        if urlsplit(request.path).path != "/v1/realtime":
            seen.asked.append(request.path)
            return connection.respond(HTTPStatus.NOT_FOUND, "Not Found")
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            error = {
                "message": "Incorrect API key provided.",
                "type": "invalid_request_error",
                "code": "invalid_api_key",
            }
            return connection.respond(HTTPStatus.UNAUTHORIZED, json.dumps({"error": error}, indent=4))
        if seen.callers >= manner.room:
            return connection.respond(HTTPStatus.TOO_MANY_REQUESTS, "slow down")
        seen.callers += 1
        return None

    async def talk(connection: ServerConnection) -> None:
        await _Session(connection, manner, seen).run()

    server: Server
    async with serve(talk, "127.0.0.1", 0, process_request=admit, max_queue=None) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/realtime?model=gpt-realtime", seen
