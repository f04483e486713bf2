"""Hosts as tests need them: scripted engines in real processes, and short bounds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from engines.host.hosts import Hosts
from engines.host.process import HostSpec
from engines.host.supervisor import Host
from engines.host.times import HostTimes
from engines.registry import BackendSpec
from streaming.jobs import (
    FinalizeTranscription,
    Generate,
    GenerationDone,
    GenerationFailed,
    Message,
    OpenTranscription,
    Priority,
    Synthesize,
)

TIMES = HostTimes(
    ping_every_s=0.05,
    suspect_pings=80,
    silent_pings=100,
    silent_pings_loading=400,
    troubled_pings=20,
    close_s=20.0,
)
FAKE_HOST = Path(__file__).parent / "fake_host.py"


def spec(kind: Any, host: Any = "cpu", factory: str = "", **options: object) -> BackendSpec:
    scripted = {
        "stt": "engines.stt.scripted:ScriptedStt",
        "llm": "engines.llm.scripted:ScriptedLlm",
        "tts": "engines.tts.scripted:ScriptedTts",
    }
    return BackendSpec(f"hosted-{kind}", kind, factory or scripted[kind], host=host, options=options)


@contextlib.asynccontextmanager
async def hosts(*, times: HostTimes = TIMES, **specs: HostSpec) -> AsyncIterator[Hosts]:
    place = Hosts(specs, times=times)
    try:
        yield place
    finally:
        await place.close()


def the_host(place: Hosts, name: str = "cpu") -> Host:
    host = place.host(name)
    assert host is not None
    return host


def fake(folder: Path, mode: str, name: str = "cpu") -> HostSpec:
    """A host whose "interpreter" is one of :mod:`tests.engines.host.fake_host`."""
    script = folder / f"python-{mode}"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE_HOST}" {mode} "$@"\n', "utf-8")
    script.chmod(0o755)
    return HostSpec(name, python=script)


async def until(holds: Callable[[], Any], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


class Answers:
    """What was delivered, in order."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def __call__(self, result: Any) -> None:
        self.all.append(result)

    @property
    def ended(self) -> bool:
        return any(isinstance(result, GenerationDone | GenerationFailed) for result in self.all)

    @property
    def text(self) -> str:
        return "".join(result.text for result in self.all if hasattr(result, "text"))

    @property
    def codes(self) -> list[str]:
        return [result.code for result in self.all if hasattr(result, "code")]


def generate(epoch: int = 1, *, call: str = "call", text: str = "good morning", **kwargs: Any) -> Generate:
    messages = (Message("user", text),)
    return Generate(call, epoch, messages, kwargs.pop("priority", Priority.DECODE), deadline=0.0, **kwargs)


def synthesize(epoch: int = 1, segment: int = 0, *, text: str = "good morning", call: str = "call") -> Synthesize:
    return Synthesize(call, epoch, segment, text, "tone", Priority.FIRST_AUDIO, deadline=0.0)


def transcription(utterance: int = 1, call: str = "call") -> OpenTranscription:
    return OpenTranscription(call, utterance, 0)


def final(revision: int = 0, utterance: int = 1) -> FinalizeTranscription:
    return FinalizeTranscription(utterance, revision, Priority.FINAL, deadline=0.0)
