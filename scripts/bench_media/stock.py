"""aiortc as its examples use it: a track that makes a frame every 20 ms, and a task that reads the caller's track."""

from __future__ import annotations

import asyncio
import time
from fractions import Fraction

from aiortc import MediaStreamTrack, RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame, AudioResampler

from scripts.bench_media.server import GREETINGS, Conversation
from scripts.bench_media.talk import AGENT_FRAME, AGENT_HZ, FRAME_MS, HEARD_HZ


class Call:
    def __init__(self, conversation: Conversation) -> None:
        # Without a configuration aiortc asks a public STUN server.
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._conversation = conversation
        self._listening: asyncio.Task[None] | None = None

    async def answer(self, offer_sdp: str) -> str:
        @self._peer.on("track")
        def on_track(track: MediaStreamTrack) -> None:
            self._listening = asyncio.create_task(self._listen(track))

        @self._peer.on("datachannel")
        def on_channel(channel: RTCDataChannel) -> None:
            for text in GREETINGS:
                channel.send(text)

        await self._peer.setRemoteDescription(RTCSessionDescription(sdp=offer_sdp, type="offer"))
        self._peer.addTrack(AgentTrack(self._conversation))
        await self._peer.setLocalDescription(await self._peer.createAnswer())
        return str(self._peer.localDescription.sdp)

    async def close(self) -> None:
        await self._peer.close()

    async def _listen(self, track: MediaStreamTrack) -> None:
        resampler = AudioResampler(format="s16", layout="mono", rate=HEARD_HZ)
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, AudioFrame)
            for resampled in resampler.resample(frame):
                self._conversation.hear(len(resampled.to_ndarray()[0]))


class AgentTrack(MediaStreamTrack):
    """Speech or silence, 24 kHz mono, paced like aiortc's own AudioStreamTrack."""

    kind = "audio"

    def __init__(self, conversation: Conversation) -> None:
        super().__init__()
        self._conversation = conversation
        self._start_s: float | None = None
        self._index = 0

    async def recv(self) -> AudioFrame:
        if self.readyState != "live":
            raise MediaStreamError
        if self._start_s is None:
            self._start_s = time.time()
        else:
            self._index += 1
            await asyncio.sleep(self._start_s + self._index * FRAME_MS / 1000 - time.time())
        frame = AudioFrame(format="s16", layout="mono", samples=AGENT_FRAME)
        if self._conversation.talking:
            frame.planes[0].update(self._conversation.speech.frame(self._index).tobytes())
        else:
            frame.planes[0].update(bytes(2 * AGENT_FRAME))
        frame.sample_rate = AGENT_HZ
        frame.pts = self._index * AGENT_FRAME
        frame.time_base = Fraction(1, AGENT_HZ)
        return frame
