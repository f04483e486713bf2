"""What the way through a host costs: ``python -m engines.host.bench``.

The same fake engines in this process and in a host, side by side in one run: each token and each 200 ms of audio says
when it was delivered in the engine's process, and is compared with when the call got it.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from engines.api import Place
from engines.host.hosts import Hosts
from engines.opening import InProcess
from engines.registry import BackendSpec
from streaming.jobs import (
    Generate,
    Generation,
    GenerationDone,
    Priority,
    Synthesis,
    SynthesisChunk,
    Synthesize,
    Token,
    Usage,
)

CALLS = 32
CHUNK_BYTES = 9_600
_TIME = struct.Struct("<d")


class _Ticking:
    """One result a step for every job, all in one tick of the loop, as a decode step of a batch brings them."""

    step_s = 0.02
    steps = 100

    def __init__(self) -> None:
        self._jobs: list[tuple[Any, Callable[[Any], None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None: ...

    async def close(self) -> None:
        if self._task is not None:
            await self._task

    def cancel(self, call: str, epoch: int) -> None: ...

    def begin(self, request: Any, deliver: Callable[[Any], None]) -> None:
        self._jobs.append((request, deliver))
        if len(self._jobs) == CALLS:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        for step in range(self.steps + 1):
            await asyncio.sleep(self.step_s)
            for request, deliver in self._jobs:
                deliver(self.result(request, last=step == self.steps))
        self._jobs.clear()

    def result(self, request: Any, *, last: bool) -> Any:
        raise NotImplementedError


class StampLlm(_Ticking):
    """A FAKE language model."""

    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        self.begin(request, deliver)

    def prioritize(self, call: str, epoch: int) -> None: ...

    def postpone(self, call: str, epoch: int, until: float) -> None: ...

    def forget(self, call: str) -> None: ...

    def result(self, request: Any, *, last: bool) -> Generation:
        if last:
            return GenerationDone(request.epoch, "stop", Usage())
        return Token(request.epoch, repr(time.monotonic()))


class StampTts(_Ticking):
    """A FAKE text-to-speech."""

    step_s = 0.2
    steps = 15
    rate_hz = 24_000
    voices = ("stamp",)

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], None]) -> None:
        self.begin(request, deliver)

    def result(self, request: Any, *, last: bool) -> Synthesis:
        pcm = b"" if last else _TIME.pack(time.monotonic()).ljust(CHUNK_BYTES, b"\0")
        return SynthesisChunk(request.epoch, 0, pcm, self.rate_hz, last=last)


async def _delays_ms(place: Place, kind: Any) -> tuple[list[float], float]:
    """Of every result of every call, and how long the engine took to start."""
    begun = time.monotonic()
    # Named from outside, so that it is one module in either process (here this is ``__main__``).
    factory = "engines.host.bench:StampLlm" if kind == "llm" else "engines.host.bench:StampTts"
    engine: Any = place.engine(BackendSpec(f"stamp-{kind}", kind, factory, host="cpu"), [])
    await engine.start()
    start_s = time.monotonic() - begun
    delays: list[float] = []
    ended = asyncio.Semaphore(0)

    def deliver(result: Any) -> None:
        if isinstance(result, Token):
            delays.append((time.monotonic() - float(result.text)) * 1000)
        elif isinstance(result, SynthesisChunk) and not result.last:
            delays.append((time.monotonic() - _TIME.unpack_from(result.pcm)[0]) * 1000)
        else:
            ended.release()

    for call in range(CALLS):
        if kind == "llm":
            engine.generate(Generate(str(call), 1, (), Priority.DECODE, 0.0), deliver)
        else:
            engine.synthesize(Synthesize(str(call), 1, 0, "", "stamp", Priority.PLAYOUT, 0.0), deliver)
    for _ in range(CALLS):
        await ended.acquire()
    await engine.close()
    await place.close()
    return delays, start_s


async def main() -> None:
    out = sys.stdout
    out.write(f"{CALLS} calls; a token each every 20 ms, then speech in real time; delay from engine to call\n")
    for kind, what in (("llm", "token"), ("tts", "200 ms of audio")):
        for name, place in (("in process", InProcess()), ("through a host", Hosts())):
            delays, start_s = await _delays_ms(place, kind)
            p50, p99 = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
            out.write(f"{what:16} {name:15} p50 {p50:6.3f} ms   p99 {p99:6.3f} ms   started in {start_s:.3f} s\n")


if __name__ == "__main__":
    asyncio.run(main())
