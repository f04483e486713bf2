"""A small scripted Realtime server over WebRTC on loopback: stock aiortc behind a few lines of HTTP.

It hears by energy like :mod:`tests.loadtest.realtime_server`, whose script it follows, and sends its replies as Opus
that was encoded beforehand, silence between them included.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import aioice.ice
import av
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from streaming.audio.opus import OpusEncoder
from tests.listening import listening
from tests.loadtest.realtime_server import RATE_HZ, Script, tone

FRAME = RATE_HZ // 50


@dataclass
class Heard:
    """What callers sent, over HTTP and over the channel."""

    requests: list[tuple[str, str, dict[str, str], str]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    loud_frames: int = 0
    frames: int = 0
    offers: list[str] = field(default_factory=list)


@dataclass
class Faults:
    """What goes wrong on purpose."""

    status: int | None = None
    body: str = ""
    answer: Callable[[str], str] = lambda sdp: sdp
    location: str = "/v1/realtime/calls/rtc_1"
    hangup_status: int = 200
    silent_channel: bool = False
    close_at_once: bool = False


class Speaker(MediaStreamTrack):
    """Paced Opus: what was said last, then silence."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._encoder = OpusEncoder()
        self._silence = self._encoder.encode(np.zeros(FRAME, dtype=np.int16))
        self._queue: list[bytes] = []
        self._count = 0
        self._begun_s: float | None = None

    def say(self, length_ms: int) -> None:
        self._encoder.reset()
        pcm = np.frombuffer(tone(length_ms), dtype="<i2").astype(np.int16)
        pcm = np.pad(pcm, (0, -len(pcm) % FRAME))
        self._queue = [self._encoder.encode(frame) for frame in pcm.reshape(-1, FRAME)]

    def hush(self) -> None:
        self._queue.clear()

    async def recv(self) -> Any:
        loop = asyncio.get_running_loop()
        self._begun_s = self._begun_s or loop.time()
        await asyncio.sleep(max(0.0, self._begun_s + self._count * 0.02 - loop.time()))
        packet = av.Packet(self._queue.pop(0) if self._queue else self._silence)
        packet.pts, packet.time_base = self._count * 960, Fraction(1, 48_000)
        self._count += 1
        return packet


class PeerCall:
    """One answered call."""

    def __init__(self, script: Script, heard: Heard, faults: Faults) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._script, self._heard, self._faults = script, heard, faults
        self._speaker = Speaker()
        self._channel: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = self._loud_ms = self._quiet_ms = 0
        self._speaking = False
        self.connection.on("datachannel", self._on_channel)
        self.connection.on("track", lambda track: self._start(self._listen(track)))

    async def answer(self, offer: str) -> str:
        self._heard.offers.append(offer)
        await self.connection.setRemoteDescription(RTCSessionDescription(offer, "offer"))
        self.connection.addTrack(self._speaker)
        await self.connection.setLocalDescription(await self.connection.createAnswer())
        return self.connection.localDescription.sdp

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.connection.close()

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.on("message", self._on_message)
        if self._faults.close_at_once:
            self._start(self.connection.close())
        if self._faults.silent_channel or self._faults.close_at_once:
            return
        self._send(self._script.first_event, session={"id": "sess_1", "type": "realtime"})
        for text in self._script.raw:
            channel.send(text)
        if self._script.greeting_ms is not None:
            self._start(self._respond("greeting", self._script.greeting_ms))

    def _on_message(self, message: str) -> None:
        event = json.loads(message)
        self._heard.events.append(event)
        if event["type"] == "session.update":
            self._send("session.updated", session=event["session"])

    def _send(self, kind: str, **fields: Any) -> None:
        if self._channel.readyState == "open":
            self._channel.send(json.dumps({"type": kind, **fields}))

    async def _listen(self, track: MediaStreamTrack) -> None:
        while True:
            try:
                frame: Any = await track.recv()
            except MediaStreamError:
                return
            loud = bool(np.abs(frame.to_ndarray().astype(np.float64)).mean() > 300)
            self._heard.frames += 1
            self._heard.loud_frames += loud
            self._loud_ms = self._loud_ms + 20 if loud else 0
            self._quiet_ms = 0 if loud else self._quiet_ms + 20
            if self._script.deaf:
                continue
            if not self._speaking and self._loud_ms >= 100:
                self._speaking = True
                self._send("input_audio_buffer.speech_started", audio_start_ms=0, item_id=f"user_{self._turn}")
                if self._speaker._queue:
                    self._speaker.hush()
                    self._send("output_audio_buffer.cleared", response_id="")
            elif self._speaking and self._quiet_ms >= 200:
                self._speaking = False
                self._start(self._reply())

    async def _reply(self) -> None:
        turn, self._turn = self._turn, self._turn + 1
        self._send("input_audio_buffer.committed", item_id=f"user_{turn}", previous_item_id=None)
        length = self._script.replies[turn] if turn < len(self._script.replies) else None
        if self._script.transcribe:
            kind = "conversation.item.input_audio_transcription.completed"
            self._send(kind, item_id=f"user_{turn}", content_index=0, transcript=f"utterance {turn}")
        if length is not None:
            await self._respond(f"answer {turn}", length)
        if self._script.close_after_reply is not None:
            await self.connection.close()

    async def _respond(self, text: str, length_ms: int) -> None:
        names = {"response_id": f"resp_{text}", "item_id": f"item_{text}", "output_index": 0, "content_index": 0}
        self._send("response.created", response={"id": f"resp_{text}", "status": "in_progress"})
        self._send("response.output_audio_transcript.done", transcript=text, **names)
        self._send("output_audio_buffer.started", response_id=f"resp_{text}")
        self._send("response.done", response={"id": f"resp_{text}", "status": "completed"})
        self._speaker.say(length_ms)
        await asyncio.sleep(length_ms / 1000)
        self._send("output_audio_buffer.stopped", response_id=f"resp_{text}")


@asynccontextmanager
async def webrtc_server(
    script: Script, faults: Faults | None = None, *, loopback_only: bool = True
) -> AsyncIterator[tuple[str, Heard]]:
    """Yields the server's base URL and what callers did."""
    heard, faults = Heard(), faults or Faults()
    calls: list[PeerCall] = []
    addresses = aioice.ice.get_host_addresses

    async def respond(method: str, target: str, headers: dict[str, str], body: str) -> tuple[int, str, str]:
        heard.requests.append((method, target, headers, body))
        if target.partition("?")[0].endswith("/client_secrets"):
            return 200, "application/json", json.dumps({"value": "ek_1"})
        if target.endswith("/hangup"):
            return faults.hangup_status, "text/plain", ""
        if method == "DELETE":
            return 204, "text/plain", ""
        if faults.status is not None:
            return faults.status, "application/json", faults.body
        calls.append(PeerCall(script, heard, faults))
        return 201, "application/sdp", faults.answer(await calls[-1].answer(body))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = (await reader.readexactly(int(headers.get("content-length", 0)))).decode()
                method, target, _ = first.split(" ")
                status, kind, text = await respond(method, target, headers, body)
                writer.write(
                    f"HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nLocation: {faults.location}\r\n"
                    f"Content-Length: {len(text.encode())}\r\n\r\n{text}".encode()
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass

    if loopback_only:
        aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]
    async with listening(handle) as port:
        try:
            yield f"http://127.0.0.1:{port}", heard
        finally:
            aioice.ice.get_host_addresses = addresses
            for call in calls:
                await call.close()
            await asyncio.sleep(0.03)  # aioice notices within 20 ms that it was closed
