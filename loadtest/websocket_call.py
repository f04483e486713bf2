"""A call over the OpenAI Realtime (GA) WebSocket, as an unprivileged client makes it: audio as base64 in events."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np

from loadtest.address import bearer
from loadtest.call import (
    CALL_RATE_HZ,
    SLOT_MS,
    SLOT_SAMPLES,
    CallOver,
    CallPlan,
    EndCause,
    Key,
    Pcm16,
    Voice,
    frames_of,
)
from loadtest.playout import Playout
from loadtest.realtime_wire import RealtimeWire
from loadtest.websocket_link import WebSocketLink
from loadtest.wire import ServerEvent, decode_event

_FIRST_EVENT_S = 10.0
_MAX_MESSAGE_BYTES = 24 * 1024 * 1024

_PCM = {"format": {"type": "audio/pcm", "rate": CALL_RATE_HZ}}


def _append(frame: Pcm16) -> bytes:
    audio = base64.b64encode(frame.astype("<i2", copy=False).tobytes()).decode("ascii")
    return msgspec.json.encode({"type": "input_audio_buffer.append", "audio": audio})


def encode_voice(plan: CallPlan) -> Voice:
    """Every frame as the event that carries it."""
    silence = _append(np.zeros(SLOT_SAMPLES, dtype=np.int16))
    return Voice(tuple([_append(frame) for frame in frames_of(turn.pcm)] for turn in plan.turns), silence)


async def dial_websocket(plan: CallPlan, url: str) -> WebSocketWire:
    """Connect and wait for ``session.created``. Raises :class:`CallOver` if that did not come about."""
    headers = {"Authorization": bearer(plan.key).decode("latin-1")} if plan.key else None
    voice = await asyncio.to_thread(encode_voice, plan)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    link = await WebSocketLink.open(url, plan, headers, max_message_bytes=_MAX_MESSAGE_BYTES)
    try:
        created = await _first_event(link)
    except BaseException:
        await link.close()
        raise
    now_s = loop.time()
    return WebSocketWire(link, created, voice, origin_s=now_s, setup_ms=(now_s - began_s) * 1000)


async def _first_event(link: WebSocketLink) -> ServerEvent:
    try:
        async with asyncio.timeout(_FIRST_EVENT_S):
            first = decode_event(await link.receive())
    except (TimeoutError, msgspec.MsgspecError) as error:
        raise CallOver(EndCause.NO_SESSION, "the server did not begin with session.created") from error
    if first.type != "session.created":
        raise CallOver(EndCause.NO_SESSION, f"the server began with {first.type}, not with session.created")
    return first


class WebSocketWire(RealtimeWire):
    """See :class:`loadtest.call.Wire`."""

    formats: ClassVar[Mapping[str, Any]] = {"input": _PCM, "output": _PCM}

    def __init__(
        self, link: WebSocketLink, created: ServerEvent, voice: Voice, *, origin_s: float, setup_ms: float
    ) -> None:
        super().__init__(created)
        self.voice = voice
        self.origin_s = origin_s
        self.setup_ms = setup_ms
        self.ear = Playout(origin_s, rate_hz=CALL_RATE_HZ, slot_ms=SLOT_MS)
        self._link = link
        self._clock = asyncio.get_running_loop().time

    async def send_voice(self, frame: bytes, key: Key | None) -> None:
        await self._link.send(frame.decode())

    async def send_event(self, event: Mapping[str, object]) -> None:
        await self._link.send(msgspec.json.encode(event).decode())

    async def receive(self) -> str | bytes:
        return await self._link.receive()

    async def on_event(self, event: ServerEvent) -> None:
        now_s = self._clock()
        match event.type:
            case "response.output_audio.delta":
                try:
                    pcm = np.frombuffer(base64.b64decode(event.delta or "", validate=True), dtype="<i2")
                except (binascii.Error, ValueError):
                    self.log.note_error("malformed audio delta")
                else:
                    self.ear.push(event.item_id or "", pcm.astype(np.int16, copy=False), now_s)
            case "response.output_audio.done":
                self.ear.finish(event.item_id or "", now_s)
            case "response.done":
                for item_id in self.log.items_of((event.response and event.response.id) or ""):
                    self.ear.finish(item_id, now_s)
            case "input_audio_buffer.speech_started" | "output_audio_buffer.cleared":
                await self._flush(now_s)

    async def hang_up(self) -> str | None:
        await self._link.close()
        return None

    def setup(self) -> None:
        return None

    def media(self) -> None:
        return None

    def buffer(self) -> None:
        return None

    async def _flush(self, now_s: float) -> None:
        """Stop the sound and say what was heard: over a WebSocket, only the client knows (Realtime guide, truncate)."""
        for cut in self.ear.flush(now_s):
            truncate = {"item_id": cut.item_id, "content_index": 0, "audio_end_ms": cut.played_ms}
            await self.send_event({"type": "conversation.item.truncate", **truncate})
