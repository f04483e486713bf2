"""Engines for tests, imported by a host from its own process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.api import EngineError
from engines.llm.scripted import ScriptedLlm
from engines.stt.scripted import ScriptedStt
from engines.tts.scripted import ScriptedTts
from streaming.jobs import (
    Generate,
    Generation,
    OpenTranscription,
    Synthesis,
    SynthesisChunk,
    Synthesize,
    Token,
    Transcript,
    WordEnd,
)


def set_up(path: str, level: str) -> None:
    Path(path).write_text(level, "utf-8")


class SlowToLoad(ScriptedLlm):
    async def start(self) -> None:
        await asyncio.sleep(60)


class Moody(ScriptedLlm):
    """Does not start while a file is there."""

    def __init__(self, broken_if: str) -> None:
        super().__init__()
        self._flag = Path(broken_if)

    async def start(self) -> None:
        if self._flag.exists():
            raise EngineError("moody", "not today")


class Stuck(ScriptedLlm):
    """Takes the host's event loop with it, soon after it has loaded."""

    async def start(self) -> None:
        asyncio.get_running_loop().call_later(0.2, time.sleep, 60)


class Raising(ScriptedLlm):
    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        raise ZeroDivisionError("oops")

    def cancel(self, call: str, epoch: int) -> None:
        raise ZeroDivisionError("oops")


class WholeSegments(ScriptedTts):
    """A second of audio in one chunk."""

    def synthesize(self, request: Synthesize, deliver: Callable[[Synthesis], Any]) -> None:
        chunk = SynthesisChunk(
            request.epoch, request.segment, bytes(48_000), 24_000, last=True, words=(WordEnd(4, 500.0),)
        )
        asyncio.get_running_loop().call_soon(deliver, chunk)


class RaisingStt(ScriptedStt):
    """Its streams break at the first final."""

    def open(self, request: OpenTranscription, deliver: Callable[[Transcript], None]) -> Any:
        return _Broken()


class _Broken:
    def feed(self, pcm: object) -> None:
        raise ZeroDivisionError("oops")

    def finalize(self, request: object) -> None:
        raise ZeroDivisionError("oops")

    def close(self) -> None:
        raise ZeroDivisionError("oops")


class Endless(ScriptedLlm):
    """One token of nine megabytes."""

    def generate(self, request: Generate, deliver: Callable[[Generation], None]) -> None:
        asyncio.get_running_loop().call_soon(deliver, Token(request.epoch, "x" * 9_000_000))
