"""A call with scripted engines and a leg that writes down all it gets, for virtual time: exact to the millisecond."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from engines.api import EngineSet, Pcm16, VadStream
from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from engines.turn.scripted import ScriptedTurn
from engines.vad.scripted import EnergyVad
from gateway.call import Call
from gateway.phrases import Phrases
from gateway.records.call_record import CallRecord
from gateway.telemetry.metrics import Metrics
from streaming.config import BargeIn, SessionConfig, TurnDetection, TurnMode
from streaming.effects import Control
from streaming.jobs import Synthesis, SynthesisChunk, Synthesize
from streaming.notices import Notice, Response, ResponseDone

RATE_HZ = 16_000
FRAME_MS = 32
STAMP = 1_000

PLAIN = SessionConfig(voice="tone", turn=TurnDetection(silence_duration_ms=300, speculate=False))
AGENT = SessionConfig(
    voice="tone",
    greeting="Hello there.",
    apology="Sorry about that.",
    turn=TurnDetection(mode=TurnMode.SEMANTIC, silence_duration_ms=300, barge_in=BargeIn.HOLD, speculate=False),
)
QUIET_AGENT = SessionConfig(voice="tone", turn=AGENT.turn)
MANUAL = SessionConfig(voice="tone", turn=TurnDetection(mode=TurnMode.MANUAL, speculate=False))


def voice(ms: float) -> Pcm16:
    """Sound the fake detector takes for speech."""
    return np.tile(np.array([6000, -6000], np.int16), round(ms * RATE_HZ / 2000))


def hush(ms: float) -> Pcm16:
    return np.zeros(round(ms * RATE_HZ / 1000), np.int16)


class StampTts(ScriptedTts):
    """Says its epoch: every sample of epoch ``n`` is ``STAMP + n``. Ten times as fast as it is heard, and in breach of
    the contract it goes on for ``deaf_ms`` after a cancel."""

    def __init__(
        self, word_ms: int = 250, *, deaf_ms: float = 500.0, chunk_ms: int = 200, delay_s: float = 0.0
    ) -> None:
        super().__init__(word_ms)
        self.word_ms = word_ms
        self.deaf_s = deaf_ms / 1000
        self.chunk_ms = chunk_ms
        self.delay_s = delay_s
        self.cancelled_at: dict[int, float] = {}
        self.delivered_late = 0

    def cancel(self, call: str, epoch: int) -> None:
        self.cancelled.append((call, epoch))
        self.cancelled_at.setdefault(epoch, asyncio.get_running_loop().time())

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        self.requests.append(request)
        chunks = max(1, len(request.text.split()) * self.word_ms // self.chunk_ms)
        pcm = np.full(24 * self.chunk_ms, STAMP + request.epoch, "<i2").tobytes()
        loop = asyncio.get_running_loop()

        def hand_over(number: int) -> None:
            cancelled_at = self.cancelled_at.get(request.epoch)
            if cancelled_at is not None:
                if loop.time() > cancelled_at + self.deaf_s:
                    return
                self.delivered_late += 1
            deliver(SynthesisChunk(request.epoch, request.segment, pcm, 24_000, last=number == chunks - 1))

        for number in range(chunks):
            loop.call_later(self.delay_s + number * self.chunk_ms / 10_000, hand_over, number)


class CountingVad(EnergyVad):
    """Knows how many streams are open."""

    def __init__(self) -> None:
        self.open_streams = 0

    def open(self, deliver: Callable[[float, int], None]) -> Any:
        self.open_streams += 1
        return _Counted(super().open(deliver), self)


class _Counted:
    def __init__(self, stream: VadStream, vad: CountingVad) -> None:
        self._stream = stream
        self._vad = vad
        self._open = True

    @property
    def backlog_samples(self) -> int:
        return self._stream.backlog_samples

    def feed(self, pcm: Pcm16) -> None:
        self._stream.feed(pcm)

    def close(self) -> None:
        self._vad.open_streams -= self._open
        self._open = False
        self._stream.close()


@dataclass
class Frame:
    at: float
    response_id: str
    pcm: Pcm16

    @property
    def epoch(self) -> int:
        """As stamped into the first of its samples by :class:`StampTts`."""
        return int(self.pcm[0]) - STAMP


class RecordingLeg:
    """``log`` holds notices, frames and clears in the order in which they came."""

    lead_ms = 300

    def __init__(self) -> None:
        self.congested = False
        self.log: list[Notice | Frame | str] = []
        self.on_notice: Callable[[Notice], None] | None = None
        self.controls: list[Control] = []
        self.play_fails = 0
        self.notify_fails: type[Notice] | None = None

    def notify(self, notice: Notice) -> None:
        if self.notify_fails is not None and isinstance(notice, self.notify_fails):
            raise ZeroDivisionError("a leg that breaks down")
        self.log.append(notice)
        if self.on_notice is not None:
            self.on_notice(notice)

    def play(self, response_id: str, item_id: str, pcm: Pcm16) -> None:
        if self.play_fails:
            self.play_fails -= 1
            raise ZeroDivisionError("a frame that cannot be sent")
        self.log.append(Frame(asyncio.get_running_loop().time(), response_id, pcm))

    def clear(self) -> bool:
        self.log.append("clear")
        return False

    def control(self, effect: Control) -> None:
        self.controls.append(effect)

    @property
    def frames(self) -> list[Frame]:
        return [entry for entry in self.log if isinstance(entry, Frame)]

    @property
    def notices(self) -> list[Notice]:
        return [entry for entry in self.log if not isinstance(entry, Frame | str)]

    @property
    def kinds(self) -> list[str]:
        return [type(notice).__name__ for notice in self.notices]

    @property
    def done(self) -> list[Response]:
        return [notice.response for notice in self.notices if isinstance(notice, ResponseDone)]

    def samples(self, response_id: str | None = None) -> int:
        frames = [frame for frame in self.frames if response_id in (None, frame.response_id)]
        return sum(len(frame.pcm) for frame in frames)


@dataclass
class Engines:
    """One set, shared by the calls of a test."""

    vad: Any = field(default_factory=CountingVad)
    turn: Any = field(default_factory=ScriptedTurn)
    stt: Any = field(default_factory=ScriptedStt)
    llm: Any = field(default_factory=ScriptedLlm)
    tts: Any = field(default_factory=ScriptedTts)

    @property
    def set(self) -> EngineSet:
        return EngineSet(self.vad, self.turn, self.stt, self.llm, self.tts)


_numbers = itertools.count(1)


class CallRig:
    """To be made inside a running (virtual) loop."""

    def __init__(
        self,
        config: SessionConfig = PLAIN,
        engines: Engines | None = None,
        *,
        phrases: Phrases | None = None,
        strict: bool = True,
    ) -> None:
        self.engines = engines or Engines()
        self.leg = RecordingLeg()
        self.metrics = Metrics()
        self.record = CallRecord(
            id=f"call_{next(_numbers)}", transport="test", agent=None, started_at=datetime(2026, 1, 1, tzinfo=UTC)
        )
        ids = itertools.count(1)
        self.loop = asyncio.get_running_loop()
        self.call = Call(
            record=self.record,
            config=config,
            engines=self.engines.set,
            leg=self.leg,
            phrases=phrases or Phrases(),
            metrics=self.metrics,
            farewell="Goodbye now.",
            new_id=lambda kind: f"{kind}_{next(ids)}",
            strict=strict,
        )

    def counted(self, name: str) -> int:
        value = self.metrics._registry.get_sample_value("offhook_events_total", {"name": name})
        return int(value or 0)

    async def hear(self, pcm: Pcm16) -> None:
        """Caller audio in real time."""
        size = RATE_HZ * FRAME_MS // 1000
        for at in range(0, len(pcm), size):
            await asyncio.sleep(len(pcm[at : at + size]) / RATE_HZ)
            await self.call.hear(pcm[at : at + size])

    async def say(self, ms: float = 800, wait_ms: float = 1_000) -> None:
        """Speech, then the silence in which the turn ends."""
        await self.hear(voice(ms))
        await self.hear(hush(wait_ms))

    async def until(self, holds: Callable[[], Any], within_s: float = 60.0) -> None:
        """Silence from the caller until something is so."""
        end = self.loop.time() + within_s
        while not holds():
            assert self.loop.time() < end, "it never came"
            await self.hear(hush(FRAME_MS))

    async def end(self, cause: str = "caller_hung_up") -> None:
        self.call.hang_up(cause)
        await asyncio.sleep(0)
