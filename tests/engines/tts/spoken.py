"""What an MLX voice delivers, collected and checked as it comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engines.api import TextToSpeech
from streaming.jobs import Priority, Synthesis, SynthesisChunk, SynthesisFailed, Synthesize, WordEnd


class Spoken:
    """One segment's answers."""

    def __init__(self) -> None:
        self.results: list[Synthesis] = []
        self.on_result: Callable[[Synthesis], None] = lambda result: None
        self._changed = asyncio.Event()

    def deliver(self, result: Synthesis) -> None:
        assert threading.current_thread() is threading.main_thread()
        assert not self.ended, "a result after the end"
        self.results.append(result)
        self._changed.set()
        self.on_result(result)

    @property
    def ended(self) -> bool:
        if not self.results:
            return False
        last = self.results[-1]
        return isinstance(last, SynthesisFailed) or last.last

    @property
    def chunks(self) -> list[SynthesisChunk]:
        assert not isinstance(self.results[-1], SynthesisFailed), self.results[-1]
        return [result for result in self.results if isinstance(result, SynthesisChunk)]

    @property
    def code(self) -> str:
        assert isinstance(self.results[-1], SynthesisFailed), self.results[-1:]
        return self.results[-1].code

    @property
    def pcm(self) -> npt.NDArray[np.int16]:
        return np.frombuffer(b"".join(chunk.pcm for chunk in self.chunks), "<i2")

    @property
    def words(self) -> list[WordEnd]:
        return [word for chunk in self.chunks for word in chunk.words]

    async def end(self) -> Spoken:
        return await self.until(lambda: self.ended)

    async def until(self, condition: Callable[[], bool]) -> Spoken:
        async with asyncio.timeout(30):
            while not condition():
                self._changed.clear()
                await self._changed.wait()
        return self


def say(
    tts: TextToSpeech,
    text: str,
    *,
    call: str = "a",
    epoch: int = 1,
    segment: int = 0,
    voice: str | None = None,
    speed: float = 1.0,
    language: str = "en",
) -> Spoken:
    spoken = Spoken()
    request = Synthesize(call, epoch, segment, text, voice or tts.voices[0], Priority.FIRST_AUDIO, 0.0, speed, language)
    tts.synthesize(request, spoken.deliver)
    assert not spoken.results, "answered from inside synthesize"
    return spoken
