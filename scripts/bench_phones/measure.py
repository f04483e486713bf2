"""The measurement: how many calls, for how long, and what is read then."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scripts.bench_media.lateness import Lateness
from scripts.bench_media.machine import CoreClock, Cores
from scripts.bench_media.wire import Child, ChildError

LATE_SHARE = 0.001
"""More late frames than this, and a core has too many calls."""
OWN_LATE_SHARE = 0.001
"""More late sends than this, and the callers could not tell who was late."""
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


@dataclass(frozen=True, slots=True)
class Window:
    """What was read over one window. Shares are of one core, or of what should have been."""

    case: Case
    calls: int
    cpu_share: float
    callers_cpu_share: float
    others_server_core: float | None
    others_callers_core: float | None
    frames: Lateness
    said_share: float
    heard_share: float
    judged_share: float
    sent: int
    sent_late: int

    @property
    def share_per_call(self) -> float:
        return self.cpu_share / self.calls

    @property
    def late_share(self) -> float:
        return self.frames.late / max(1, self.frames.frames)

    @property
    def idle(self) -> bool:
        """What it cost is the price of something else."""
        return min(self.said_share, self.heard_share, self.judged_share) < AT_WORK

    @property
    def in_time(self) -> bool:
        return not self.idle and self.late_share <= LATE_SHARE

    @property
    def callers_late(self) -> bool:
        """Who else was late cannot be told."""
        return self.sent_late > OWN_LATE_SHARE * self.sent


@dataclass(frozen=True, slots=True)
class Measured:
    """Every window of the levels; the climbs' are apart, in order."""

    windows: tuple[Window, ...]
    climbs: dict[Case, tuple[Window, ...]]

    def share_per_call(self, case: Case, calls: int) -> float | None:
        """The median over the windows that count; with late callers too if none does. None if there is no window."""
        of_all = [w for w in self.windows if w.case == case and w.calls == calls and not w.idle]
        counted = [w for w in of_all if not w.callers_late] or of_all
        return median(w.share_per_call for w in counted) if counted else None

    def held(self, case: Case) -> int | None:
        """The highest level of the climb with at most 0.1 % of the frames late. None: not climbed."""
        if case not in self.climbs:
            return None
        return max((w.calls for w in self.climbs[case] if w.in_time), default=0)


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
                found.append(await self._best_window(centre, plan))
                if not found[-1].in_time:
                    break
        return tuple(found)

    async def _best_window(self, centre: CallCentre, plan: Plan) -> Window:
        """The first window in which the calls were served in time, or else the best of those tried."""
        tried: list[Window] = []
        for _ in range(plan.tries):
            tried.append(await centre.window(plan.window_s))
            self.say(progress(tried[-1]))
            if tried[-1].in_time:
                break
        return min(tried, key=lambda window: (not window.in_time and window.callers_late, window.late_share))

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


def progress(window: Window) -> str:
    """One line about one window."""
    others = [share for share in (window.others_server_core, window.others_callers_core) if share is not None]
    busy = f", others took {others[0]:.0%} and {others[1]:.0%} of the two cores" if len(others) == 2 else ""
    starved = (
        f" (VOID: said {window.said_share:.0%}, heard {window.heard_share:.0%}, judged {window.judged_share:.0%})"
        if window.idle
        else ""
    )
    return (
        f"{window.case.name:20} {window.calls:3} calls: {window.share_per_call:6.2%} of a core a call, "
        f"{window.frames.late} of {window.frames.frames} frames late, worst {window.frames.worst_ms:.0f} ms; "
        f"callers {window.callers_cpu_share:.0%}, {window.sent_late} of {window.sent} sends late{busy}"
        f"{' (VOID: callers late)' if window.callers_late else ''}{starved}"
    )
