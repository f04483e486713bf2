"""A browser's part of a WebRTC call, by stock aiortc over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import fractions
import json
from collections.abc import AsyncIterator
from typing import Any

import aioice.ice
import av
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

Event = dict[str, Any]
WITHIN_S = 20.0


class _Microphone(MediaStreamTrack):
    """Silence in real time."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._begun: float | None = None
        self._frames = 0

    async def recv(self) -> av.AudioFrame:
        loop = asyncio.get_running_loop()
        if self._begun is None:
            self._begun = loop.time()
        await asyncio.sleep(self._begun + self._frames * 0.02 - loop.time())
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 960), np.int16), format="s16", layout="mono")
        frame.sample_rate = 48_000
        frame.pts, frame.time_base = self._frames * 960, fractions.Fraction(1, 48_000)
        self._frames += 1
        return frame


class AiortcCaller:
    """``offer`` goes to the gateway, its answer to :meth:`accept`."""

    def __init__(self) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.channel = self.connection.createDataChannel("oai-events")
        self.events: list[Event] = []
        self.loudest = 0
        self.loud_frames = 0
        self.closed = asyncio.Event()
        self.channel_closed = asyncio.Event()
        self._news = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self.connection.addTrack(_Microphone())
        self.channel.on("message", self._on_message)
        self.channel.on("close", self.channel_closed.set)
        self.connection.on("track", self._on_track)
        self.connection.on("connectionstatechange", self._on_state)

    async def offer(self) -> str:
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return str(self.connection.localDescription.sdp)

    async def accept(self, answer: str) -> None:
        await self.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))

    def send(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def expect(self, kind: str, count: int = 1) -> Event:
        async with asyncio.timeout(WITHIN_S):
            while len(found := [event for event in self.events if event["type"] == kind]) < count:
                self._news.clear()
                await self._news.wait()
        return found[count - 1]

    async def hears(self, frames: int) -> None:
        """Until that many frames with sound came."""
        async with asyncio.timeout(WITHIN_S):
            while self.loud_frames < frames:
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        await self.connection.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def _on_message(self, text: str) -> None:
        self.events.append(json.loads(text))
        self._news.set()

    def _on_track(self, track: Any) -> None:
        self._listening = asyncio.create_task(self._listen(track), name="ear")

    async def _listen(self, track: Any) -> None:
        with contextlib.suppress(MediaStreamError):
            while True:
                frame = await track.recv()
                level = int(np.abs(frame.to_ndarray().astype(np.int32)).max())
                self.loudest = max(self.loudest, level)
                self.loud_frames += level > 500
                self._news.set()

    def _on_state(self) -> None:
        if self.connection.connectionState in ("closed", "failed"):
            self.closed.set()


@contextlib.asynccontextmanager
async def aiortc_caller() -> AsyncIterator[AiortcCaller]:
    """aioice never gathers loopback, and asks nobody for an address here."""
    known = aioice.ice.get_host_addresses
    aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]
    caller = AiortcCaller()
    try:
        yield caller
    finally:
        await caller.close()
        aioice.ice.get_host_addresses = known
