"""``python -m loadtest.generator``: one process of callers, told by its standard input and telling by its output.

One event loop, one ticker, a thread that makes callers, and beside it a process that measures calls
(:mod:`loadtest.measuring`). It ends when its input does, so it outlives no run.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from loadtest.generator_calls import GeneratorCalls
from loadtest.generator_messages import (
    MAX_LINE_BYTES,
    Broken,
    FromGenerator,
    Go,
    Job,
    Stop,
    decode_order,
    encode_line,
)

SWITCH_S = 0.000_5
"""How long a thread may keep the ticker waiting for the interpreter."""

MAX_UNREAD_BYTES = 4 * 1024 * 1024
"""Beyond this in our output, what can be left out is."""


def main() -> None:
    """Exit code 0 also where the job can't be done: then the last word says why."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run is told, and tells
    sys.setswitchinterval(SWITCH_S)
    told = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anything prints is no word of ours
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(told))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(told: int) -> None:
    orders = await _reader()
    words = await _Words.open(told)
    try:
        await _obey(orders, words)
    except _RunGone:
        words.break_off()
    except Exception as error:  # noqa: BLE001 (whatever it is, the run hears of it)
        words.say(Broken(f"{type(error).__name__}: {error}"))
    await words.close()


async def _obey(orders: asyncio.StreamReader, words: _Words) -> None:
    job = await _order(orders)
    if not isinstance(job, Job):
        raise TypeError("the first order is a job")
    if job.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job.cores)
    with contextlib.ExitStack() as stack:
        stack.callback(_leave_nothing, job.recordings, os.getppid())
        making, measuring = (stack.enter_context(ThreadPoolExecutor(1, name)) for name in ("making", "measuring"))
        calls = GeneratorCalls(job, making=making, measuring=measuring)
        stack.callback(calls.close)
        words.say(await calls.prepare())
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not stop the ticker to look through it
        go = await _order(orders)
        if not isinstance(go, Go):
            return
        running = asyncio.create_task(calls.run(go.start_s, words.say), name="calls")
        steering = asyncio.create_task(_steer(orders, calls), name="orders")
        telling = asyncio.create_task(_tell(calls, words, go.start_s), name="counters")
        try:
            done, _ = await asyncio.wait({running, steering}, return_when=asyncio.FIRST_COMPLETED)
            if steering in done:
                steering.result()
            await running
        finally:
            for task in (running, steering, telling):
                task.cancel()
            await asyncio.gather(running, steering, telling, return_exceptions=True)
        words.say(await calls.done())


def _leave_nothing(recordings: str, run: int) -> None:
    """A run that was killed can't throw the audio away any more."""
    if os.getppid() != run:
        shutil.rmtree(recordings, ignore_errors=True)


async def _steer(orders: asyncio.StreamReader, calls: GeneratorCalls) -> None:
    """Until the run is gone: then this raises, and all ends."""
    while True:
        order = await _order(orders)
        if isinstance(order, Stop):
            calls.stop(at_once=order.at_once)


async def _tell(calls: GeneratorCalls, words: _Words, start_s: float) -> None:
    """Counters, once a second of the run."""
    cpu_s, at_s = time.process_time(), time.monotonic()
    number = 0
    while True:
        number = max(number + 1, int(time.monotonic() - start_s) + 1)
        await asyncio.sleep(start_s + number - time.monotonic())
        now_s, used_s = time.monotonic(), time.process_time()
        share = (used_s - cpu_s) / max(now_s - at_s, 1e-3)
        cpu_s, at_s = used_s, now_s
        words.say_if_read(calls.counted(now_s - start_s, share, _rss_bytes()))


class _RunGone(Exception):  # noqa: N818 (nothing failed)
    """Nobody listens any more."""


async def _order(orders: asyncio.StreamReader) -> Job | Go | Stop:
    line = await orders.readline()
    if not line:
        raise _RunGone
    return decode_order(line)


async def _reader() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


class _Words:
    """Our output: a pipe that is never waited for."""

    def __init__(self, transport: asyncio.WriteTransport, protocol: _Pipe) -> None:
        self._transport = transport
        self._protocol = protocol

    @classmethod
    async def open(cls, told: int) -> _Words:
        pipe = os.fdopen(told, "wb", buffering=0)
        transport, protocol = await asyncio.get_running_loop().connect_write_pipe(_Pipe, pipe)
        return cls(transport, protocol)

    def say(self, word: FromGenerator) -> None:
        if not self._transport.is_closing():
            self._transport.write(encode_line(word))

    def say_if_read(self, word: FromGenerator) -> None:
        """As :meth:`say`, but not to a run that does not keep up."""
        if self._transport.get_write_buffer_size() < MAX_UNREAD_BYTES:
            self.say(word)

    def break_off(self) -> None:
        """Nobody reads any more."""
        self._transport.abort()

    async def close(self) -> None:
        """Once all is written."""
        self._transport.close()
        await self._protocol.lost.wait()


class _Pipe(asyncio.BaseProtocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()


def _rss_bytes() -> int | None:
    """Now on Linux, the most so far on other systems."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
