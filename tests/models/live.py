"""A gateway with real engines for tests to call, and a caller who speaks the Realtime wire by hand."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import functools
import json
import re
import threading
import time
import unittest.mock
import urllib.request
import wave
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from engines.api import EngineSet, LanguageModel, Pcm16
from engines.opening import open_preset
from engines.tts.piper_voice import VoiceConfig
from gateway.settings import AgentSettings, Settings
from loadtest.command import CallOptions, Say, place_call
from loadtest.hearing import Hearing, open_hearing
from loadtest.report import CallReport
from streaming.audio import g711
from streaming.audio.resample import Resampler
from streaming.jobs import INPUT_RATE_HZ, Generate, Generation
from tests.serving import served_beside

START_S = 240.0
"""The first run on a machine fetches and converts the weights."""
ANSWER_S = 45.0
FRAME_S = 0.02
HEALTHY = (
    "defect",
    "engine_raised",
    "engine_failed",
    "engine_timeout",
    "input_dropped",
    "caller_audio_dropped",
    "transcription_failed",
)
"""What must not have been counted once, whatever callers did."""

OTHERS_THREADS = {"tqdm_monitor"}
"""Started by the progress bars of the caller's ears, for good."""


class RecordingLlm:
    """Passes everything on to ``llm``, and keeps every request."""

    def __init__(self, llm: LanguageModel) -> None:
        self._llm = llm
        self.requests: list[Generate] = []

    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        self.requests.append(request)
        self._llm.generate(request, deliver)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)


@dataclasses.dataclass(frozen=True)
class LiveGateway:
    http: str
    url: str
    engines: EngineSet
    sip_port: int = 0
    """UDP; 0: it takes no calls over SIP."""

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.http + path, timeout=10) as answer:
            return str(answer.read().decode())

    def ended_call(self, call_id: str | None) -> dict[str, Any]:
        """The record of a call whose caller has hung up. Blocks until the gateway knows, too."""
        for _ in range(100):
            record: dict[str, Any] = json.loads(self.get(f"/v1/calls/{call_id}"))
            if record["state"] == "ended":
                return record
            time.sleep(0.05)
        raise AssertionError(f"the call goes on: {record}")

    def phone_call(self, wire_id: str | None) -> dict[str, Any]:
        """The record of a phone call that its caller knows by the wire's id, and has hung up."""
        (row,) = [row for row in json.loads(self.get("/v1/calls"))["data"] if row["wire_id"] == wire_id]
        return self.ended_call(row["id"])

    def prompts(self, call_id: str | None) -> list[Generate]:
        assert isinstance(self.engines.llm, RecordingLlm)
        return [request for request in self.engines.llm.requests if request.call == call_id]

    def counted(self, name: str) -> float:
        """How often sessions counted an event of this name."""
        found = re.search(rf'^offhook_events_total\{{name="{name}"\}} (\S+)$', self.get("/metrics"), re.MULTILINE)
        return float(found[1]) if found else 0.0


@contextlib.contextmanager
def steady_voice() -> Iterator[None]:
    """Piper voices loaded meanwhile say the same words with the same samples each time. As they are, they draw noise
    for how long and how each sound is made: no two runs would be alike, and which of them fail an ear would be chance.
    (With their noise they are listened to in test_piper.py.)"""
    read = VoiceConfig.read

    def without_noise(path: Path) -> VoiceConfig:
        return dataclasses.replace(read(path), noise=0.0, duration_noise=0.0)

    with unittest.mock.patch.object(VoiceConfig, "read", without_noise):
        yield


@contextlib.contextmanager
def live_gateway(
    preset: str, agents: Mapping[str, AgentSettings] | None = None, **tables: Any
) -> Iterator[LiveGateway]:
    """Serve a preset from a loop in a thread of its own. Fails at the end if anything broke inside, or was left."""
    threads = set(threading.enumerate())
    settings = Settings(preset=preset, agents=dict(agents or {}), max_calls=32, **tables)

    @contextlib.asynccontextmanager
    async def spied() -> AsyncIterator[EngineSet]:
        async with open_preset(preset) as engines:
            yield dataclasses.replace(engines, llm=RecordingLlm(engines.llm))

    with contextlib.ExitStack() as stack:
        with steady_voice():
            here = stack.enter_context(served_beside(spied, settings, start_s=START_S))
        sip = here.gateway.wires.sip
        gateway = LiveGateway(here.url, here.ws, here.gateway.engines, sip.ports["udp"] if sip is not None else 0)
        yield gateway
        assert {name: count for name in HEALTHY if (count := gateway.counted(name))} == {}
    left = {left.name for left in set(threading.enumerate()) - threads} - OTHERS_THREADS
    assert left == set(), "the engines left threads"


def hearing_model() -> Path:
    """The weights of the caller's own ears."""
    from engines.fetch import ensure

    return ensure("whisper-tiny.en")


@functools.cache
def ears() -> Hearing:
    """The caller's own speech-to-text, as :func:`ring` uses it. Blocks."""
    hearing = open_hearing(hearing_model())
    assert hearing is not None
    return hearing


async def ring(gateway: LiveGateway, *said: str, **options: Any) -> CallReport:
    """One call of the simulated caller, who also listens to what it heard."""
    lines = tuple(Say(text) for text in said)
    return await place_call(CallOptions(gateway.url, lines, hearing_model=hearing_model, **options))


def read_stereo(path: Path) -> tuple[Pcm16, Pcm16, int]:
    """Left, right and rate of a recording."""
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (2, 2)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.int16)
        return samples[0::2], samples[1::2], file.getframerate()


_FIGURES = dict(
    zip(
        "0 1 2 3 4 5 6 7 8 9 10 11 12".split(),
        ("zero one two three four five six seven eight nine ten eleven twelve".split()),
        strict=True,
    )
)


def words(text: str | None) -> list[str]:
    """Lower-case words; small figures as words, as an ear may write either."""
    found = re.findall(r"[a-z0-9']+", (text or "").lower().replace("’", "'").replace("-", " "))
    return [_FIGURES.get(word, word) for word in found]


@dataclasses.dataclass(frozen=True)
class Wire:
    """An audio format of the Realtime protocol."""

    name: str
    rate_hz: int
    encode: Callable[[Pcm16], bytes]
    decode: Callable[[bytes], Pcm16]

    @property
    def format(self) -> dict[str, object]:
        return {"type": self.name} | ({"rate": self.rate_hz} if self.name == "audio/pcm" else {})


PCM = Wire("audio/pcm", 24_000, lambda pcm: pcm.astype("<i2").tobytes(), lambda data: np.frombuffer(data, "<i2"))
PCMU = Wire("audio/pcmu", 8_000, g711.encode_mulaw, g711.decode_mulaw)


class Caller:
    """A microphone that never stops, and every event that came back, in order."""

    def __init__(self, connection: ClientConnection, wire: Wire) -> None:
        self._connection = connection
        self._wire = wire
        self._line: Pcm16 = np.zeros(0, np.int16)
        self._spoken = asyncio.Event()
        self._news = asyncio.Condition()
        self.events: list[dict[str, Any]] = []
        self.closed = False

    @property
    def call_id(self) -> str:
        return str(self.events[0]["session"]["id"])

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def agent_audio(self, response_id: str | None = None) -> Pcm16:
        """All audio that came, in the wire's rate."""
        parts = [
            self._wire.decode(base64.b64decode(event["delta"]))
            for event in self.of("response.output_audio.delta")
            if response_id in (None, event["response_id"])
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)

    def heard_texts(self) -> list[str]:
        return [e["transcript"] for e in self.of("conversation.item.input_audio_transcription.completed")]

    async def send(self, event: dict[str, Any]) -> None:
        await self._connection.send(json.dumps(event))

    async def speak(self, pcm: Pcm16) -> None:
        """Samples at 16 kHz, in real time. Returns once they were all said."""
        resampler = Resampler(INPUT_RATE_HZ, self._wire.rate_hz)
        self._line = np.concatenate((self._line, resampler.process(pcm), resampler.flush()))
        self._spoken.clear()
        await self._spoken.wait()

    async def until(self, kind: str, count: int = 1, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """The ``count``-th event of a kind, when it is there."""
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(lambda: self.closed or len(self.of(kind)) >= count)
        assert len(self.of(kind)) >= count, f"closed without {kind}: {self.types()}"
        return self.of(kind)[count - 1]

    async def listen(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for message in self._connection:
                async with self._news:
                    self.events.append(json.loads(message))
                    self._news.notify_all()
        async with self._news:
            self.closed = True
            self._news.notify_all()

    async def talk(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        size = int(self._wire.rate_hz * FRAME_S)
        while True:
            frame, self._line = self._line[:size], self._line[size:]
            if not len(self._line):
                self._spoken.set()
            frame = np.pad(frame, (0, size - len(frame)))
            audio = base64.b64encode(self._wire.encode(frame)).decode()
            await self.send({"type": "input_audio_buffer.append", "audio": audio})
            due += FRAME_S
            await asyncio.sleep(max(0.0, due - clock()))


@contextlib.asynccontextmanager
async def dial(
    gateway: LiveGateway, *, agent: str | None = None, wire: Wire = PCM, session: dict[str, Any] | None = None
) -> AsyncIterator[Caller]:
    """Call, set the formats (and what else ``session`` says), and keep the microphone open."""
    url = gateway.url + (f"?agent={agent}" if agent else "")
    async with connect(url, compression=None) as connection:
        caller = Caller(connection, wire)
        tasks = [asyncio.create_task(caller.listen())]
        try:
            await caller.until("session.created")
            transcription = {"model": "whisper-1"}
            audio = {
                "input": {"format": wire.format, "transcription": transcription},
                "output": {"format": wire.format},
            }
            update = {"type": "realtime", "audio": audio} | (session or {})
            await caller.send({"type": "session.update", "session": update})
            await caller.until("session.updated")
            tasks.append(asyncio.create_task(caller.talk()))
            yield caller
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
