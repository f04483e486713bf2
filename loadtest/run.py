"""A run: many calls of one scenario at one server, from the plan of arrivals to what the report is made of.

The generators do the calling; here they are started together and stopped together, what they and the server tell is
gathered, and the audio of the worst calls is kept until the report is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

import msgspec

from loadtest.address import may_be_told_the_key, shown_url
from loadtest.arrivals import Arrival, share_arrivals
from loadtest.code_pool import REST_S
from loadtest.generator_messages import Counted, Done, Ended, FromGenerator, Job, Ready
from loadtest.generators import BUSY_SHARE, COMMAND, Generators, GeneratorsError, open_generators
from loadtest.measured_call import badness
from loadtest.outcome import CallOutcome, Fate
from loadtest.progress import Progress, Tally
from loadtest.readings import GeneratorReading, GeneratorReport, ServerReading, ServerReport
from loadtest.run_report import StageTimes
from loadtest.server_readings import Buckets, ServerWatch
from streaming.audio.code_words import WORDS

START_S = 0.5
"""Between the word to all generators and the moment 0, so that none hears it too late."""

OVER_S = 45.0
"""After the last call's planned end: who is not done then is hung up."""

HANG_UP_S = 12.0
"""For goodbyes, and for what is left to measure."""

BREAK_OFF_S = 3.0
"""For what is left to measure."""

PREPARED_S = 180.0
"""For the callers' lines to be spoken and encoded."""

SETTLE_S = 10.0
"""After the run, for the server to give everything back."""

OFFERED_LATE_MS = 1_000.0
"""Calls that come later than planned are another load than the one asked for."""

HOPELESS_S = 15.0
"""From the first call offered: a server where none came about until then, and that refused none, will hold none."""

MAX_READINGS = 4_000
KEPT = 6
"""Calls per generator whose audio is kept."""

RECORDS = 24
"""Of the worst calls, whose records the server is asked for."""


class Interruption:
    """Ctrl-C: the first one stops the run, a second one stops it at once."""

    def __init__(self) -> None:
        self.count = 0
        self.news = asyncio.Event()
        """Set with every one; whoever waits clears it."""

    def __call__(self) -> None:
        self.count += 1
        self.news.set()


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that is decided before a run. ``job`` has no arrivals; each generator gets its own part of them."""

    job: Job
    arrivals: tuple[Arrival, ...]
    processes: int
    metrics_url: str | None
    settle_s: float = SETTLE_S
    command: tuple[str, ...] = COMMAND
    """What a generator is."""

    @property
    def length_s(self) -> float:
        """Until the last call should be over."""
        return max((arrival.at_s + arrival.length_s for arrival in self.arrivals), default=0.0)


@dataclass(slots=True)
class RunRecord:
    """All that became known in a run."""

    outcomes: list[CallOutcome] = field(default_factory=list)
    server: ServerReport = field(default_factory=ServerReport)
    stages_s: dict[str, Buckets] = field(default_factory=dict)
    """The server's histograms of stages over the run."""
    send_late_s: Buckets = field(default_factory=dict)
    generators: tuple[GeneratorReport, ...] = ()
    generator_readings: tuple[GeneratorReading, ...] = ()
    ups: dict[int, int] = field(default_factory=dict)
    stages: dict[int, tuple[StageTimes, ...]] = field(default_factory=dict)
    """Of the worst calls, by number, where the server keeps records."""
    base_before: ServerReading | None = None
    base_after: ServerReading | None = None
    settled_s: float = 0.0
    void_reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    length_s: float = 0.0
    interrupted: bool = False
    broken_off: str | None = None
    """Why the run ended by itself before its time."""


async def run_load(plan: RunPlan, progress: Progress, interruption: Interruption) -> RunRecord:
    """Raises :class:`~loadtest.generators.GeneratorsError` where the callers could not be prepared; whatever happens
    later is in the record."""
    run = _Run(plan, progress, interruption)
    try:
        with progress.showing():
            return await run.run()
    finally:
        await run.aclose()


class _Run:
    def __init__(self, plan: RunPlan, progress: Progress, interruption: Interruption) -> None:
        self._plan = plan
        self._progress = progress
        self._interruption = interruption
        self._record = RunRecord()
        self._start_s = time.monotonic()
        key = plan.job.key if may_be_told_the_key(plan.metrics_url, plan.job.urls) else None
        if plan.metrics_url is not None and key != plan.job.key:
            self._record.notes.append(
                "the key was not told to --metrics: calls go to another host, or by TLS and that does not"
            )
        self._watch = ServerWatch(plan.metrics_url, key, time.monotonic, self._start_s)
        self._tally = Tally(plan.job.name, len(plan.arrivals), plan.length_s)
        self._seconds: dict[int, GeneratorReading] = {}
        self._shares: dict[int, list[float]] = {}
        self._most_up: dict[int, int] = {}
        self._done: dict[int, Done] = {}
        self._problems: dict[int, str] = {}
        self._worst: list[tuple[float, int]] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None

    async def run(self) -> RunRecord:
        plan, record = self._plan, self._record
        shares = share_arrivals(plan.arrivals, plan.processes)
        jobs = [
            msgspec.structs.replace(plan.job, arrivals=share, generator=number, generators=len(shares))
            for number, share in enumerate(shares)
        ]
        self._say("the callers are being prepared")
        news = self._interruption.news.set
        async with open_generators(jobs, self._heard, news, command=plan.command) as generators:
            await self._prepared(generators)
            if self._interruption.count:
                record.interrupted = True
                return record
            record.base_before = await self._watch.read(keep=False)
            self._say("")
            self._start_s = self._watch.start_s = time.monotonic() + START_S
            generators.go(self._start_s)
            await self._watch_over(generators)
            record.length_s = self._now_s()
            self._problems = generators.problems
        await self._settle()
        self._conclude(len(jobs))
        return record

    async def _prepared(self, generators: Generators) -> None:
        """Until all are, or Ctrl-C."""
        until_s = time.monotonic() + PREPARED_S
        while not generators.ready and not self._interruption.count:
            await self._news(until_s - time.monotonic())
            generators.check()
            if time.monotonic() >= until_s:
                raise GeneratorsError(f"the callers were not ready after {PREPARED_S:.0f} s")

    async def aclose(self) -> None:
        tasks = [*self._asking, *([self._reading] if self._reading is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._watch.aclose()

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s

    def _say(self, word: str) -> None:
        self._tally.last_word = word
        self._progress.show(self._tally)

    async def _news(self, timeout_s: float) -> None:
        """Wait until there is some, no longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._interruption.news.wait()
        self._interruption.news.clear()

    async def _watch_over(self, generators: Generators) -> None:
        """Once a second until all is over: read the server, show how it goes, stop what does not stop by itself."""
        stops = 0
        next_stop_s = self._plan.length_s + OVER_S
        second = 0
        while not generators.over:
            await self._news(second - self._now_s())
            now_s = self._now_s()
            overdue = now_s >= next_stop_s
            if self._interruption.count > stops or overdue:
                if stops >= 2:
                    break  # who does not end now is ended
                stops += 1
                generators.stop(at_once=stops > 1)
                next_stop_s = now_s + (HANG_UP_S if stops == 1 else BREAK_OFF_S)
                self._say("hanging up" if stops == 1 else "breaking off")
                if stops == 1 and not self._interruption.count:
                    self._record.notes.append(f"calls were still up {OVER_S:.0f} s after their planned end")
            if stops == 0 and (why := self._hopeless(now_s)) is not None:
                self._record.broken_off = why
                stops, next_stop_s = 1, now_s + BREAK_OFF_S
                generators.stop()
                self._say("breaking off: no call comes about")
            if now_s >= second:
                second = max(second + 1, int(now_s) + 1)
                if self._reading is None or self._reading.done():  # a server that is slow to tell delays nothing here
                    self._reading = asyncio.create_task(self._read())
                self._tally.at_s = now_s
                self._progress.show(self._tally)
        self._record.interrupted = self._interruption.count > 0

    def _hopeless(self, now_s: float) -> str | None:
        """Why there is no use in going on, if there is none. Some calls may still be on their way: of a server that
        lets callers ring for long, more than half are."""
        passed_s = now_s - min((arrival.at_s for arrival in self._plan.arrivals), default=now_s)
        failed, offered = self._tally.fates.get(Fate.FAILED, 0), self._tally.offered
        if passed_s < HOPELESS_S or any(self._most_up.values()) or failed < self._tally.over or failed * 2 <= offered:
            return None
        return (
            f"no call came about: after {passed_s:.0f} s all {failed} that were over had failed; no more were offered"
        )

    async def _read(self) -> None:
        self._tally.server = await self._watch.read()
        self._tally.fake = _fake(self._watch.info)

    def _heard(self, number: int, word: FromGenerator) -> None:
        match word:
            case Ended(outcome):
                self._record.outcomes.append(outcome)
                self._tally.ended(outcome)
                self._ask_about(outcome)
            case Counted():
                self._count(number, word)
            case Done():
                self._done[number] = word
            case Ready(notes):
                self._record.notes.extend(note for note in notes if note not in self._record.notes)
            case _:
                pass  # what broke it is among the generators' problems

    def _count(self, number: int, counted: Counted) -> None:
        self._tally.generators[number] = counted
        self._shares.setdefault(number, []).append(counted.cpu_share)
        self._most_up[number] = max(self._most_up.get(number, 0), counted.up)
        second = round(counted.at_s)
        self._record.ups[second] = self._record.ups.get(second, 0) + counted.up
        before = self._seconds.get(second) or GeneratorReading(at_s=float(second))
        self._seconds[second] = GeneratorReading(
            at_s=float(second),
            up=self._record.ups[second],
            cpu_cores=_larger(counted.cpu_share, before.cpu_cores),
            p99_ms=_larger(counted.late_p99_ms, before.p99_ms),
            worst_ms=_larger(counted.late_worst_ms, before.worst_ms),
        )

    def _ask_about(self, outcome: CallOutcome) -> None:
        """Of the worst so far, the server's own record is asked for while it still has it."""
        if outcome.call_id is None or self._watch.url is None:
            return
        bad = badness(outcome)
        if len(self._worst) >= RECORDS and bad <= self._worst[0][0]:
            return
        self._worst = sorted([*self._worst, (bad, outcome.number)])[-RECORDS:]
        task = asyncio.create_task(self._ask(outcome.number, outcome.call_id))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, number: int, call_id: str) -> None:
        stages = await self._watch.stages_of(call_id)
        if stages:
            self._record.stages[number] = stages

    async def _settle(self) -> None:
        """Wait until the server has given back what the calls took, or does not."""
        record, began_s = self._record, time.monotonic()
        self._say("the server settles")
        await asyncio.gather(*self._asking, *([self._reading] if self._reading else []), return_exceptions=True)
        while record.base_before is not None:
            record.base_after = await self._watch.read(keep=False)
            record.settled_s = time.monotonic() - began_s
            if _is_back(record.base_before, record.base_after) or record.settled_s >= self._plan.settle_s:
                return
            self._progress.show(self._tally)
            if self._interruption.count > 1:
                return
            await asyncio.sleep(0.5)

    def _conclude(self, processes: int) -> None:
        record, watch = self._record, self._watch
        record.server = ServerReport(
            info=watch.info,
            metrics_url=shown_url(watch.url) if watch.url is not None and watch.last is not None else None,
            readings=tuple(watch.readings),
            scrapes_failed=watch.failed,
        )
        if watch.url is not None and watch.last is None:
            why = watch.problem or "no answer in time"
            record.notes.append(f"nothing was read of the server at {shown_url(watch.url)}: {why}")
        record.stages_s, record.send_late_s = watch.stages(), watch.send_late()
        kept: dict[int, str] = {}
        for number, done in sorted(self._done.items()):
            kept.update(done.kept)
            if done.offered_late_ms > OFFERED_LATE_MS:
                record.void_reasons.append(
                    f"generator {number} offered calls up to {done.offered_late_ms / 1000:.1f} s after their time: "
                    "it could not make its callers fast enough"
                )
            unkept = f"audio of calls could not be kept: {done.unkept}"
            if done.unkept is not None and unkept not in record.notes:
                record.notes.append(unkept)
            record.void_reasons.extend(
                f"{count} simulated callers broke down: {problem}" for problem, count in done.broken.items()
            )
        if wordless := sum(done.wordless for done in self._done.values()):
            record.notes.append(
                f"{wordless} callers had no code word: all {WORDS} were others' then, or had been in the "
                f"{REST_S:.0f} s before"
            )
        record.outcomes = [
            msgspec.structs.replace(outcome, recording=kept.get(outcome.number)) for outcome in record.outcomes
        ]
        record.generators = tuple(self._report(number) for number in range(processes))
        step = len(self._seconds) // MAX_READINGS + 1
        record.generator_readings = tuple(self._seconds[second] for second in sorted(self._seconds))[::step]
        record.void_reasons.extend(self._problems.values())
        lost = [number for number in range(processes) if number not in self._done and number not in self._problems]
        record.void_reasons.extend(f"generator {number} did not end its calls in time" for number in lost)
        busy = [report for report in record.generators if (report.cpu_cores_max or 0.0) > BUSY_SHARE]
        if busy:
            record.notes.append(
                f"{len(busy)} of {processes} generators took more than {BUSY_SHARE:.0%} of a core at times: "
                "more of them (--processes), or fewer calls, make times surer"
            )

    def _report(self, number: int) -> GeneratorReport:
        shares, done = self._shares.get(number, []), self._done.get(number)
        counted = self._tally.generators.get(number)
        last = done or counted
        return GeneratorReport(
            process=number,
            calls=counted.offered if counted is not None else 0,
            most_up=self._most_up.get(number, 0),
            cpu_cores=sum(shares) / len(shares) if shares else None,
            cpu_cores_max=max(shares, default=None),
            p99_ms=last.late_p99_ms if last is not None else None,
            worst_ms=last.late_worst_ms if last is not None else None,
            ticks=last.ticks if last is not None else 0,
            skipped=done.ticks_skipped if done is not None else 0,
            problem=self._problems.get(number),
        )


def _larger(first: float | None, second: float | None) -> float | None:
    return max((value for value in (first, second) if value is not None), default=None)


def _fake(info: dict[str, str]) -> bool | None:
    return None if "fake" not in info else info["fake"] == "true"


def _is_back(before: ServerReading, after: ServerReading | None) -> bool:
    """Nothing that is counted is more than it was."""
    if after is None:
        return False
    pairs = [(getattr(before, name), getattr(after, name)) for name in ("calls_live", "tasks", "threads", "fds")]
    return all(then is None or now is None or now <= then for then, now in pairs)
