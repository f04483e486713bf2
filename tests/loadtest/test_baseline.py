from __future__ import annotations

import msgspec
import pytest

from loadtest.baseline import compare, with_baseline
from loadtest.readings import Machine, ServerReport
from loadtest.run_report import (
    CallCounts,
    CrossTalk,
    Knee,
    Latencies,
    Mos,
    Percentiles,
    RunReport,
    Verdict,
    from_json,
    to_json,
)

MACHINE = Machine(cores=2, system="Linux 6.1", processor="a processor", python="3.11.7", load_before=0.2)


def run(**changes: object) -> RunReport:
    ordinary = RunReport(
        verdict=Verdict.GOOD,
        scenario="talk",
        seed=1,
        transports=("websocket",),
        started_at="2026-11-30T10:00:00+00:00",
        length_s=60.0,
        machine=MACHINE,
        goodput=1.0,
        faultless=1.0,
        late_frames_ratio=0.0002,
        calls=CallCounts(offered=100, good=100, most_up=20),
        latency_ms=latency(700.0, 900.0),
        mos=Mos(count=100, p5=4.3),
        fake_engines=True,
        server=ServerReport(cpu_cores_per_call=0.004, rss_bytes_per_call=400e3),
    )
    return msgspec.structs.replace(ordinary, **changes)


def latency(p50: float, p95: float, count: int = 300) -> Latencies:
    return Latencies(voice_to_voice=Percentiles(count=count, p50=p50, p90=p95, p95=p95, p99=p95, max=p95))


def regressions(now: RunReport, before: RunReport | None = None) -> list[str]:
    return [line.name for line in compare(now, before or run(), "before.json").lines if line.regressed]


def test_the_same_again_is_no_regression() -> None:
    found = compare(run(), run(), "before.json")
    assert (found.comparable, found.regressed, found.differences) == (True, False, ())
    assert (found.file, found.at) == ("before.json", "2026-11-30T10:00:00+00:00")
    assert with_baseline(run(), run(), "before.json").verdict is Verdict.GOOD


@pytest.mark.parametrize(
    ("worse", "name", "still"),
    [
        ({"goodput": 0.98}, "goodput", {"goodput": 0.991}),
        ({"late_frames_ratio": 0.0009}, "late frames", {"late_frames_ratio": 0.0006}),
        ({"latency_ms": latency(700.0, 1_040.0)}, "voice to voice p95", {"latency_ms": latency(700.0, 1_030.0)}),
        ({"latency_ms": latency(730.0, 900.0)}, "voice to voice p50", {"latency_ms": latency(715.0, 900.0)}),
        ({"mos": Mos(count=1, p5=4.1)}, "estimated MOS p5", {"mos": Mos(count=1, p5=4.25)}),
        ({"cross_talk": CrossTalk(foreign=1)}, "foreign code words", {"cross_talk": CrossTalk(damaged=1)}),
        ({"false_barge_in_rate": 0.03}, "false barge-ins", {"false_barge_in_rate": 0.015}),
        (
            {"server": ServerReport(cpu_cores_per_call=0.0047)},
            "CPU a call",
            {"server": ServerReport(cpu_cores_per_call=0.0045)},
        ),
        (
            {"server": ServerReport(rss_bytes_per_call=470e3)},
            "memory a call",
            {"server": ServerReport(rss_bytes_per_call=450e3)},
        ),
    ],
)
def test_each_measure_has_its_tolerance(worse: dict[str, object], name: str, still: dict[str, object]) -> None:
    before = run(false_barge_in_rate=0.01)
    assert regressions(run(**worse), before) == [name]
    assert regressions(run(**still), before) == []
    verdict = with_baseline(run(**worse), before, "b.json")
    assert verdict.verdict is Verdict.NOT_GOOD
    assert name in verdict.reasons[-1]


def test_what_engine_hosts_cost_is_compared_with_a_run_that_was_told_of_them() -> None:
    whole = ServerReport(cpu_cores_per_call=0.054, hosts_cpu_cores_per_call=0.05, rss_bytes_per_call=400e3)
    assert regressions(run(server=whole)) == []
    worse = ServerReport(cpu_cores_per_call=0.064, hosts_cpu_cores_per_call=0.06, rss_bytes_per_call=400e3)
    assert regressions(run(server=worse), run(server=whole)) == ["CPU a call"]


def test_a_server_that_became_30_ms_later_is_caught_where_engines_are_scripted() -> None:
    slower = run(latency_ms=latency(730.0, 930.0))
    assert regressions(slower) == ["voice to voice p50"]
    real = {"fake_engines": False}
    assert regressions(run(latency_ms=latency(730.0, 930.0), **real), run(**real)) == []


def test_better_is_no_regression() -> None:
    assert regressions(run(latency_ms=latency(100.0, 200.0), late_frames_ratio=0.0, mos=Mos(count=1, p5=4.4))) == []


def test_a_call_that_cost_no_memory_before_may_cost_a_little() -> None:
    """The server had grown to its size in an earlier run."""
    before = run(server=ServerReport(rss_bytes_per_call=0.0))
    assert regressions(run(server=ServerReport(rss_bytes_per_call=50e3)), before) == []
    assert regressions(run(server=ServerReport(rss_bytes_per_call=70e3)), before) == ["memory a call"]


def test_few_values_are_not_compared() -> None:
    found = compare(run(latency_ms=latency(5_000.0, 9_000.0, count=19)), run(), "b.json")
    line = next(line for line in found.lines if line.name == "voice to voice p95")
    assert (line.before, line.now, line.allowed, line.regressed) == (900, None, None, False)
    assert "voice to voice p95: not measured now" in found.differences
    few = run(latency_ms=latency(5_000.0, 9_000.0, count=19))
    assert compare(few, few, "b.json").differences == (
        "voice to voice: of 19 answers no percentile is compared, it takes 20",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scenario": "smoke"}, "scenario: smoke now, talk before"),
        ({"transports": ("sip",)}, "transports: sip now, websocket before"),
        ({"fake_engines": None}, "scripted engines: unknown now, True before"),
        ({"machine": msgspec.structs.replace(MACHINE, cores=64)}, "cores: 64 now, 2 before"),
        ({"machine": msgspec.structs.replace(MACHINE, processor="another")}, "processor"),
        ({"machine": msgspec.structs.replace(MACHINE, system="Darwin 24")}, "system: Darwin now, Linux before"),
        ({"calls": CallCounts(offered=100, most_up=30)}, "calls at once: 30 now, 20 before"),
        ({"void": True}, "this run is void"),
    ],
)
def test_what_is_not_the_same_is_not_compared_and_does_not_pass(change: dict[str, object], words: str) -> None:
    found = compare(run(**change), run(), "b.json")
    assert (found.comparable, found.lines) == (False, ())
    assert any(words in difference for difference in found.differences)
    refused = with_baseline(run(**change), run(), "b.json")
    assert refused.verdict is not Verdict.GOOD
    assert any("not comparable" in reason for reason in refused.reasons)


def test_a_void_run_is_nothing_to_compare_with() -> None:
    found = compare(run(), run(void=True), "b.json")
    assert (found.comparable, found.differences) == (False, ("the run before is void",))


def test_what_a_reader_should_know_is_said_of_runs_that_are_compared() -> None:
    busy = msgspec.structs.replace(MACHINE, load_before=1.9, python="3.13.0", system="Linux 6.12")
    found = compare(
        run(seed=2, machine=busy, server=msgspec.structs.replace(run().server, info={"vad": "energy"})),
        run(interrupted=True),
        "b.json",
    )
    assert found.comparable
    assert found.differences == (
        "seed: 2 now, 1 before",
        "Python: 3.13.0 now, 3.11.7 before",
        "vad: energy now, unknown before",
        "the run before was interrupted",
        "the machine was busy before one of the runs",
    )


def test_a_climb_has_other_calls_at_once_and_is_compared_by_what_it_held() -> None:
    held_50 = run(knee=Knee(held=50), calls=CallCounts(most_up=50))
    held_100 = run(knee=Knee(held=100), calls=CallCounts(most_up=100), latency_ms=latency(5_000.0, 9_000.0))
    found = compare(held_100, held_50, "b.json")
    assert found.comparable
    assert [(line.name, line.before, line.now) for line in found.lines] == [("calls held", 50, 100)]
    assert regressions(held_100, held_50) == []
    assert regressions(held_50, held_100) == ["calls held"]
    assert regressions(run(knee=Knee(held=90)), run(knee=Knee(held=100))) == []
    assert regressions(run(knee=Knee(held=80)), run(knee=Knee(held=100))) == ["calls held"]


def test_climbs_to_the_same_level_are_compared_in_all() -> None:
    climbed = {"knee": Knee(held=20)}
    assert regressions(run(latency_ms=latency(5_000.0, 9_000.0), **climbed), run(**climbed)) != []


def test_a_climb_and_a_run_are_not_the_same() -> None:
    found = compare(run(knee=Knee(held=20)), run(), "b.json")
    assert found.differences == ("this run climbed to what is held, the run before did not",)
    found = compare(run(), run(knee=Knee(held=20)), "b.json")
    assert (found.comparable, found.differences) == (
        False,
        ("the run before climbed to what is held, this run did not",),
    )


def test_a_comparison_survives_the_document() -> None:
    report = with_baseline(run(goodput=0.5), run(), "b.json")
    assert from_json(to_json(report)) == report
