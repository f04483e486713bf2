"""One window of one server: the callers of ``offhook loadtest`` at it, and what its process used meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from scripts.bench_media.machine import Cores
from scripts.bench_pipecat.servers import Server, Subject, started

SETTLE_S = 3.0
LEAST_GOODPUT = 0.99
MOST_LATE = 0.001


@dataclass(frozen=True, slots=True)
class Plan:
    """``calls`` at once, up after ``ramp_s``, for ``window_s``."""

    calls: int
    ramp_s: float
    window_s: float
    scenario: str


@dataclass(frozen=True, slots=True)
class Window:
    """What was read. ``report`` is the load test's own document; shares are of one core."""

    subject: str
    calls: int
    cpu_share: float
    idle_share: float
    resident_bytes: int
    idle_bytes: int
    report: dict[str, Any]

    @property
    def cpu_per_call(self) -> float:
        """What calls cost on top of an idle server, of one core each."""
        return (self.cpu_share - self.idle_share) / self.calls

    @property
    def bytes_per_call(self) -> float:
        return (self.resident_bytes - self.idle_bytes) / self.calls

    @property
    def held(self) -> bool:
        late = self.report["late_frames_ratio"]
        return self.report["goodput"] >= LEAST_GOODPUT and (late is None or late <= MOST_LATE)

    @property
    def void(self) -> bool:
        return bool(self.report["void"])

    @property
    def turns(self) -> int:
        """That were answered. A server that keeps callers waiting has fewer, and less to do."""
        return int(self.report["latency_ms"]["voice_to_voice"]["count"])

    def line(self) -> str:
        v2v, late = self.report["latency_ms"]["voice_to_voice"], self.report["late_frames_ratio"]
        return (
            f"{self.subject:8} {self.calls:4} calls: {self.cpu_per_call:6.2%} of a core and "
            f"{self.bytes_per_call / 2**20:5.2f} MiB a call; the core {self.cpu_share:.0%} busy; goodput "
            f"{self.report['goodput']:.1%}, {self.turns} turns, "
            f"voice to voice p50 {_ms(v2v['p50'])} p95 {_ms(v2v['p95'])}, "
            f"{0 if late is None else late:.3%} of frames late{' (VOID: the callers were late)' if self.void else ''}"
        )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


async def window(subject: Subject, plan: Plan, cores: Cores) -> Window:
    """Start the server, warm it with one call, load it, read it, stop it."""
    async with started(subject, cores.server) as server:
        await _call(server, plan, cores, calls=2, for_s=8.0)
        await asyncio.sleep(SETTLE_S)
        before = server.usage()
        await asyncio.sleep(SETTLE_S)
        idle = server.usage()
        running = asyncio.create_task(_call(server, plan, cores, calls=plan.calls, for_s=plan.window_s))
        try:
            await asyncio.sleep(plan.ramp_s + SETTLE_S + _START_S)
            begun = server.usage()
            await asyncio.sleep(plan.window_s - 2 * SETTLE_S)
            ended = server.usage()
        finally:
            report = await running
    return Window(
        subject.name,
        plan.calls,
        ended.share_since(begun),
        idle.share_since(before),
        max(begun.resident_bytes, ended.resident_bytes),
        idle.resident_bytes,
        report,
    )


_START_S = 4.0
"""The load test makes its callers' voices and processes before the first call."""


async def _call(server: Server, plan: Plan, cores: Cores, *, calls: int, for_s: float) -> dict[str, Any]:
    """Run the load test. Raises :class:`RuntimeError` if it wrote no report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        arguments = ["loadtest", plan.scenario, "--url", server.url, "--calls", str(calls), "--ramp", str(plan.ramp_s)]
        arguments += ["--for", str(for_s), "--json", str(path), "--metrics", "off"]
        if cores.callers is not None:
            arguments += ["--pin", str(cores.callers)]
        offhook = os.path.join(os.path.dirname(sys.executable), "offhook")
        process = await asyncio.create_subprocess_exec(
            offhook, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, told = await process.communicate()
        try:
            document: dict[str, Any] = json.loads(await asyncio.to_thread(path.read_bytes))
        except (OSError, ValueError) as error:
            raise RuntimeError(f"the load test wrote no report: {told.decode(errors='replace')[-500:]}") from error
        return document


@dataclass(frozen=True, slots=True)
class Typical:
    """Of a call, medians of windows that count: the share of a core, memory, and turns of all calls together."""

    cpu_share: float
    resident_bytes: float
    turns: float


def typical(windows: list[Window], subject: str, calls: int) -> Typical | None:
    """None without a window."""
    asked = [each for each in windows if (each.subject, each.calls) == (subject, calls)]
    counted = [each for each in asked if not each.void] or asked
    if not counted:
        return None
    return Typical(
        median(each.cpu_per_call for each in counted),
        median(each.bytes_per_call for each in counted),
        median(each.turns for each in counted),
    )
