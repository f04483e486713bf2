"""aiortc as its examples use it: a track that makes a frame every 20 ms, and a task that reads the caller's track."""

from __future__ import annotations

import asyncio
import time
from fractions import Fraction

from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame, AudioResampler

from scripts.bench_media.server import Conversation
from scripts.bench_media.talk import AGENT_FRAME, AGENT_HZ, FRAME_MS, HEARD_HZ


class Server:
    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._peers: list[RTCPeerConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, offer_sdp: str, call: int) -> str:
        # Without a configuration aiortc asks a public STUN server.
        peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._peers.append(peer)

        @peer.on("track")
        def on_track(track: MediaStreamTrack) -> None:
            task = asyncio.create_task(self._listen(track))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        await peer.setRemoteDescription(RTCSessionDescription(sdp=offer_sdp, type="offer"))
        peer.addTrack(AgentTrack(self._conversation, call))
        await peer.setLocalDescription(await peer.createAnswer())
        return str(peer.localDescription.sdp)

    async def _listen(self, track: MediaStreamTrack) -> None:
        resampler = AudioResampler(format="s16", layout="mono", rate=HEARD_HZ)
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            assert isinstance(frame, AudioFrame)
            for resampled in resampler.resample(frame):
                self._conversation.heard_samples += len(resampled.to_ndarray()[0])


class AgentTrack(MediaStreamTrack):
    """Speech or silence, 24 kHz mono, paced like aiortc's own AudioStreamTrack."""

    kind = "audio"

    def __init__(self, conversation: Conversation, call: int) -> None:
        super().__init__()
        self._conversation = conversation
        self._call = call
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
        if self._conversation.talking(self._call):
            frame.planes[0].update(self._conversation.speech.frame(self._index).tobytes())
        else:
            frame.planes[0].update(bytes(2 * AGENT_FRAME))
        frame.sample_rate = AGENT_HZ
        frame.pts = self._index * AGENT_FRAME
        frame.time_base = Fraction(1, AGENT_HZ)
        return frame
