"""A call over the OpenAI Realtime (GA) WebSocket, as an unprivileged client makes it: audio as base64 in events."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np

from loadtest.address import bearer
from loadtest.call import CALL_RATE_HZ, CallOver, CallPlan, Key, Pcm16
from loadtest.frame_tables import Encoding, Voice, each_frame, frame_tables
from loadtest.playout import Playout
from loadtest.realtime_wire import RealtimeWire, session_created
from loadtest.ticker import running_clock
from loadtest.websocket_link import WebSocketLink
from loadtest.wire import ServerEvent

_FIRST_EVENT_S = 10.0
_MAX_MESSAGE_BYTES = 24 * 1024 * 1024

_PCM = {"format": {"type": "audio/pcm", "rate": CALL_RATE_HZ}}


def _append(frame: Pcm16) -> bytes:
    audio = base64.b64encode(frame.astype("<i2", copy=False).tobytes()).decode("ascii")
    return msgspec.json.encode({"type": "input_audio_buffer.append", "audio": audio})


ENCODING = Encoding("realtime", CALL_RATE_HZ, each_frame(_append))
"""Every frame as the event that carries it."""


async def dial_websocket(plan: CallPlan, url: str) -> WebSocketWire:
    """Connect and wait for ``session.created``. Raises :class:`CallOver` if that did not come about."""
    headers = {"Authorization": bearer(plan.key).decode("latin-1")} if plan.key else None
    voice = await frame_tables.voice(ENCODING, plan.steps)
    clock = running_clock()
    began_s = clock()
    link = await WebSocketLink.open(url, plan, headers, max_message_bytes=_MAX_MESSAGE_BYTES)
    try:
        created = await session_created(link.receive, _FIRST_EVENT_S)
    except BaseException:
        await link.close()
        raise
    return WebSocketWire(link, created, voice, setup_ms=(clock() - began_s) * 1000)


class WebSocketWire(RealtimeWire):
    """See :class:`loadtest.call.Wire`."""

    formats: ClassVar[Mapping[str, Any]] = {"input": _PCM, "output": _PCM}

    def __init__(self, link: WebSocketLink, created: ServerEvent, voice: Voice, *, setup_ms: float) -> None:
        super().__init__(created)
        self.voice = voice
        self.setup_ms = setup_ms
        self.ear = Playout(rate_hz=CALL_RATE_HZ)
        self._link = link
        self._clock = running_clock()

    def attend(self, turn: Callable[[], int], on_over: Callable[[CallOver], None]) -> None:
        self._turn = turn
        self._link.attend(self.on_message, on_over)

    def encode(self, pcm: Pcm16) -> bytes:
        return _append(pcm)

    def send_voice(self, frame: bytes, key: Key | None) -> None:
        self._link.send(frame)

    def send_event(self, event: Mapping[str, object]) -> None:
        self._link.send(msgspec.json.encode(event))

    def on_event(self, event: ServerEvent) -> None:
        match event.type:
            case "response.output_audio.delta":
                try:
                    pcm = np.frombuffer(binascii.a2b_base64(event.delta or "", strict_mode=True), dtype="<i2")
                except (binascii.Error, ValueError):
                    self.log.note_malformed("malformed audio delta")
                else:
                    self.ear.push(event.item_id or "", pcm.astype(np.int16, copy=False), self._clock())
            case "response.output_audio.done":
                self.ear.finish(event.item_id or "", self._clock())
            case "response.done":
                for item_id in self.log.items_of((event.response and event.response.id) or ""):
                    self.ear.finish(item_id, self._clock())
            case "input_audio_buffer.speech_started" | "output_audio_buffer.cleared":
                self._flush(self._clock())

    async def vanish(self, linger_s: float) -> None:
        await self._link.vanish(linger_s)

    async def hang_up(self) -> str | None:
        await self._link.close()
        return None

    def setup(self) -> None:
        return None

    def media(self) -> None:
        return None

    def buffer(self) -> None:
        return None

    def _flush(self, now_s: float) -> None:
        """Stop the sound and say what was heard: over a WebSocket, only the client knows (Realtime guide, truncate)."""
        for cut in self.ear.flush(now_s):
            truncate = {"item_id": cut.item_id, "content_index": 0, "audio_end_ms": cut.played_ms}
            self.send_event({"type": "conversation.item.truncate", **truncate})
