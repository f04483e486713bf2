"""pipecat's SmallWebRTCTransport, as its documentation puts it together, with nothing else in the pipeline.

Between the transport's two ends stands one processor: it takes the caller's audio, as a transcriber would, and sends
speech in pieces of half a second, the size that pipecat's speech services read. What pipecat adds by default for
clients and turns (RTVI, turn tracking, the idle timer) is off: the transport alone is measured.
"""

from __future__ import annotations

import asyncio

from pipecat.frames.frames import Frame, InputAudioRawFrame, OutputAudioRawFrame, StartFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_transport import TransportParams
from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection
from pipecat.transports.smallwebrtc.transport import SmallWebRTCTransport
from pipecat.workers.runner import WorkerRunner

from scripts.bench_media.server import HELLO, Conversation
from scripts.bench_media.talk import AGENT_HZ, FRAME_MS, HEARD_HZ

PIECE_FRAMES = 25
PIECE_S = PIECE_FRAMES * FRAME_MS / 1000


class Call:
    def __init__(self, conversation: Conversation) -> None:
        self._connection = SmallWebRTCConnection()
        transport = SmallWebRTCTransport(
            webrtc_connection=self._connection, params=TransportParams(audio_in_enabled=True, audio_out_enabled=True)
        )
        self._worker = PipelineWorker(
            Pipeline([transport.input(), Agent(conversation), transport.output()]),
            params=PipelineParams(audio_in_sample_rate=HEARD_HZ, audio_out_sample_rate=AGENT_HZ),
            enable_rtvi=False,
            enable_turn_tracking=False,
            idle_timeout_secs=None,
        )
        self._run: asyncio.Task[None] | None = None

    async def answer(self, offer_sdp: str) -> str:
        await self._connection.initialize(sdp=offer_sdp, type="offer")
        for message in HELLO:
            self._connection.send_app_message(message)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self._worker)
        self._run = asyncio.create_task(runner.run())
        return str(self._connection.get_answer()["sdp"])

    async def close(self) -> None:
        await self._worker.cancel()


class Agent(FrameProcessor):
    """Hears the caller and talks by the clock, a piece ahead."""

    def __init__(self, conversation: Conversation) -> None:
        super().__init__()
        self._conversation = conversation
        self._talk: asyncio.Task[None] | None = None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InputAudioRawFrame):
            self._conversation.hear(len(frame.audio) // 2)
            return
        await self.push_frame(frame, direction)
        if isinstance(frame, StartFrame):
            self._talk = asyncio.create_task(self._speak())

    async def _speak(self) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        pieces = 0
        while True:
            if self._conversation.talking:
                pcm = self._conversation.speech.frames(pieces * PIECE_FRAMES, PIECE_FRAMES)
                await self.push_frame(OutputAudioRawFrame(pcm.tobytes(), sample_rate=AGENT_HZ, num_channels=1))
            pieces += 1
            await asyncio.sleep(start_s + pieces * PIECE_S - loop.time())
