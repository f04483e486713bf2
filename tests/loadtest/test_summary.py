from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from loadtest.outcome import CallOutcome, Fate, TurnOutcome
from loadtest.readings import GeneratorReading, GeneratorReport, Machine, ServerReading, ServerReport
from loadtest.run_report import MAX_CALL_DETAILS, Baseline, Knee, RunReport, StageTimes, Verdict, from_json, to_json
from loadtest.summary import MAX_DETAIL_TURNS, WORST, RunFacts, judged, level_of, summarise
from tests.loadtest.recordings import Expect, outcome

READING = ServerReading(at_s=0.0, rss_bytes=100e6, threads=10.0, fds=30.0, tasks=40.0, calls_live=0.0)


@dataclass
class Told:
    """What became known in a run: a quiet generator, a server that tells of itself."""

    outcomes: Sequence[CallOutcome] = ()
    server: ServerReport = field(default_factory=ServerReport)
    stages_s: Mapping[str, Mapping[float, float]] = field(default_factory=dict)
    send_late_s: Mapping[float, float] = field(default_factory=dict)
    generators: tuple[GeneratorReport, ...] = (GeneratorReport(process=0, p99_ms=1.5, worst_ms=9.0),)
    generator_readings: tuple[GeneratorReading, ...] = ()
    stages: Mapping[int, tuple[StageTimes, ...]] = field(default_factory=dict)
    base_before: ServerReading | None = None
    base_after: ServerReading | None = None
    settled_s: float = 0.0
    void_reasons: Sequence[str] = ()
    notes: Sequence[str] = ()
    length_s: float = 60.0
    interrupted: bool = False
    broken_off: str | None = None


def good(count: int) -> list[CallOutcome]:
    return [outcome(number) for number in range(count)]


def report(
    outcomes: Sequence[CallOutcome],
    expect: Expect | None = None,
    steady: tuple[float, float] | None = None,
    **told: object,
) -> RunReport:
    facts = RunFacts(
        scenario="talk",
        seed=3,
        started_at="2026-11-30T10:00:00+00:00",
        machine=Machine(cores=2),
        expect=expect or Expect(),
        steady=steady,
    )
    return summarise(facts, Told(outcomes, **told))  # type: ignore[arg-type]


def test_a_good_run() -> None:
    run = report(good(20))
    assert (run.verdict, run.reasons, run.void) == (Verdict.GOOD, (), False)
    assert (run.goodput, run.late_frames_ratio, run.fake_engines) == (1.0, 0.0, None)
    assert run.expect["answer_within_ms"] == 1_500
    assert from_json(to_json(run)) == run


def test_one_bad_call_in_a_hundred_is_good_enough_and_two_are_not() -> None:
    one = [*good(99), outcome(99, faults=("no_answer",))]
    assert report(one).verdict is Verdict.GOOD
    two = report([*one[1:], outcome(100, faults=("no_answer", "dropped"))])
    assert two.verdict is Verdict.NOT_GOOD
    assert two.reasons == ("goodput is 98.0%, below 99%",)
    assert two.faults == {"no_answer": 2, "dropped": 1}


@pytest.mark.parametrize(("offered_s", "void"), [(50.0, True), (89.0, True), (90.0, False)])
def test_callers_that_nothing_tells_apart_void_the_run(offered_s: float, *, void: bool) -> None:
    said = (TurnOutcome(kind="say", at_s=1.0, in_call_ms=500.0, code="word"),)
    run = report(
        [
            outcome(0, offered_s=0.0, ended_s=60.0, turns=said),
            outcome(1, offered_s=offered_s, ended_s=offered_s + 1.0, turns=said),
        ]
    )
    assert (run.verdict is Verdict.VOID) == void
    assert [reason for reason in run.void_reasons if "code word" in reason] == list(run.void_reasons)
    assert run.cross_talk.reused_after_s == offered_s - 60.0


def test_a_late_generator_voids_the_run_however_bad_the_server_was() -> None:
    late = (GeneratorReport(process=0, p99_ms=1.0), GeneratorReport(process=1, p99_ms=5.1, worst_ms=70.0))
    run = report([outcome(0, faults=("late_frames",))], generators=late)
    assert (run.verdict, run.void) == (Verdict.VOID, True)
    assert run.void_reasons == ("generator 1 was late itself: p99 5.1 ms, above 5 ms",)
    assert (run.lateness.generator_p99_ms, run.lateness.generator_worst_ms) == (5.1, 70.0)
    broken = report(good(5), void_reasons=["generator 0 died"])
    assert broken.verdict is Verdict.VOID


def test_late_frames_over_the_whole_run() -> None:
    few = report([outcome(n, frames_due=1_000, frames_late=n % 2) for n in range(100)])
    assert few.late_frames_ratio == pytest.approx(0.0005)
    assert few.verdict is Verdict.GOOD
    many = report([outcome(n, frames_due=1_000, frames_late=1) for n in range(100)])
    assert many.reasons == ("0.10% of frames were late, 0.10% or more",)
    impaired = report([outcome(n, frames_due=1_000, frames_late=1) for n in range(100)], Expect(max_late_share=0.02))
    assert impaired.verdict is Verdict.GOOD
    any_number = report([outcome(n, frames_due=10, frames_late=5) for n in range(100)], Expect(max_late_share=None))
    assert (any_number.late_frames_ratio, any_number.verdict) == (0.5, Verdict.GOOD)


def test_a_foreign_word_at_any_level_spoils_a_climb() -> None:
    """The report is that of the largest level held, which may be another."""
    mixed = report([*good(199), outcome(199, foreign_codes=("someone",), faults=("foreign_code",))])
    levels = (level_of(mixed, 50, held=False), level_of(report(good(40)), 40, held=True))
    climbed = judged(msgspec.structs.replace(report(good(40)), knee=Knee(held=40, broke=50, levels=levels)))
    assert climbed.verdict is Verdict.NOT_GOOD
    assert climbed.reasons == ("callers heard code words of others at 50 calls",)


def test_one_foreign_word_spoils_a_run_of_thousands() -> None:
    run = report([*good(500), outcome(500, foreign_codes=("someone",), faults=("foreign_code",))])
    assert run.verdict is Verdict.NOT_GOOD
    assert run.cross_talk.calls == (500,)


def test_allowed_refusals_are_no_fault_and_no_goodput() -> None:
    refused = [outcome(n, fate=Fate.REFUSED, answered_s=None, setup_ms=3.0) for n in range(50, 100)]
    run = report([*good(50), *refused], Expect(refused_ok=True))
    assert (run.goodput, run.faultless, run.verdict) == (0.5, 1.0, Verdict.GOOD)
    assert run.latency_ms.refusal.p95 == 3
    none = report(refused, Expect(refused_ok=True))
    assert none.verdict is Verdict.NOT_GOOD
    assert none.reasons == ("every call was refused: none was served",)


def test_a_run_that_broke_off_says_so_first_and_is_not_good() -> None:
    made = report([outcome(0, faults=("failed",))], broken_off="no call came about")
    assert made.verdict is Verdict.NOT_GOOD
    assert made.broken_off == made.reasons[0] == "no call came about"


def test_an_interrupted_run_is_told_apart_from_a_good_one() -> None:
    assert report(good(5), interrupted=True).verdict is Verdict.INTERRUPTED
    cut = [outcome(n, fate=Fate.ABANDONED) for n in range(5)]
    assert report(cut, interrupted=True).verdict is Verdict.INTERRUPTED
    assert report(cut).verdict is Verdict.NOT_GOOD
    assert report([outcome(0, faults=("dropped",))], interrupted=True).verdict is Verdict.NOT_GOOD
    assert report([]).reasons == ("no call was offered",)


def test_what_a_call_costs_the_server() -> None:
    calls = [outcome(n, answered_s=10.0, ended_s=20.0) for n in range(10)]
    readings = tuple(
        ServerReading(at_s=float(s), cpu_cores=0.3 if 10 <= s < 20 else 0.05, rss_bytes=100e6 + 5e6 * (s > 12))
        for s in range(30)
    )
    server = ServerReport(info={"fake": "true", "preset": "null"}, readings=readings)
    run = report(calls, server=server, base_before=READING, base_after=READING)
    assert run.server.cpu_cores_per_call == pytest.approx(0.03)
    assert run.server.rss_bytes_per_call == pytest.approx(0.5e6)
    assert run.fake_engines is True
    assert run.server.hosts_cpu_cores_per_call is None
    hosts = tuple(
        msgspec.structs.replace(
            reading, hosts_cpu_cores=0.5 if 10 <= reading.at_s < 20 else 0.0, hosts_rss_bytes=3e9 + 1e6 * reading.at_s
        )
        for reading in readings
    )
    before = msgspec.structs.replace(READING, hosts_rss_bytes=3e9)
    run = report(calls, server=msgspec.structs.replace(server, readings=hosts), base_before=before, base_after=READING)
    assert run.server.cpu_cores_per_call == pytest.approx(0.08)
    assert run.server.hosts_cpu_cores_per_call == pytest.approx(0.05)
    assert run.server.rss_bytes_per_call == pytest.approx(3.4e6)
    assert run.server.hosts_rss_bytes_per_call == pytest.approx(2.9e6)
    unknown = report(calls)
    assert (unknown.server.cpu_cores_per_call, unknown.server.rss_bytes_per_call) == (None, None)


def test_histograms_of_the_server_stand_beside_the_callers_times() -> None:
    run = report(
        good(1),
        stages_s={"decision": {0.1: 10.0, math.inf: 10.0}, "first_token": {}},
        send_late_s={0.005: 90.0, 0.02: 100.0, math.inf: 100.0},
    )
    assert (run.stages_ms["decision"].count, run.stages_ms["decision"].max) == (10, 100)
    assert run.stages_ms["first_token"].count == 0
    assert run.lateness.server_send is not None
    assert run.lateness.server_send.p90 == pytest.approx(5)


@pytest.mark.parametrize(
    ("grown", "back"),
    [
        ({}, True),
        ({"threads": 12.0, "fds": 2.0, "rss_bytes": 9e6}, True),
        ({"tasks": 1.0}, False),
        ({"fds": 3.0}, False),
        ({"threads": 200.0}, False),
        ({"calls_live": 1.0}, False),
    ],
)
def test_back_to_base(grown: dict[str, float], back: bool) -> None:
    after = msgspec.structs.replace(READING, **{name: getattr(READING, name) + by for name, by in grown.items()})
    run = report(good(5), base_before=READING, base_after=after, settled_s=4.0)
    assert run.base is not None
    assert (run.base.back, run.base.settled_s) == (back, 4.0)
    assert run.base.grown == {"rss_bytes": 0, "threads": 0, "fds": 0, "tasks": 0, "calls_live": 0} | grown
    assert run.verdict is (Verdict.GOOD if back else Verdict.NOT_GOOD)


def test_a_server_that_tells_nothing_has_no_base_to_come_back_to() -> None:
    assert report(good(5)).base is None
    silent = report(good(5), base_before=ServerReading(at_s=0.0), base_after=ServerReading(at_s=9.0))
    assert silent.base is not None
    assert (silent.base.back, silent.verdict) == (None, Verdict.GOOD)


def test_growth_in_the_steady_part_is_no_good_run() -> None:
    readings = tuple(ServerReading(at_s=float(s), tasks=40.0 + s / 4) for s in range(600))
    run = report(good(5), steady=(60.0, 600.0), server=ServerReport(readings=readings), length_s=600.0)
    assert run.slopes["tasks"].flat is False
    assert run.reasons == ("tasks grows by 900.0 count an hour",)
    assert report(good(5), server=ServerReport(readings=readings)).slopes == {}


def test_details_are_of_the_worst_and_of_a_sample_and_bounded() -> None:
    turns = tuple(TurnOutcome(kind="say", at_s=1.0, in_call_ms=1.0) for _ in range(500))
    calls = [outcome(n, turns=turns if n == 777 else ()) for n in range(1_000)]
    calls[500] = outcome(500, faults=("dropped",), fate=Fate.DROPPED)
    calls[600] = outcome(600, recording="call-600.wav")
    run = report(calls, stages={600: (StageTimes(final_ms=300.0),)})
    assert len(run.calls_detail) == MAX_CALL_DETAILS
    worst = run.calls_detail[:WORST]
    assert all(detail.worst for detail in worst)
    assert not any(detail.worst for detail in run.calls_detail[WORST:])
    assert worst[0].outcome.number in (500, 777)
    assert {500, 600, 777} <= {detail.outcome.number for detail in worst}
    stages = {detail.outcome.number: detail.stages for detail in worst}
    assert stages[600] == (StageTimes(final_ms=300.0),)
    assert max(len(detail.outcome.turns) for detail in run.calls_detail) == MAX_DETAIL_TURNS


def test_a_comparison_weighs_in_the_verdict() -> None:
    run = report(good(20))
    apart = Baseline(file="b.json", comparable=False, differences=("scenario: talk now, smoke before",))
    refused = judged(msgspec.structs.replace(run, baseline=apart))
    assert refused.verdict is Verdict.NOT_GOOD
    assert "scenario" in refused.reasons[0]
    fine = Baseline(file="b.json", comparable=True)
    assert judged(msgspec.structs.replace(run, baseline=fine)).verdict is Verdict.GOOD


def test_a_level_of_a_climb() -> None:
    calls = [outcome(n, answered_s=1.0, ended_s=30.0) for n in range(8)]
    readings = tuple(
        ServerReading(
            at_s=float(s), cpu_cores=0.8 if s > 5 else 0.1, calls_live=8.0 if s > 5 else 2.0, rss_bytes=1e6 * s
        )
        for s in range(20)
    )
    level = level_of(report(calls, server=ServerReport(readings=readings)), 8, held=True, tries=2)
    assert (level.calls, level.held, level.tries, level.goodput) == (8, True, 2, 1.0)
    assert level.server_cpu_cores == pytest.approx(0.8)
    assert level.server_rss_bytes == 19e6
    assert level.generator_p99_ms == 1.5
