"""A run from what was asked for to its report: one, or as many as a climb for capacity takes."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from loadtest.address import may_be_told_the_key, shown_url
from loadtest.capacity import Climb, Held, held
from loadtest.generators import GeneratorsError
from loadtest.machine import load_average, this_machine
from loadtest.progress import Progress
from loadtest.run import Interruption, run_load
from loadtest.run_options import RunOptions, RunUsageError
from loadtest.run_planning import addresses_of, metrics_of, plan_run
from loadtest.run_report import Knee, Level, RunReport
from loadtest.scenario import Scenario
from loadtest.server_readings import ServerWatch
from loadtest.summary import RunFacts, judged, late_limit, level_of, summarise

WARM_UP_S = 10.0
"""After the ramp, before slopes are taken."""

STEADY_S = 60.0
"""Slopes of less say nothing."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Runs of one scenario; the audio of their worst calls goes to ``recordings``."""

    options: RunOptions
    scenario: Scenario
    recordings: Path
    progress: Progress
    interruption: Interruption

    async def once(self, calls: int | None = None, recordings: Path | None = None, words_begin: int = 0) -> RunReport:
        """``calls`` at once, audio to ``recordings``, in place of what was asked for; callers before these had
        ``words_begin`` code words. Raises
        :class:`~loadtest.run_options.RunUsageError`, :class:`~loadtest.scenario_file.ScenarioError` and
        :class:`~loadtest.generators.GeneratorsError`."""
        options, scenario = self.options, self.scenario
        addresses = addresses_of(options, scenario)
        load_before, started = load_average(), datetime.now(UTC)
        codes = options.codes
        if codes is None:
            codes = scenario.expect.codes and await self._says_fake(metrics_of(options, addresses))
        plan = plan_run(
            options,
            scenario,
            calls=calls,
            codes=codes,
            recordings=recordings or self.recordings,
            words_begin=words_begin,
        )
        record = await run_load(plan, self.progress, self.interruption)
        arrivals = scenario.arrivals
        ramp_s = arrivals.ramp_s if options.ramp_s is None else options.ramp_s
        steady = (ramp_s + WARM_UP_S, ramp_s + (options.for_s or arrivals.for_s))
        facts = RunFacts(
            scenario=scenario.name,
            seed=options.seed,
            started_at=started.isoformat(timespec="seconds"),
            machine=this_machine(load_before),
            expect=scenario.expect,
            about=scenario.about,
            url=" ".join(map(shown_url, options.urls)),
            transports=tuple(dict.fromkeys(str(address.transport) for address in addresses)),
            options={
                **options.named(),
                "metrics": shown_url(options.metrics) if options.metrics else None,
                "calls": calls or options.calls or arrivals.calls,
                "ramp_s": ramp_s,
                "for_s": options.for_s or arrivals.for_s,
                "codes": codes,
                "processes": plan.processes,
            },
            void_p99_ms=options.void_p99_ms,
            steady=steady if steady[1] - steady[0] >= STEADY_S and not record.interrupted else None,
        )
        return summarise(facts, record)

    async def find_knee(self, climb: Climb) -> RunReport:
        """Level after level, each a run of its own: the report of the largest that was held (of the last, if none
        was), with the knee in it. A level that can't be run ends the climb. Raises as :meth:`once`, of the first."""
        levels: list[Level] = []
        best: RunReport | None = None
        report: RunReport | None = None
        beyond: str | None = None
        callers = 0
        while (calls := climb.next_level()) is not None:
            with tempfile.TemporaryDirectory(dir=self.recordings) as folder:
                try:
                    report = await self.once(calls, Path(folder), callers)
                except (RunUsageError, GeneratorsError) as error:
                    if report is None:
                        raise
                    beyond = f"{calls} calls can't be offered: {error}"
                    break
                callers += report.calls.offered
                if report.interrupted:
                    break
                verdict = held(
                    goodput=report.goodput or 0.0,
                    late_share=report.late_frames_ratio or 0.0,
                    late_limit=late_limit(report.expect),
                    foreign=report.cross_talk.foreign,
                    void=report.void,
                )
                levels.append(level_of(report, calls, held=verdict is Held.HELD, tries=climb.tries + 1))
                climb.note(verdict)
                self.progress.say(_told(levels[-1], verdict))
                if verdict is Held.HELD or best is None or not climb.best:
                    best = report
                    _replace_files(self.recordings, Path(folder))
                if report.broken_off is not None and not climb.best:
                    beyond = report.broken_off  # nobody is there: fewer calls would fail as well
                    break
        assert report is not None
        broke = next((level for level in levels if level.calls == climb.broke and not (level.held or level.void)), None)
        stopped_by = beyond or climb.stopped_by(broke.faults if broke is not None else None)
        knee = Knee(held=climb.best or 0, broke=climb.broke, levels=tuple(levels), stopped_by=stopped_by)
        interrupted = beyond is None and climb.next_level() is not None
        return judged(msgspec.structs.replace(best or report, knee=knee, interrupted=interrupted))

    async def _says_fake(self, url: str | None) -> bool:
        """The server under test has scripted engines."""
        key = self.options.key if may_be_told_the_key(url, self.options.urls) else None
        watch = ServerWatch(url, key, time.monotonic)
        try:
            await watch.read(keep=False)
            return watch.info.get("fake") == "true"
        finally:
            await watch.aclose()


def _replace_files(kept: Path, new: Path) -> None:
    """The recordings of another run in place of those that were kept."""
    for path in kept.glob("*.wav"):
        path.unlink()
    for path in new.glob("*.wav"):
        path.rename(kept / path.name)


def _told(level: Level, verdict: Held) -> str:
    p95_ms = level.voice_to_voice.p95
    latency = "" if p95_ms is None else f", voice to voice p95 {p95_ms:.0f} ms"
    return (
        f"{level.calls} calls: {verdict}, goodput {level.goodput or 0.0:.1%}, "
        f"late frames {level.late_frames_ratio or 0.0:.2%}{latency}"
    )
