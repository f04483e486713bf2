"""The measuring process and its children talk in lines of JSON, over the children's standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.bench_media.machine import pin

ROOT = Path(__file__).parents[2]

_LINE_BYTES = 1 << 20

Message = dict[str, Any]


class ChildError(RuntimeError):
    """A child ended, did not answer in time, or answered with an error."""


class Child:
    """One process that answers messages."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self._name = name

    @classmethod
    async def start(cls, python: str, module: str, *arguments: str, core: int | None) -> Child:
        """Run ``python -m module arguments``, pinned to ``core`` where the system can."""
        process = await asyncio.create_subprocess_exec(
            python,
            "-m",
            module,
            "-" if core is None else str(core),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "LOGURU_LEVEL": "ERROR"},
            limit=_LINE_BYTES,
        )
        return cls(process, " ".join((module.rpartition(".")[2], *arguments[:1])))

    async def ask(self, do: str, *, timeout_s: float = 30.0, **message: Any) -> Message:
        """Send one message, and wait for its answer. Raises :class:`ChildError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **message}).encode() + b"\n")
            line = await asyncio.wait_for(self._process.stdout.readline(), timeout_s)
        except (ConnectionError, TimeoutError) as error:
            raise ChildError(f"{self._name}: no answer to {do}: {type(error).__name__}") from error
        if not line:
            raise ChildError(f"{self._name}: ended at {do}")
        answer: Message = json.loads(line)
        if "error" in answer:
            raise ChildError(f"{self._name}: {answer['error']}")
        return answer

    async def stop(self) -> None:
        """End the process: kindly, then by force."""
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), 10)
            except TimeoutError:
                self._process.kill()
        await self._process.wait()


def run_child(main: Callable[[Sequence[str]], Awaitable[Callable[[Message], Awaitable[Message]]]]) -> None:
    """A child's whole life: pin itself, make what answers, answer until its standard input ends."""
    core, *arguments = sys.argv[1:]
    if core != "-":
        pin(int(core))
    # What a library prints must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    async def live() -> None:
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        answer = await main(arguments)
        while line := await reader.readline():
            print(json.dumps(await answer(json.loads(line))), file=answers, flush=True)

    runner = asyncio.Runner(loop_factory=_loop_factory())
    runner.run(live())
    # Threads of calls that are still up must not keep the process: its calls are over.
    os._exit(0)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is there, for every server alike: none owes its figure to it."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
