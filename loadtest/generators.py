"""The processes that callers run in, as the run sees them: started, told, listened to, and ended whatever happens.

A generator is one process with one ticker. What it may cost a core is estimated before the run, by what callers of each
transport cost, so that none has more than it can serve in time. A generator that dies makes the run void; it is never
started again in the middle, for its callers are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from loadtest.call import Transport
from loadtest.generator_messages import (
    MAX_LINE_BYTES,
    Broken,
    Done,
    FromGenerator,
    Go,
    Job,
    Ready,
    Stop,
    ToGenerator,
    decode_word,
    encode_line,
)

CALLER_SHARE: dict[Transport, float] = {
    Transport.WEBSOCKET: 0.003,
    Transport.TWILIO: 0.003,
    Transport.AUDIOSOCKET: 0.005,
    Transport.SIP: 0.006,
    Transport.WEBRTC: 0.014,
}
"""Of a core, per caller who is up: what is counted on before a run."""

FULL_SHARE = 0.5
"""Of a core, that a generator is planned to take: it has to be on time, not busy."""

BUSY_SHARE = 0.7
"""Beyond this in the run, its times are doubtful and the report says so."""

MAX_PROCESSES = 64

ENVIRONMENT = {"NUMPY_MADVISE_HUGEPAGE": "0"}
"""Recordings are mostly silence, which takes no memory by pages of 4 KiB, and all of it by those of 2 MiB."""

COMMAND = (sys.executable, "-m", "loadtest.generator")

_LAST_WORDS = 20
_TERM_S = 2.0


def processes_for(
    transports: Sequence[Transport], calls: int, *, impaired: bool = False, cores: int | None = None
) -> int:
    """How many generators ``calls`` at once need; the calls take the transports in turn. ``impaired`` callers send
    through a relay of their own, which costs about as much again. Never more than ``cores`` (default: this machine's):
    more would only be in each other's way."""
    share = sum(CALLER_SHARE[transport] for transport in transports) / len(transports) * (2 if impaired else 1)
    most = min(MAX_PROCESSES, cores if cores is not None else os.cpu_count() or 1)
    return max(1, min(math.ceil(calls * share / FULL_SHARE), most, calls))


class GeneratorsError(Exception):
    """The generators can't do what they are for; the message says why."""


class _Process:
    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.ready = False
        self.done = False
        self.problem: str | None = None
        self.said: deque[str] = deque(maxlen=_LAST_WORDS)
        """The last lines of its standard error."""

    def tell(self, message: ToGenerator) -> None:
        """Of a process that is gone it does nothing: its end is noticed elsewhere."""
        stdin = self.process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(encode_line(message))


class Generators:
    """Made by :func:`open_generators`."""

    def __init__(self, processes: Sequence[_Process]) -> None:
        self._processes = processes

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def problems(self) -> dict[int, str]:
        """Of those that broke or died, by number."""
        return {each.number: each.problem for each in self._processes if each.problem is not None}

    @property
    def ready(self) -> bool:
        """All callers could call."""
        return all(each.ready for each in self._processes)

    def check(self) -> None:
        """Raises :class:`GeneratorsError` if one can't go on."""
        if self.problems:
            raise GeneratorsError(next(iter(self.problems.values())))

    def go(self, start_s: float) -> None:
        """``start_s`` (:func:`time.monotonic`) is the moment 0 of the run."""
        for each in self._processes:
            each.tell(Go(start_s))

    def stop(self, *, at_once: bool = False) -> None:
        """No more calls; hang up."""
        for each in self._processes:
            each.tell(Stop(at_once))

    @property
    def over(self) -> bool:
        """All have said their last, or are gone."""
        return all(each.done or each.problem is not None for each in self._processes)


@contextlib.asynccontextmanager
async def open_generators(
    jobs: Sequence[Job],
    on_word: Callable[[int, FromGenerator], None],
    on_change: Callable[[], None],
    *,
    command: Sequence[str] = COMMAND,
) -> AsyncIterator[Generators]:
    """One process (``command``) a job; ``on_word`` is told what each says, with its number, and ``on_change`` is called
    when one is ready, done or gone. None is left when the block is left, whatever its reason."""
    processes: list[_Process] = []
    listening: list[asyncio.Task[None]] = []
    try:
        for number, job in enumerate(jobs):
            process = _Process(number, await _spawn(command))
            processes.append(process)
            listening.append(asyncio.create_task(_listen(process, on_word, on_change), name=f"generator {number}"))
            listening.append(asyncio.create_task(_overhear(process), name=f"generator {number}, errors"))
            process.tell(job)
        yield Generators(processes)
    finally:
        await _end(processes)
        await asyncio.gather(*listening)  # they end with the processes' output


async def _spawn(command: Sequence[str]) -> asyncio.subprocess.Process:
    """In a process group of its own: Ctrl-C is the run's to handle. It ends when its standard input does."""
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=MAX_LINE_BYTES,
        start_new_session=True,
        env=os.environ | ENVIRONMENT,
    )


async def _listen(
    process: _Process, on_word: Callable[[int, FromGenerator], None], on_change: Callable[[], None]
) -> None:
    stdout = process.process.stdout
    assert stdout is not None
    try:
        while line := await stdout.readline():
            word = decode_word(line)
            match word:
                case Broken(problem):
                    process.problem = process.problem or problem
                case Done():
                    process.done = True
                case Ready():
                    process.ready = True
                case _:
                    pass
            on_word(process.number, word)
            if isinstance(word, Ready | Broken | Done):
                on_change()
    except (ValueError, msgspec.MsgspecError) as error:
        process.problem = f"generator {process.number} said what nobody understands: {error}"
        with contextlib.suppress(ProcessLookupError):
            process.process.kill()
    if not process.done and process.problem is None:
        code = await process.process.wait()
        told = f": {process.said[-1]}" if process.said else ""
        process.problem = f"generator {process.number} died ({_why(code)}){told}"
    on_change()


async def _overhear(process: _Process) -> None:
    stderr = process.process.stderr
    assert stderr is not None
    while True:
        try:
            line = await stderr.readline()
        except ValueError:  # longer than any line should be
            continue
        if not line:
            return
        process.said.append(line.decode(errors="replace").rstrip()[:500])


async def _end(processes: Sequence[_Process]) -> None:
    for each in processes:
        if each.process.stdin is not None:
            each.process.stdin.close()
    await asyncio.gather(*(_wait(each.process) for each in processes))


async def _wait(process: asyncio.subprocess.Process) -> None:
    for end in (None, process.terminate, process.kill):
        with contextlib.suppress(ProcessLookupError):
            if end is not None:
                end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TERM_S):
                await process.wait()
                return


def _why(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
