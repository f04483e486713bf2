"""The measurement: how many calls, for how long, and what is read then."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripts.bench_media.lateness import Lateness
from scripts.bench_media.machine import CoreClock, Cores
from scripts.bench_media.windows import Reading, best_window, calls_held, median_share_per_call, progress
from scripts.bench_media.wire import Child, ChildError

AT_WORK = 0.95
"""A gateway that hears, judges or says less than this share of what it should was starved, or is broken."""
FRAMES_A_SECOND = 50
HEARD_HZ = 16_000

WIRES = ("sip", "twilio")
SUBJECTS = ("echo", "call")


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: a wire, what stands behind it, and whether Silero listens."""

    wire: str
    subject: str
    vad: bool

    @property
    def name(self) -> str:
        return f"{self.wire} {self.subject}, VAD {'on' if self.vad else 'off'}"


@dataclass(frozen=True, slots=True)
class Plan:
    """``calls``: the levels at which the cost of a call is read; ``climb``: those tried for how many are held."""

    calls: tuple[int, ...] = (50, 100)
    rounds: int = 3
    tries: int = 3
    window_s: float = 6.0
    warm_up_s: float = 2.0
    climb: tuple[int, ...] = (60, 90, 120, 150, 180, 210, 250, 300, 350, 400)


QUICK = Plan(calls=(30,), rounds=1, tries=1, window_s=3.0, warm_up_s=1.0, climb=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Reading):
    """What was read over one window. The shares of what was said, heard and judged are of what should have been."""

    case: Case
    said_share: float
    heard_share: float
    judged_share: float

    @property
    def title(self) -> str:
        return f"{self.case.name:20}"

    @property
    def idle(self) -> bool:
        return min(self.said_share, self.heard_share, self.judged_share) < AT_WORK

    @property
    def starved(self) -> str:
        return f"said {self.said_share:.0%}, heard {self.heard_share:.0%}, judged {self.judged_share:.0%}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Every window of the levels; the climbs' are apart, in order."""

    windows: tuple[Window, ...]
    climbs: dict[Case, tuple[Window, ...]]

    def share_per_call(self, case: Case, calls: int) -> float | None:
        """As :func:`scripts.bench_media.windows.median_share_per_call`."""
        return median_share_per_call(w for w in self.windows if w.case == case and w.calls == calls)

    def held(self, case: Case) -> int | None:
        """As :func:`scripts.bench_media.windows.calls_held`. None: not climbed."""
        return calls_held(self.climbs[case]) if case in self.climbs else None


@dataclass(frozen=True, slots=True)
class Bench:
    cases: tuple[Case, ...]
    cores: Cores
    vad_model: Path
    say: Callable[[str], None]

    async def run(self, plan: Plan) -> Measured:
        windows: list[Window] = []
        for _ in range(plan.rounds):
            for case in self.cases:
                windows += await self._levels(case, plan)
        climbs = {case: await self._climb(case, plan) for case in self.cases if plan.climb}
        return Measured(tuple(windows), climbs)

    async def _levels(self, case: Case, plan: Plan) -> list[Window]:
        """One window of each level, with a gateway that was started for them."""
        found = []
        async with self._call_centre(case) as centre:
            for calls in plan.calls:
                await centre.add_calls(calls - centre.calls)
                await asyncio.sleep(plan.warm_up_s)
                found.append(await centre.window(plan.window_s))
                self.say(progress(found[-1]))
        return found

    async def _climb(self, case: Case, plan: Plan) -> tuple[Window, ...]:
        """More and more calls, until frames go late in every window tried, or no more can be set up."""
        found: list[Window] = []
        async with self._call_centre(case) as centre:
            for calls in plan.climb:
                try:
                    await centre.add_calls(calls - centre.calls)
                except ChildError as failure:
                    self.say(f"{case.name}: {failure}")
                    break
                await asyncio.sleep(plan.warm_up_s)
                measure = partial(centre.window, plan.window_s)
                found.append(await best_window(measure, tries=plan.tries, say=self.say))
                if not found[-1].in_time:
                    break
        return tuple(found)

    @asynccontextmanager
    async def _call_centre(self, case: Case) -> AsyncIterator[CallCentre]:
        package = __package__ or "scripts.bench_phones"
        model = str(self.vad_model) if case.vad else "-"
        serving = await Child.start(sys.executable, f"{package}.server", case.subject, model, core=self.cores.server)
        calling = await Child.start(
            sys.executable, f"{package}.callers", case.wire, case.subject, core=self.cores.callers
        )
        try:
            where = await serving.ask("where", timeout_s=90)
            yield CallCentre(case, serving, calling, self.cores, where["sip" if case.wire == "sip" else "http"])
        finally:
            await calling.stop()
            await serving.stop()


class CallCentre:
    """One gateway, and its callers."""

    def __init__(self, case: Case, serving: Child, calling: Child, cores: Cores, port: int) -> None:
        self.calls = 0
        self._case = case
        self._serving = serving
        self._calling = calling
        self._cores = cores
        self._port = port

    async def add_calls(self, count: int) -> None:
        await self._calling.ask("call", count=count, port=self._port, timeout_s=120)
        self.calls += count

    async def window(self, length_s: float) -> Window:
        """Measure for ``length_s``."""
        calling_before = await self._calling.ask("open_window")
        before = await self._serving.ask("read")
        clocks = [CoreClock.read(core) for core in (self._cores.server, self._cores.callers)]
        await asyncio.sleep(length_s)
        now, calling = await asyncio.gather(self._serving.ask("read"), self._calling.ask("read"))
        clocks_now = [CoreClock.read(core) for core in (self._cores.server, self._cores.callers)]
        took_s = now["at_s"] - before["at_s"]
        cpu_s = now["cpu_s"] - before["cpu_s"]
        callers_cpu_s = calling["cpu_s"] - calling_before["cpu_s"]
        if now["calls"] < self.calls:
            ended = self.calls - now["calls"]
            raise ChildError(f"{self._case.name}: {ended} of {self.calls} calls ended: {now['causes']}")
        expected = self.calls * took_s
        return Window(
            case=self._case,
            calls=self.calls,
            cpu_share=cpu_s / took_s,
            callers_cpu_share=callers_cpu_s / took_s,
            others_server_core=clocks_now[0].others_since(clocks[0], cpu_s),
            others_callers_core=clocks_now[1].others_since(clocks[1], callers_cpu_s),
            frames=Lateness(calling["frames"], calling["late"], 0, calling["worst_ms"]),
            said_share=calling["frames"] / (expected * FRAMES_A_SECOND),
            heard_share=(now["fed_samples"] - before["fed_samples"]) / (expected * HEARD_HZ),
            judged_share=(now["scored_samples"] - before["scored_samples"]) / (expected * HEARD_HZ),
            sent=calling["sent"],
            sent_late=calling["sent_late"],
        )
