"""From everything that became known in a run to its report, and to the verdict. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from loadtest.call_totals import (
    call_counts,
    cross_talk,
    faultless,
    goodput,
    latencies,
    media_totals,
    mos_of,
    problems_of,
    selectivity,
    spoilt_by_callers,
    turn_taking,
)
from loadtest.code_pool import REST_S
from loadtest.measured_call import Expectations, badness
from loadtest.outcome import CallOutcome, Fault
from loadtest.percentiles import percentiles_of_histogram
from loadtest.readings import Base, GeneratorReading, GeneratorReport, Machine, ServerReading, ServerReport
from loadtest.run_options import VOID_P99_MS
from loadtest.run_report import (
    MAX_CALL_DETAILS,
    CallDetail,
    CrossTalk,
    Lateness,
    Level,
    RunReport,
    StageTimes,
    Verdict,
)
from loadtest.slopes import slopes_of
from loadtest.timeline import BOUNDS_MS, Ups, step_s, timeline_of, turn_points

GOODPUT = 0.99
LATE_RATIO = 0.001

STOOD_STILL_MS = 100.0
"""A caller that was later than this once may have made its call's faults itself."""

WORST = 60
"""Of the calls that are told in full; the others are a sample."""
MAX_DETAIL_TURNS = 200

POOL_THREADS = 16
"""Thread pools grow to their size by need and never shrink: so many more threads are no leak."""
SPARE_FDS = 2
"""Connections of whoever reads the metrics."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was decided before the run. ``steady`` are the seconds between which all callers were to be up: slopes are
    taken there; None: of this run none."""

    scenario: str
    seed: int
    started_at: str
    machine: Machine
    expect: Expectations
    about: str = ""
    url: str = ""
    transports: tuple[str, ...] = ()
    options: dict[str, str | int | float | bool | None] = field(default_factory=dict)
    steady: tuple[float, float] | None = None
    void_p99_ms: float = VOID_P99_MS


class Record(Protocol):
    """What became known in the run (:class:`loadtest.run.RunRecord`). Histograms are counts of values up to each bound
    in seconds, of this run alone."""

    @property
    def outcomes(self) -> Sequence[CallOutcome]: ...
    @property
    def server(self) -> ServerReport: ...
    @property
    def stages_s(self) -> Mapping[str, Mapping[float, float]]: ...
    @property
    def send_late_s(self) -> Mapping[float, float]: ...
    @property
    def generators(self) -> tuple[GeneratorReport, ...]: ...
    @property
    def generator_readings(self) -> tuple[GeneratorReading, ...]: ...
    @property
    def stages(self) -> Mapping[int, tuple[StageTimes, ...]]: ...
    @property
    def base_before(self) -> ServerReading | None: ...
    @property
    def base_after(self) -> ServerReading | None: ...
    @property
    def settled_s(self) -> float: ...
    @property
    def void_reasons(self) -> Sequence[str]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def length_s(self) -> float: ...
    @property
    def interrupted(self) -> bool: ...
    @property
    def broken_off(self) -> str | None: ...


def summarise(facts: RunFacts, record: Record) -> RunReport:
    """The report, verdict included; what a comparison with a baseline says comes on top
    (:func:`loadtest.baseline.with_baseline`)."""
    outcomes = sorted(record.outcomes, key=lambda outcome: outcome.number)
    ups = Ups(outcomes)
    media = media_totals(outcomes)
    counts = call_counts(outcomes, ups.most)
    points = turn_points(outcomes, ups)
    false_stops, replies = sum(o.false_stops for o in outcomes), sum(o.replies for o in outcomes)
    fake = record.server.info.get("fake")
    talk = cross_talk(outcomes)
    late_most = late_limit(_expected(facts.expect))
    spoilt = spoilt_by_callers(
        outcomes, max(STOOD_STILL_MS, facts.void_p99_ms), GOODPUT, 1.0 if late_most is None else late_most
    )
    report = RunReport(
        verdict=Verdict.GOOD,
        void_reasons=(
            *record.void_reasons,
            *_late_generators(record.generators, facts.void_p99_ms),
            *([spoilt] if spoilt is not None else []),
            *_mistakable(talk),
        ),
        fake_engines=None if fake is None else fake == "true",
        notes=tuple(record.notes),
        scenario=facts.scenario,
        about=facts.about,
        seed=facts.seed,
        url=facts.url,
        transports=facts.transports,
        options=facts.options,
        expect=_expected(facts.expect),
        started_at=facts.started_at,
        length_s=round(record.length_s, 1),
        interrupted=record.interrupted,
        broken_off=record.broken_off,
        machine=facts.machine,
        goodput=goodput(outcomes),
        faultless=faultless(outcomes),
        late_frames_ratio=media.late / media.due if media.due else None,
        calls=counts,
        latency_ms=latencies(outcomes),
        stages_ms={name: percentiles_of_histogram(buckets) for name, buckets in record.stages_s.items()},
        lateness=_lateness(record),
        media=media,
        false_barge_in_rate=false_stops / replies if replies else None,
        false_barge_ins=false_stops,
        replies=replies,
        selectivity=selectivity(outcomes),
        turn_taking=turn_taking(outcomes),
        mos=mos_of(outcomes),
        cross_talk=talk,
        faults=dict(Counter(fault for outcome in outcomes for fault in outcome.faults).most_common()),
        end_causes=dict(Counter(outcome.end_cause for outcome in outcomes).most_common()),
        problems=problems_of(outcomes),
        generators=record.generators,
        generator_readings=record.generator_readings,
        server=_server(record, ups),
        timeline_step_s=step_s(record.length_s),
        timeline_bounds_ms=BOUNDS_MS,
        timeline=timeline_of(outcomes, ups, record.length_s),
        turns=points,
        calls_detail=_details(outcomes, record.stages),
        slopes={}
        if facts.steady is None
        else slopes_of(record.server.readings, [(p.at_s, p.voice_to_voice_ms) for p in points], facts.steady),
        base=_base(record),
    )
    return judged(report)


def judged(report: RunReport) -> RunReport:
    """The report with the verdict that its numbers deserve, its knee and its comparison included."""
    reasons = tuple(_reasons(report))
    void = bool(report.void_reasons)
    verdict = Verdict.GOOD
    if void:
        verdict = Verdict.VOID
    elif reasons:
        verdict = Verdict.NOT_GOOD
    elif report.interrupted:
        verdict = Verdict.INTERRUPTED
    return msgspec.structs.replace(report, verdict=verdict, void=void, reasons=(*report.void_reasons, *reasons))


def level_of(report: RunReport, calls: int, *, held: bool, tries: int = 1) -> Level:
    """One step of a climb, from the report of its run."""
    steady = [reading for reading in report.server.readings if (reading.calls_live or 0) >= 0.9 * report.calls.most_up]
    cores = [used for reading in steady if (used := reading.all_cpu_cores) is not None]
    sizes = [size for reading in report.server.readings if (size := reading.all_rss_bytes) is not None]
    return Level(
        calls=calls,
        held=held,
        void=report.void,
        tries=tries,
        goodput=report.goodput,
        late_frames_ratio=report.late_frames_ratio,
        offered=report.calls.offered,
        good=report.calls.good,
        voice_to_voice=report.latency_ms.voice_to_voice,
        stop=report.latency_ms.stop,
        server_cpu_cores=sum(cores) / len(cores) if cores else None,
        server_rss_bytes=max(sizes, default=None),
        generator_p99_ms=report.lateness.generator_p99_ms,
        stages_ms=report.stages_ms,
        faults=report.faults,
    )


def _reasons(report: RunReport) -> list[str]:
    """Why a run is not good, for a person."""
    reasons: list[str] = [report.broken_off] if report.broken_off is not None else []
    if not report.calls.offered:
        return ["no call was offered"]
    may_refuse = bool(report.expect.get("refused_ok"))
    share, name = (report.faultless, "calls without a fault") if may_refuse else (report.goodput, "goodput")
    if share is not None and share < GOODPUT:
        reasons.append(f"{name} is {share:.1%}, below {GOODPUT:.0%}")
    if may_refuse and not report.calls.accepted:
        reasons.append("every call was refused: none was served")
    if share is None and not report.interrupted:
        reasons.append("no call was held to its end")
    allowed = late_limit(report.expect)
    if allowed is not None and report.late_frames_ratio is not None and report.late_frames_ratio >= allowed:
        reasons.append(f"{report.late_frames_ratio:.2%} of frames were late, {allowed:.2%} or more")
    if report.cross_talk.foreign:
        reasons.append(f"callers heard {report.cross_talk.foreign} code words of other callers")
    mixed = [level.calls for level in report.knee.levels if level.faults.get(Fault.FOREIGN_CODE)] if report.knee else []
    if mixed:
        reasons.append(f"callers heard code words of others at {', '.join(map(str, mixed))} calls")
    for name, slope in report.slopes.items():
        if slope.flat is False:
            reasons.append(f"{name} grows by {slope.per_hour:,.1f} {slope.unit} an hour")
    if report.base is not None and report.base.back is False:
        grown = ", ".join(f"{name} {value:+,.0f}" for name, value in report.base.grown.items() if name != "rss_bytes")
        reasons.append(f"the server did not come back to where it was: {grown}")
    if report.baseline is not None and not report.baseline.comparable:
        reasons.append(f"not comparable with the baseline: {'; '.join(report.baseline.differences)}")
    if report.baseline is not None and report.baseline.regressed:
        worse = ", ".join(line.name for line in report.baseline.lines if line.regressed)
        reasons.append(f"worse than the baseline: {worse}")
    return reasons


def _expected(expect: Expectations) -> dict[str, float | bool]:
    names = (
        "answer_within_ms",
        "stop_within_ms",
        "setup_within_ms",
        "max_late_share",
        "codes",
        "refused_ok",
        "agent_ends",
    )
    return {name: value for name in names if (value := getattr(expect, name)) is not None}


def late_limit(expect: Mapping[str, float | bool]) -> float | None:
    """The share of late frames from which a run is not good; None where its scenario allows any (``max_late_share:
    null``)."""
    share = expect.get("max_late_share")
    return None if share is None else max(LATE_RATIO, float(share))


def _late_generators(generators: Sequence[GeneratorReport], limit_ms: float) -> list[str]:
    return [
        f"generator {each.process} was late itself: p99 {each.p99_ms:.1f} ms, above {limit_ms:.0f} ms"
        for each in generators
        if each.p99_ms is not None and each.p99_ms > limit_ms
    ]


def _mistakable(talk: CrossTalk) -> list[str]:
    """Callers that nothing told apart."""
    if talk.reused_after_s is None or talk.reused_after_s >= REST_S:
        return []
    return [f"a code word was a caller's less than {REST_S:.0f} s after it was another's: they can't be told apart"]


def _lateness(record: Record) -> Lateness:
    sent = percentiles_of_histogram(record.send_late_s)
    return Lateness(
        generator_p99_ms=max((g.p99_ms for g in record.generators if g.p99_ms is not None), default=None),
        generator_worst_ms=max((g.worst_ms for g in record.generators if g.worst_ms is not None), default=None),
        server_send=sent if sent.count else None,
    )


def _server(record: Record, ups: Ups) -> ServerReport:
    """With what a call costs it."""
    server = record.server
    readings, before = server.readings, record.base_before

    def cores(name: str) -> float | None:
        busy = [(used, up) for r in readings if (used := getattr(r, name)) is not None and (up := ups.at(r.at_s))]
        return sum(used for used, _ in busy) / sum(up for _, up in busy) if busy else None

    def grown(name: str) -> float | None:
        sizes = [size for reading in readings if (size := getattr(reading, name)) is not None]
        least = getattr(before, name) if before is not None else None
        return max(0.0, max(sizes) - least) / ups.most if sizes and ups.most and least else None

    return msgspec.structs.replace(
        server,
        cpu_cores_per_call=cores("all_cpu_cores"),
        rss_bytes_per_call=grown("all_rss_bytes"),
        hosts_cpu_cores_per_call=cores("hosts_cpu_cores"),
        hosts_rss_bytes_per_call=grown("hosts_rss_bytes"),
    )


def _details(outcomes: Sequence[CallOutcome], stages: Mapping[int, tuple[StageTimes, ...]]) -> tuple[CallDetail, ...]:
    """The worst calls (those with a fault, or a recording, and the slowest), then an even sample of the rest."""
    ranked = sorted(outcomes, key=lambda outcome: (outcome.recording is None, -badness(outcome)))
    worst = sorted(ranked[:WORST], key=badness, reverse=True)
    rest = sorted(ranked[WORST:], key=lambda outcome: outcome.number)
    room = MAX_CALL_DETAILS - WORST
    if len(rest) > room:
        rest = [rest[index * len(rest) // room] for index in range(room)]
    return tuple(
        CallDetail(
            outcome=msgspec.structs.replace(outcome, turns=outcome.turns[:MAX_DETAIL_TURNS]),
            badness=round(badness(outcome), 1),
            worst=index < len(worst),
            stages=stages.get(outcome.number, ()),
        )
        for index, outcome in enumerate((*worst, *rest))
    )


def _base(record: Record) -> Base | None:
    before, after = record.base_before, record.base_after
    if before is None or after is None:
        return None
    grown: dict[str, float] = {}
    for name in ("rss_bytes", "threads", "fds", "tasks", "calls_live"):
        was, now = getattr(before, name), getattr(after, name)
        if was is not None and now is not None:
            grown[name] = now - was
    spare = {"threads": POOL_THREADS, "fds": SPARE_FDS, "tasks": 0, "calls_live": 0}
    told = [grown[name] <= most for name, most in spare.items() if name in grown]
    return Base(before=before, after=after, settled_s=record.settled_s, grown=grown, back=all(told) if told else None)
