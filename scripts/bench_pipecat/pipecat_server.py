"""pipecat answering Twilio's stream, as its documentation puts it together: ``pipecat_server PORT DELAYS HEARD_HZ``.

FastAPI's WebSocket transport with the Twilio serializer, Silero in the user aggregator, a turn that ends by silence,
and services made of our own scripted engines: the transcript is the caller's code word, the reply says it back. What
pipecat adds by default for clients and idle calls (RTVI, turn tracking, the idle timer) is off. ``HEARD_HZ`` is the
rate of its pipeline's caller audio, 8000 or 16000; what it says goes out at Twilio's 8 kHz, from engines that speak at
24 kHz.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvicorn
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.services.settings import STTSettings, TTSSettings
from pipecat.services.stt_service import SegmentedSTTService
from pipecat.services.tts_service import TTSService
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.utils.time import time_now_iso8601
from pipecat.workers.runner import WorkerRunner
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted_codes import MURMUR_MS, understood
from engines.tts.scripted import ScriptedTts
from streaming.audio.code_words import find
from streaming.audio.resample import Resampler
from streaming.jobs import (
    INPUT_RATE_HZ,
    Generate,
    Generation,
    Message,
    Priority,
    Synthesis,
    SynthesisChunk,
    Synthesize,
    Token,
)

SPOKEN_HZ = 24_000
OUT_HZ = 8_000
MAX_TOKENS = 400
SILENCE_S = 0.3
STOP_S = 0.2
"""The silence that ends a turn, as for our agents; after so much of it the detector says so."""
STREAM = "/v1/carriers/twilio/stream"
GREETING = "Hello, this is the bakery. How can I help you?"


@dataclass(frozen=True, slots=True)
class Delays:
    """Of the scripted engines, in ms."""

    stt_ms: float
    llm_first_token_ms: float
    llm_token_ms: float
    tts_ms: float


class ScriptedSttService(SegmentedSTTService):
    def __init__(self, delays: Delays) -> None:
        super().__init__(
            ttfs_p99_latency=STOP_S + delays.stt_ms / 1000, settings=STTSettings(model=None, language=None)
        )
        self._delay_s = delays.stt_ms / 1000

    @property
    def wants_wav_segments(self) -> bool:
        return False

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        resampler = Resampler(self.sample_rate, INPUT_RATE_HZ)
        pcm = resampler.process(np.frombuffer(audio, "<i2").astype(np.int16))
        text = understood(find(pcm, INPUT_RATE_HZ), MURMUR_MS)
        await asyncio.sleep(self._delay_s)
        yield TranscriptionFrame(text, "", time_now_iso8601())


class ScriptedLlmService(FrameProcessor):
    """Not an ``LLMService``: that has tools, adapters and summaries, none of which is wanted here."""

    def __init__(self, delays: Delays) -> None:
        super().__init__()
        self._llm = ScriptedLlm(
            first_token_delay_s=delays.llm_first_token_ms / 1000,
            token_delay_s=delays.llm_token_ms / 1000,
            records=False,
        )

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        messages = tuple(Message(each["role"], str(each["content"])) for each in frame.context.get_messages())
        told: asyncio.Queue[Generation] = asyncio.Queue()
        self._llm.generate(Generate("", 0, messages, Priority.DECODE, 0.0, MAX_TOKENS), told.put_nowait)
        await self.push_frame(LLMFullResponseStartFrame())
        while isinstance(token := await told.get(), Token):
            await self.push_frame(LLMTextFrame(token.text))
        await self.push_frame(LLMFullResponseEndFrame())


class ScriptedTtsService(TTSService):
    def __init__(self, delays: Delays) -> None:
        super().__init__(
            push_start_frame=True,
            push_stop_frames=True,
            sample_rate=SPOKEN_HZ,
            settings=TTSSettings(model=None, voice="tone", language=None),
        )
        self._tts = ScriptedTts(first_chunk_delay_s=delays.tts_ms / 1000, records=False)

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        told: asyncio.Queue[Synthesis] = asyncio.Queue()
        self._tts.synthesize(Synthesize("", 0, 0, text, "tone", Priority.FIRST_AUDIO, 0.0), told.put_nowait)
        while isinstance(chunk := await told.get(), SynthesisChunk):
            yield TTSAudioRawFrame(chunk.pcm, chunk.rate_hz, 1, context_id=context_id)
            if chunk.last:
                return


class Server:
    def __init__(self, delays: Delays, heard_hz: int) -> None:
        self._delays = delays
        self._heard_hz = heard_hz

    async def answer(self, websocket: WebSocket) -> None:
        await websocket.accept()
        stream: str | None = None
        while stream is None:
            message: dict[str, Any] = json.loads(await websocket.receive_text())
            if message["event"] == "start":
                stream = message["start"]["streamSid"]
        serializer = TwilioFrameSerializer(stream, params=TwilioFrameSerializer.InputParams(auto_hang_up=False))
        transport = FastAPIWebsocketTransport(
            websocket=websocket,
            params=FastAPIWebsocketParams(audio_in_enabled=True, audio_out_enabled=True, serializer=serializer),
        )
        strategies = UserTurnStrategies(
            stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=SILENCE_S - STOP_S)]
        )
        user, assistant = LLMContextAggregatorPair(
            LLMContext(),
            user_params=LLMUserAggregatorParams(
                vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=STOP_S)), user_turn_strategies=strategies
            ),
        )
        worker = PipelineWorker(
            Pipeline(
                [
                    transport.input(),
                    ScriptedSttService(self._delays),
                    user,
                    ScriptedLlmService(self._delays),
                    ScriptedTtsService(self._delays),
                    transport.output(),
                    assistant,
                ]
            ),
            params=PipelineParams(audio_in_sample_rate=self._heard_hz, audio_out_sample_rate=OUT_HZ),
            enable_rtvi=False,
            enable_turn_tracking=False,
            idle_timeout_secs=None,
        )

        @transport.event_handler("on_client_connected")
        async def connected(*_: object) -> None:
            await worker.queue_frame(TTSSpeakFrame(GREETING))

        @transport.event_handler("on_client_disconnected")
        async def disconnected(*_: object) -> None:
            await worker.cancel()

        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        await runner.run()


def main() -> None:
    port, delays, heard_hz = int(sys.argv[1]), Delays(*map(float, sys.argv[2].split(","))), int(sys.argv[3])
    app = Starlette(routes=[WebSocketRoute(STREAM, Server(delays, heard_hz).answer)])
    uvicorn.run(app, host="127.0.0.1", port=port, loop="uvloop", log_level="error", ws="websockets-sansio")


if __name__ == "__main__":
    main()
