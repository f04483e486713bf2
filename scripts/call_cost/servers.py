"""The servers that are measured: how one is started, and what its process uses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from engines import fetch
from scripts.call_cost.machine import busy_s

ROOT = Path(__file__).parents[2]
START_S = 90.0
STOP_S = 20.0
PORT = "{port}"
"""In what a subject is made of it stands for the port that was free."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A server that can be started: ``command`` listens on :data:`PORT` (TCP), and takes calls at ``url``. ``asked``
    says in words what it has to do, where one server is asked several things. ``scenario``: what its callers do."""

    name: str
    asked: str
    command: Sequence[str]
    url: str
    scenario: str
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.name} {self.asked}"


def gateway(settings: Mapping[str, str], *, module: str = "gateway.cli") -> tuple[Sequence[str], Mapping[str, str]]:
    """Command and environment of this gateway with scripted engines, which ``module`` puts together. Admission by load
    is off: whoever is measured holds all calls that it is given."""
    common = {"MAX_CALLS": "2000", "ADMISSION__BY_LOAD": "false", "LOG_LEVEL": "error"}
    environment = {f"OFFHOOK_{name}": value for name, value in (common | dict(settings)).items()}
    return (sys.executable, "-m", module, "serve", "--preset", "null", "--port", PORT), environment


def fetch_silero() -> None:
    """Before a gateway is started that listens with it: it takes calls only when all its weights are there."""
    with fetch.console_progress() as progress:
        fetch.ensure("silero-vad", progress)


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process and its threads, so far; ``core_busy_s`` of its core, whoever had it."""

    at_s: float
    cpu_s: float
    resident_bytes: int
    core_busy_s: float | None

    def share_since(self, before: Usage) -> float:
        """Of one core."""
        return (self.cpu_s - before.cpu_s) / (self.at_s - before.at_s)

    def others_since(self, before: Usage) -> float | None:
        """The share of the core that others have had."""
        if self.core_busy_s is None or before.core_busy_s is None:
            return None
        return max(0.0, (self.core_busy_s - before.core_busy_s) / (self.at_s - before.at_s) - self.share_since(before))


class Server:
    """A running one."""

    def __init__(self, process: psutil.Process, url: str, core: int | None) -> None:
        self.url = url
        self._process = process
        self._core = core

    def usage(self) -> Usage:
        with self._process.oneshot():
            times, memory = self._process.cpu_times(), self._process.memory_info()
        return Usage(time.monotonic(), times.user + times.system, memory.rss, busy_s(self._core))


@contextlib.asynccontextmanager
async def started(subject: Subject, core: int | None) -> AsyncIterator[Server]:
    """Raises :class:`TimeoutError` if it does not listen in time, :class:`RuntimeError` if it ends."""
    port = _free_port()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OFFHOOK_")}
    environment |= {key: value.replace(PORT, str(port)) for key, value in subject.environment.items()}
    process = await asyncio.create_subprocess_exec(
        *(word.replace(PORT, str(port)) for word in subject.command),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        watched = psutil.Process(process.pid)
        if core is not None:
            watched.cpu_affinity([core])
        async with asyncio.timeout(START_S):
            while not await _listens(port):
                if process.returncode is not None:
                    raise RuntimeError(f"{subject.title} ended with {process.returncode} before it listened")
                await asyncio.sleep(0.2)
        yield Server(watched, subject.url.replace(PORT, str(port)), core)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
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
