"""One window of one server: the callers of ``offhook loadtest`` on it, and what its process used meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from loadtest.capacity import Held
from loadtest.load_run import LoadRun
from loadtest.progress import Progress, Tally, Terminal
from loadtest.run import Interruption
from loadtest.run_options import METRICS_OFF, RunOptions
from loadtest.run_report import RunReport
from loadtest.scenario import load_scenario
from loadtest.summary import GOODPUT, LATE_RATIO
from scripts.call_cost.machine import Cores
from scripts.call_cost.servers import Server, Subject, Usage, started

TALKERS = str(Path(__file__).with_name("talkers.yaml"))
"""A scenario: callers who talk without end, whoever speaks. Turns are not judged in it."""

WARM_CALLS = 2
WARM_S = 5.0
SETTLE_S = 3.0
NEARLY_ALL = 0.9
"""Of the calls: where one follows another on a line, all are rarely up at one moment."""

STAYED = 0.95
"""Of the calls: where fewer stayed, what the server used is no cost of so many."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was read of a server with ``calls``. Shares are of one core, ``others_share`` of the server's: what others
    had of it, None where that is not told. ``report`` is the load test's own."""

    subject: str
    asked: str
    calls: int
    cpu_share: float
    idle_share: float
    others_share: float | None
    resident_bytes: int
    idle_bytes: int
    report: RunReport

    @property
    def cpu_per_call(self) -> float:
        """What calls cost on top of an idle server, of one core each."""
        return (self.cpu_share - self.idle_share) / self.calls

    @property
    def bytes_per_call(self) -> float:
        return (self.resident_bytes - self.idle_bytes) / self.calls

    @property
    def turns(self) -> int | None:
        """That were answered; None where turns are not judged. A server that keeps callers waiting has fewer, and less
        to do."""
        judged = "answer_within_ms" in self.report.expect
        return self.report.latency_ms.voice_to_voice.count if judged else None

    @property
    def frames(self) -> int:
        """Of 20 ms of speech that came in time. A server that says less has less to do."""
        return self.report.media.due - self.report.media.late

    @property
    def late_share(self) -> float:
        return self.report.late_frames_ratio or 0.0

    @property
    def stayed_share(self) -> float:
        """Of the calls offered, those that came up and stayed."""
        return self.report.calls.completed / max(1, self.report.calls.offered)

    @property
    def good_share(self) -> float:
        """Of the calls offered, the good ones; where turns are not judged, those that stayed."""
        return self.stayed_share if self.turns is None else self.report.goodput or 0.0

    @property
    def void(self) -> bool:
        """The callers were late themselves."""
        return self.report.void

    @property
    def served(self) -> bool:
        """What the server used is what its calls cost."""
        return self.stayed_share >= STAYED

    @property
    def held(self) -> Held:
        """By the load test's own bounds; of talkers, too, of whom it judges nothing."""
        if self.void:
            return Held.VOID
        return Held.HELD if self.good_share >= GOODPUT and self.late_share < LATE_RATIO else Held.MISSED

    def line(self) -> str:
        """For progress."""
        wait, others = self.report.latency_ms.voice_to_voice.p50, self.others_share
        told = [
            f"{self.cpu_per_call:6.2%} of a core and {self.bytes_per_call / 2**20:5.2f} MiB a call",
            f"the core {self.cpu_share:.0%} busy with it" + ("" if others is None else f", {others:.0%} with others"),
            f"{self.good_share:.1%} good calls, {self.late_share:.3%} of {self.report.media.due} frames late",
        ]
        if self.turns is not None:
            told.append(f"{self.turns} turns, voice to voice p50 {'-' if wait is None else f'{wait:.0f} ms'}")
        words = {Held.HELD: "", Held.MISSED: " (NOT HELD)", Held.VOID: " (VOID: the callers were late)"}
        return f"{self.subject} {self.asked:20} {self.calls:4} calls: {'; '.join(told)}{words[self.held]}"


class Trial:
    """A server that runs, and is to be warmed first."""

    def __init__(self, subject: Subject, cores: Cores, server: Server) -> None:
        self._subject = subject
        self._cores = cores
        self._server = server
        self._idle_share = 0.0
        self._idle: Usage | None = None

    async def warm(self) -> None:
        """With a few calls; then it is read idle."""
        await self._called(WARM_CALLS, 0.0, WARM_S, _Quiet(WARM_CALLS))
        await asyncio.sleep(SETTLE_S)
        before = self._server.usage()
        await asyncio.sleep(SETTLE_S)
        self._idle = self._server.usage()
        self._idle_share = self._idle.share_since(before)

    async def window(self, calls: int, ramp_s: float, window_s: float) -> Window:
        """``calls`` at once, up after ``ramp_s``, for ``window_s``; the middle of that is what is read."""
        assert self._idle is not None
        progress = _Quiet(calls)
        running = asyncio.create_task(self._called(calls, ramp_s, window_s, progress))
        running.add_done_callback(lambda _: progress.up.set())
        try:
            await progress.up.wait()
            await asyncio.wait((running,), timeout=SETTLE_S)
            begun = self._server.usage()
            await asyncio.wait((running,), timeout=max(1.0, window_s - 2 * SETTLE_S))
            ended = self._server.usage()
            report = await running
        finally:
            running.cancel()
        return Window(
            self._subject.name,
            self._subject.asked,
            calls,
            ended.share_since(begun),
            self._idle_share,
            ended.others_since(begun),
            max(begun.resident_bytes, ended.resident_bytes),
            self._idle.resident_bytes,
            report,
        )

    async def _called(self, calls: int, ramp_s: float, for_s: float, progress: Progress) -> RunReport:
        options = RunOptions(
            self._subject.scenario,
            (self._server.url,),
            calls=calls,
            ramp_s=ramp_s,
            for_s=for_s,
            pin=self._cores.pin,
            metrics=METRICS_OFF,
            keep=0,
        )
        scenario = load_scenario(options.scenario)
        with tempfile.TemporaryDirectory() as folder:
            return await LoadRun(options, scenario, Path(folder), progress, Interruption()).once()


class _Quiet(Progress):
    """Shows nothing, and tells when nearly all calls are up."""

    def __init__(self, calls: int) -> None:
        super().__init__(Terminal(), quiet=True)
        self.up = asyncio.Event()
        self._calls = calls

    def show(self, tally: Tally) -> None:
        if tally.up >= NEARLY_ALL * self._calls:
            self.up.set()


@contextlib.asynccontextmanager
async def on_trial(subject: Subject, cores: Cores) -> AsyncIterator[Trial]:
    """Start it, warm it; stop it. Raises as :func:`~scripts.call_cost.servers.started`."""
    async with started(subject, cores.server) as server:
        trial = Trial(subject, cores, server)
        await trial.warm()
        yield trial
