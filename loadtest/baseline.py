"""A run beside an earlier one: what became worse than chance explains.

A measure may be worse than before by its tolerance. Two runs are compared only if they measured the same thing on the
same kind of machine; otherwise the comparison says why not, and fails, so that a gate never passes for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from loadtest.run_report import Baseline, BaselineLine, Percentiles, RunReport
from loadtest.summary import judged

MIN_VALUES = 20
"""Of fewer values a percentile is chance."""

OTHER_LOAD = 0.1
"""Runs whose most calls at once differ by more are not the same load."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The worst that is no regression: ``share`` of the value before, or ``step``, whichever allows more."""

    share: float
    step: float

    def allowed(self, before: float, *, higher_is_worse: bool) -> float:
        more = max(before * self.share, self.step)
        return before + more if higher_is_worse else before - more


LATENCY = Tolerance(0.15, 50.0)
MEDIAN = Tolerance(0.10, 50.0)
MEDIAN_OF_FAKE = Tolerance(0.0, 20.0)
"""Scripted engines take the same time always: what is left is transport and gateway, and a median of theirs is steady
to within one playout slot."""
GOODPUT = Tolerance(0.0, 0.01)
LATE_RATIO = Tolerance(1.0, 0.000_5)
RATE = Tolerance(0.0, 0.01)
MOS = Tolerance(0.0, 0.1)
COST = Tolerance(0.15, 0.0)
MEMORY = Tolerance(0.15, 64 * 1024)
"""Allocators take memory by the MiB, which of few calls is much each; and beside a server that had grown before, a call
costs nothing."""
NONE = Tolerance(0.0, 0.0)

_SERVER_LABELS = ("preset", "vad", "stt", "llm", "tts")


def compare(now: RunReport, before: RunReport, file: str) -> Baseline:
    """``file`` is where ``before`` was read from."""
    hard, soft = _hard_differences(now, before), _soft_differences(now, before)
    if hard:
        return Baseline(file=file, at=before.started_at, comparable=False, differences=(*hard, *soft))
    lines = tuple(_line(now, before, measure) for measure in _measures(now, before))
    return Baseline(
        file=file,
        at=before.started_at,
        comparable=True,
        differences=(*soft, *(f"{line.name}: not measured now" for line in lines if _vanished(line))),
        regressed=any(line.regressed for line in lines),
        lines=lines,
    )


def with_baseline(report: RunReport, before: RunReport, file: str) -> RunReport:
    """The report with the comparison, and the verdict that follows from it."""
    return judged(msgspec.structs.replace(report, baseline=compare(report, before, file)))


@dataclass(frozen=True, slots=True)
class _Measure:
    name: str
    unit: str
    of: Callable[[RunReport], float | None]
    tolerance: Tolerance
    higher_is_worse: bool = True


def _measures(now: RunReport, before: RunReport) -> tuple[_Measure, ...]:
    def latency(name: str, rank: str) -> Callable[[RunReport], float | None]:
        def of(report: RunReport) -> float | None:
            values: Percentiles = getattr(report.latency_ms, name)
            value: float | None = getattr(values, rank)
            return value if values.count >= MIN_VALUES else None

        return of

    hosts_known = all(report.server.hosts_cpu_cores_per_call is not None for report in (now, before))

    def cost(name: str) -> Callable[[RunReport], float | None]:
        def of(report: RunReport) -> float | None:
            whole: float | None = getattr(report.server, name)
            hosts: float | None = getattr(report.server, f"hosts_{name}")
            return whole if whole is None or hosts_known else whole - (hosts or 0.0)  # like with like

        return of

    held = _Measure("calls held", "count", _held, COST, higher_is_worse=False)
    median = MEDIAN_OF_FAKE if now.fake_engines else MEDIAN
    if now.knee is not None and _other_load(now, before):
        return (held,)  # the rest was measured at other levels
    return (
        _Measure("goodput", "ratio", lambda report: report.goodput, GOODPUT, higher_is_worse=False),
        _Measure("late frames", "ratio", lambda report: report.late_frames_ratio, LATE_RATIO),
        _Measure("voice to voice p50", "ms", latency("voice_to_voice", "p50"), median),
        _Measure("voice to voice p95", "ms", latency("voice_to_voice", "p95"), LATENCY),
        _Measure("stop p95", "ms", latency("stop", "p95"), LATENCY),
        _Measure("talked on p95", "ms", latency("talked_on", "p95"), LATENCY),
        _Measure("setup p95", "ms", latency("setup", "p95"), LATENCY),
        _Measure("false barge-ins", "ratio", lambda report: report.false_barge_in_rate, RATE),
        _Measure("selectivity", "ratio", lambda report: report.selectivity.ratio, RATE, higher_is_worse=False),
        _Measure("turn taking", "ratio", lambda report: report.turn_taking.score, RATE, higher_is_worse=False),
        _Measure("estimated MOS p5", "MOS", lambda report: report.mos.p5, MOS, higher_is_worse=False),
        _Measure("foreign code words", "count", lambda report: float(report.cross_talk.foreign), NONE),
        _Measure("CPU a call", "cores", cost("cpu_cores_per_call"), COST),
        _Measure("memory a call", "bytes", cost("rss_bytes_per_call"), MEMORY),
        held,
    )


def _other_load(now: RunReport, before: RunReport) -> bool:
    this_up, was_up = now.calls.most_up, before.calls.most_up
    return abs(this_up - was_up) > OTHER_LOAD * max(this_up, was_up)


def _held(report: RunReport) -> float | None:
    return None if report.knee is None else float(report.knee.held)


def _line(now: RunReport, before: RunReport, measure: _Measure) -> BaselineLine:
    was, this = measure.of(before), measure.of(now)
    allowed = None if was is None else measure.tolerance.allowed(was, higher_is_worse=measure.higher_is_worse)
    regressed = False
    if allowed is not None and this is not None:
        regressed = this > allowed if measure.higher_is_worse else this < allowed
    return BaselineLine(
        name=measure.name,
        unit=measure.unit,
        before=was,
        now=this,
        allowed=None if this is None else allowed,
        regressed=regressed,
    )


def _vanished(line: BaselineLine) -> bool:
    return line.before is not None and line.now is None


def _hard_differences(now: RunReport, before: RunReport) -> list[str]:
    """What makes two runs incomparable."""
    pairs = (
        ("scenario", now.scenario, before.scenario),
        ("transports", ", ".join(now.transports), ", ".join(before.transports)),
        ("scripted engines", now.fake_engines, before.fake_engines),
        ("cores", now.machine.cores, before.machine.cores),
        ("processor", now.machine.processor, before.machine.processor),
        ("system", now.machine.system.partition(" ")[0], before.machine.system.partition(" ")[0]),
    )
    differences = [_difference(name, this, was) for name, this, was in pairs if this != was]
    if (now.knee is None) != (before.knee is None):
        climbed, not_climbed = (
            ("this run", "the run before") if now.knee is not None else ("the run before", "this run")
        )
        differences.append(f"{climbed} climbed to what is held, {not_climbed} did not")
    elif now.knee is None and _other_load(now, before):
        differences.append(_difference("calls at once", now.calls.most_up, before.calls.most_up))
    if now.void:
        differences.append("this run is void")
    if before.void:
        differences.append("the run before is void")
    return differences


def _soft_differences(now: RunReport, before: RunReport) -> list[str]:
    """What a reader should know of two runs that are compared."""
    pairs = [
        ("seed", now.seed, before.seed),
        ("Python", now.machine.python, before.machine.python),
        *((name, now.server.info.get(name), before.server.info.get(name)) for name in _SERVER_LABELS),
    ]
    differences = [_difference(name, this, was) for name, this, was in pairs if this != was]
    counted = min(report.latency_ms.voice_to_voice.count for report in (now, before))
    if counted < MIN_VALUES:
        differences.append(f"voice to voice: of {counted} answers no percentile is compared, it takes {MIN_VALUES}")
    if before.interrupted:
        differences.append("the run before was interrupted")
    if any((machine.load_before or 0.0) > machine.cores / 2 for machine in (now.machine, before.machine)):
        differences.append("the machine was busy before one of the runs")
    return differences


def _difference(name: str, now: object, before: object) -> str:
    this, was = ("unknown" if value in (None, "") else value for value in (now, before))
    return f"{name}: {this} now, {was} before"
