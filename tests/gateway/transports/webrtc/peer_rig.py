"""A stock aiortc client on the loopback interface, and what a peer's owner is told."""

from __future__ import annotations

import asyncio
import contextlib
import fractions
import time
from collections.abc import AsyncIterator, Callable

import aioice.ice
import av
import numpy as np
import pytest
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError

from engines.api import Pcm16
from gateway.transports.webrtc import candidates
from gateway.transports.webrtc.peer import LostCause, MediaPeer, MediaPolicy

POLICY = MediaPolicy(allow_loopback=True, setup_s=10.0)
WAIT_S = 10.0


class Told:
    """Every event of a peer, and a way to wait for one."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.pcm: list[Pcm16] = []
        self._news = asyncio.Event()

    def _tell(self, what: object) -> None:
        self.log.append(what)
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not true():
                self._news.clear()
                await self._news.wait()

    async def event(self, what: object) -> None:
        await self.until(lambda: what in self.log)

    @property
    def heard(self) -> Pcm16:
        return np.concatenate(self.pcm) if self.pcm else np.zeros(0, dtype=np.int16)

    def connected(self) -> None:
        self._tell("connected")

    def channel_open(self) -> None:
        self._tell("channel_open")

    def audio(self, pcm: Pcm16) -> None:
        self.pcm.append(pcm)
        self._news.set()

    def message(self, text: str) -> None:
        self._tell(("message", text))

    def binary(self) -> None:
        self._tell("binary")

    def writable(self) -> None:
        self._tell("writable")

    def suspect(self, silent: bool) -> None:
        self._tell(("suspect", silent))

    def lost(self, cause: LostCause) -> None:
        self._tell(("lost", cause))


class Tone(MediaStreamTrack):
    """Both channels carry it, for aiortc makes a mono track 3 dB quieter."""

    kind = "audio"

    def __init__(self, hz: float = 440.0, amplitude: int = 10_000) -> None:
        super().__init__()
        self._hz, self._amplitude = hz, amplitude
        self._frames = 0
        self._began_s: float | None = None

    async def recv(self) -> av.AudioFrame:
        self._began_s = self._began_s or time.monotonic()
        await asyncio.sleep(max(0.0, self._began_s + self._frames * 0.02 - time.monotonic()))
        at = (np.arange(960) + 960 * self._frames) / 48_000
        mono = (self._amplitude * np.sin(2 * np.pi * self._hz * at)).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(np.repeat(mono, 2)[None], format="s16", layout="stereo")
        frame.sample_rate, frame.pts, frame.time_base = 48_000, 960 * self._frames, fractions.Fraction(1, 48_000)
        self._frames += 1
        return frame


class Client:
    """A caller on aiortc, as it comes."""

    def __init__(self, *, channel: bool = True, tone: bool = True) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        if tone:
            self.connection.addTrack(Tone())
        else:
            self.connection.addTransceiver("audio", direction="recvonly")
        self.channel: RTCDataChannel | None = None
        self.open = asyncio.Event()
        self.second = asyncio.Event()
        """Two messages have come."""
        self.messages: list[str | bytes] = []
        if channel:
            self.channel = self.connection.createDataChannel("oai-events")
            self.channel.on("message", self._on_message)
            self.channel.on("open", self.open.set)
        self.pcm: list[Pcm16] = []
        self._listening: asyncio.Task[None] | None = None
        self.connection.on("track", self._on_track)

    @property
    def heard(self) -> Pcm16:
        """The left channel, 48 kHz."""
        return np.concatenate(self.pcm) if self.pcm else np.zeros(0, dtype=np.int16)

    def _on_message(self, message: str | bytes) -> None:
        self.messages.append(message)
        if len(self.messages) == 2:
            self.second.set()

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._listening = asyncio.create_task(self._listen(track))

    async def _listen(self, track: MediaStreamTrack) -> None:
        with contextlib.suppress(MediaStreamError):
            while True:
                frame = await track.recv()
                assert isinstance(frame, av.AudioFrame)
                self.pcm.append(frame.to_ndarray()[0][::2].astype(np.int16))

    async def offer(self) -> str:
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return str(self.connection.localDescription.sdp)

    async def take(self, answer: str) -> None:
        await self.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))

    async def close(self) -> None:
        connecting = self.connection.connectionState == "connecting"
        sender = self.connection.getSenders()[0]
        ice = sender.transport.transport._connection
        await self.connection.close()
        if connecting:  # aiortc goes on with it, and then leaves a task behind
            await asyncio.sleep(0.05)
            await ice.close()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)


def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every machine: nobody has an address but 127.0.0.1."""
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda use_ipv4, use_ipv6: ["127.0.0.1"])
    monkeypatch.setattr(candidates, "host_addresses", lambda: ["127.0.0.1"])


@contextlib.asynccontextmanager
async def call(client: Client, policy: MediaPolicy = POLICY) -> AsyncIterator[tuple[MediaPeer, Told]]:
    """A connected call; both ends are closed behind it."""
    told = Told()
    peer = MediaPeer(policy, told)
    try:
        await client.take(await peer.answer(await client.offer()))
        await told.event("connected")
        if client.channel is not None:
            await told.event("channel_open")
            await asyncio.wait_for(client.open.wait(), WAIT_S)
        yield peer, told
    finally:
        await peer.close()
        await client.close()
