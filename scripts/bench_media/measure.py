"""The measurement: which server answers how many calls, for how long, and what is read then."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from scripts.bench_media.lateness import Lateness
from scripts.bench_media.machine import CoreClock, Cores
from scripts.bench_media.talk import AGENT_HZ, HEARD_FRAME, RTP_HZ, Pattern, joined_lines, opus_packets
from scripts.bench_media.windows import Reading, best_window, calls_held, median_share_per_call, progress
from scripts.bench_media.wire import ROOT, Child, ChildError

LINES = ROOT / "loadtest" / "lines"
# A server that hears or says less than this share of what it should was starved, or is broken.
_AT_WORK = 0.8


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: so many rounds of one window a load, and windows tried at a level of the climb."""

    calls: tuple[int, ...] = (5, 10)
    rounds: int = 3
    tries: int = 3
    window_s: float = 6.0
    warm_up_s: float = 2.0
    talk_s: float = 3.0
    climb: tuple[int, ...] = tuple(range(10, 85, 5))

    def patterns(self) -> dict[str, Pattern]:
        talk_ms = round(self.talk_s * 1000)
        return {"full": Pattern(talk_ms, 0), "half": Pattern(talk_ms, talk_ms)}


QUICK = Plan(calls=(5,), rounds=1, window_s=4.0, warm_up_s=1.0, talk_s=2.0, climb=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Reading):
    """What was read over one window of a server under a load."""

    server: str
    load: str
    heard_share: float
    talk_share: float

    @property
    def title(self) -> str:
        return f"{self.server:8} {self.load:4}"

    @property
    def idle(self) -> bool:
        return self.heard_share < _AT_WORK or self.frames.frames < _AT_WORK * self.talk_share * self.sent


@dataclass(frozen=True, slots=True)
class Measured:
    """Every window; the climbs' are apart, in the order of the levels."""

    windows: tuple[Window, ...]
    climbs: Mapping[str, tuple[Window, ...]]

    def share_per_call(self, server: str, load: str, calls: int) -> float | None:
        """As :func:`scripts.bench_media.windows.median_share_per_call`."""
        asked = (server, load, calls)
        return median_share_per_call(w for w in self.windows if (w.server, w.load, w.calls) == asked)

    def calls_per_core(self, server: str) -> int | None:
        """As :func:`scripts.bench_media.windows.calls_held`. None: not climbed."""
        return calls_held(self.climbs[server]) if server in self.climbs else None


@dataclass(frozen=True, slots=True)
class Bench:
    """The servers to compare, each with the interpreter that runs it."""

    servers: Mapping[str, str]
    cores: Cores
    say: Callable[[str], None]

    async def run(self, plan: Plan) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            sounds = write_sounds(Path(folder))
            windows = [
                window
                for calls in plan.calls
                for _ in range(plan.rounds)
                for server in self.servers
                for window in await self._round(server, calls, plan, sounds)
            ]
            climbs = {server: await self._climb(server, plan, sounds) for server in self.servers if plan.climb}
        return Measured(tuple(windows), climbs)

    async def _round(self, server: str, calls: int, plan: Plan, sounds: tuple[str, str]) -> list[Window]:
        """One window of each load, with a server that was started for it."""
        async with self._call_centre(server, sounds) as centre:
            await centre.add_calls(calls)
            found = []
            for load, pattern in plan.patterns().items():
                await centre.talk(pattern)
                await asyncio.sleep(plan.warm_up_s)
                found.append(await centre.window(load, pattern, plan.window_s))
                self.say(progress(found[-1]))
            return found

    async def _climb(self, server: str, plan: Plan, sounds: tuple[str, str]) -> tuple[Window, ...]:
        """More and more calls, until frames go late in every window tried, or the server no longer answers."""
        found: list[Window] = []
        async with self._call_centre(server, sounds) as centre:
            await centre.talk(plan.patterns()["full"])
            for calls in plan.climb:
                try:
                    await centre.add_calls(calls - centre.calls)
                except ChildError as failure:
                    self.say(f"{server}: {failure}")
                    break
                await asyncio.sleep(plan.warm_up_s)
                measure = partial(centre.window, "full", plan.patterns()["full"], plan.window_s)
                found.append(await best_window(measure, tries=plan.tries, say=self.say))
                if not found[-1].in_time:
                    break
        return tuple(found)

    @asynccontextmanager
    async def _call_centre(self, server: str, sounds: tuple[str, str]) -> AsyncIterator[CallCentre]:
        speech, packets = sounds
        package = __package__ or "scripts.bench_media"
        python = self.servers[server]
        serving = await Child.start(python, f"{package}.server", server, speech, core=self.cores.server)
        calling = await Child.start(sys.executable, f"{package}.callers", packets, core=self.cores.callers)
        try:
            yield CallCentre(server, serving, calling, self.cores)
        finally:
            await calling.stop()
            await serving.stop()


def write_sounds(folder: Path) -> tuple[str, str]:
    """The files of the agents' speech (24 kHz) and of the callers' packets."""
    speech, packets = folder / "agent.npy", folder / "caller.json"
    np.save(speech, joined_lines(LINES, AGENT_HZ))
    packets.write_text(json.dumps([packet.hex() for packet in opus_packets(joined_lines(LINES, RTP_HZ))]))
    return str(speech), str(packets)


class CallCentre:
    """One server, and its callers."""

    def __init__(self, server: str, serving: Child, calling: Child, cores: Cores) -> None:
        self.calls = 0
        self._server = server
        self._serving = serving
        self._calling = calling
        self._cores = cores

    async def add_calls(self, count: int) -> None:
        for _ in range(count):
            offer = await self._calling.ask("offer")
            answer = await self._serving.ask("answer", sdp=offer["sdp"])
            await self._calling.ask("accept", sdp=answer["sdp"])
            self.calls += 1

    async def talk(self, pattern: Pattern) -> None:
        await self._serving.ask("talk", on_ms=pattern.on_ms, off_ms=pattern.off_ms)

    async def window(self, load: str, pattern: Pattern, length_s: float) -> Window:
        """Measure for ``length_s``."""
        calling_before = await self._calling.ask("open_window")
        serving_before = await self._serving.ask("read")
        clocks = [CoreClock.read(core) for core in (self._cores.server, self._cores.callers)]
        await asyncio.sleep(length_s)
        serving, calling = await asyncio.gather(self._serving.ask("read"), self._calling.ask("read"))
        now = [CoreClock.read(core) for core in (self._cores.server, self._cores.callers)]
        took_s = serving["at_s"] - serving_before["at_s"]
        cpu_s = serving["cpu_s"] - serving_before["cpu_s"]
        heard = serving["heard_samples"] - serving_before["heard_samples"]
        callers_cpu_s = calling["cpu_s"] - calling_before["cpu_s"]
        return Window(
            server=self._server,
            load=load,
            calls=self.calls,
            cpu_share=cpu_s / took_s,
            callers_cpu_share=callers_cpu_s / took_s,
            others_server_core=now[0].others_since(clocks[0], cpu_s),
            others_callers_core=now[1].others_since(clocks[1], callers_cpu_s),
            frames=Lateness(calling["frames"], calling["late"], calling["lost"], calling["worst_ms"]),
            sent=calling["sent"],
            sent_late=calling["sent_late"],
            talk_share=pattern.on_ms / pattern.period_ms,
            heard_share=heard / max(1, calling["sent"] * HEARD_FRAME),
        )


def levels(windows: Sequence[Window]) -> tuple[int, ...]:
    """The numbers of calls that were measured, in order."""
    return tuple(sorted({window.calls for window in windows}))
