"""The two servers that are compared: how each is started, and what its process uses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from scripts.bench_media.wire import ROOT

START_S = 90.0
STREAM = "/v1/carriers/twilio/stream"


@dataclass(frozen=True, slots=True)
class Delays:
    """Of the scripted engines of both, in ms."""

    stt_ms: float = 100
    llm_first_token_ms: float = 150
    llm_token_ms: float = 10
    tts_ms: float = 100


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process and its threads, so far."""

    at_s: float
    cpu_s: float
    resident_bytes: int

    def share_since(self, before: Usage) -> float:
        """Of one core."""
        return (self.cpu_s - before.cpu_s) / (self.at_s - before.at_s)


@dataclass(frozen=True, slots=True)
class Subject:
    """A server that can be started: a command that listens on a port, and what it needs in its environment."""

    name: str
    command: Callable[[int], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)


def ours(delays: Delays, max_calls: int) -> Subject:
    """``offhook serve`` with null engines and Silero. Admission by load is off: pipecat has none, and both shall hold
    the same calls."""
    settings = {
        "OFFHOOK_TWILIO__ENABLED": "true",
        "OFFHOOK_TWILIO__ALLOW_UNSIGNED": "true",
        "OFFHOOK_MAX_CALLS": str(max_calls),
        "OFFHOOK_ADMISSION__BY_LOAD": "false",
        "OFFHOOK_LOG_LEVEL": "error",
        "OFFHOOK_NULL__STT_MS": str(delays.stt_ms),
        "OFFHOOK_NULL__LLM_FIRST_TOKEN_MS": str(delays.llm_first_token_ms),
        "OFFHOOK_NULL__LLM_TOKEN_MS": str(delays.llm_token_ms),
        "OFFHOOK_NULL__TTS_MS": str(delays.tts_ms),
        "OFFHOOK_ENGINES__VAD": "silero",
    }
    offhook = os.path.join(os.path.dirname(sys.executable), "offhook")
    return Subject("offhook", lambda port: [offhook, "serve", "--preset", "null", "--port", str(port)], settings)


def pipecat(python: str, delays: Delays, heard_hz: int) -> Subject:
    """``heard_hz``: of its caller audio. 16000 is its default, and what our engines hear; 8000 is for its phones."""
    told = f"{delays.stt_ms},{delays.llm_first_token_ms},{delays.llm_token_ms},{delays.tts_ms}"
    module = "scripts.bench_pipecat.pipecat_server"
    return Subject(
        "pipecat", lambda port: [python, "-m", module, str(port), told, str(heard_hz)], {"LOGURU_LEVEL": "ERROR"}
    )


class Server:
    """A running one."""

    def __init__(self, process: psutil.Process, port: int) -> None:
        self._process = process
        self.url = f"twilio+ws://127.0.0.1:{port}{STREAM}"

    def usage(self) -> Usage:
        with self._process.oneshot():
            times, memory = self._process.cpu_times(), self._process.memory_info()
        return Usage(time.monotonic(), times.user + times.system, memory.rss)


@contextlib.asynccontextmanager
async def started(subject: Subject, core: int | None) -> AsyncIterator[Server]:
    """Raises :class:`TimeoutError` if it does not listen in time, :class:`RuntimeError` if it ends."""
    port = _free_port()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OFFHOOK_")}
    process = await asyncio.create_subprocess_exec(
        *subject.command(port), cwd=ROOT, env=environment | dict(subject.environment), stdout=asyncio.subprocess.DEVNULL
    )
    try:
        watched = psutil.Process(process.pid)
        if core is not None:
            watched.cpu_affinity([core])
        async with asyncio.timeout(START_S):
            while not await _listens(port):
                if process.returncode is not None:
                    raise RuntimeError(f"{subject.name} ended with {process.returncode} before it listened")
                await asyncio.sleep(0.2)
        yield Server(watched, port)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 20)
            except TimeoutError:
                process.kill()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
