"""Made-up reports of runs for the page's tests: a large one, a tiny one, void, interrupted and hostile ones."""

from __future__ import annotations

import math
import random
import wave
from pathlib import Path

import numpy as np

from loadtest.outcome import CallOutcome, Fate, TurnOutcome
from loadtest.readings import Base, GeneratorReading, GeneratorReport, Machine, ServerReading, ServerReport, Slope
from loadtest.run_report import (
    Baseline,
    BaselineLine,
    CallCounts,
    CallDetail,
    CrossTalk,
    Knee,
    Latencies,
    Lateness,
    Level,
    MediaTotals,
    Mos,
    Percentiles,
    RunReport,
    Selectivity,
    StageTimes,
    TimelinePoint,
    TurnPoint,
    TurnTaking,
    Verdict,
)

RATE_HZ = 16_000
BOUNDS_MS = (100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 1000.0, 1200.0, 1500.0, 2000.0, 3000.0, 5000.0)
MACHINE = Machine(cores=2, system="Linux 6.8", processor="x86_64", python="3.12", load_before=0.1, load_after=1.9)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202e\x00 https://evil.example/x.js"


def percentiles(values: list[float]) -> Percentiles:
    ordered = sorted(values)
    if not ordered:
        return Percentiles()
    rank = {p: ordered[math.ceil(p / 100 * len(ordered)) - 1] for p in (50, 90, 95, 99)}
    return Percentiles(count=len(ordered), p50=rank[50], p90=rank[90], p95=rank[95], p99=rank[99], max=ordered[-1])


def write_recording(path: Path, seconds: float, turns: tuple[tuple[float, float, float, float], ...]) -> None:
    """``turns``: (caller from, to, agent from, to), in seconds. The caller's tone is low, the agent's high."""
    sides = np.zeros((int(seconds * RATE_HZ), 2))
    at = np.arange(len(sides)) / RATE_HZ
    syllables = 0.55 + 0.45 * np.sin(2 * np.pi * 4 * at)
    for caller_from, caller_to, agent_from, agent_to in turns:
        for side, begin, end, hertz in ((0, caller_from, caller_to, 180), (1, agent_from, agent_to, 320)):
            part = slice(int(begin * RATE_HZ), int(end * RATE_HZ))
            sides[part, side] = 9_000 * syllables[part] * np.sin(2 * np.pi * hertz * at[part])
    with wave.open(str(path), "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(RATE_HZ)
        out.writeframes(sides.astype("<i2").tobytes())


def worst_call(number: int, recording: str | None) -> CallDetail:
    turns = (
        TurnOutcome(
            kind="say", at_s=200.0, in_call_ms=1_000, text="My code word is badoke.", code="badoke",
            heard_codes=("badoke",), voice_to_voice_ms=640,
        ),
        TurnOutcome(
            kind="say", at_s=208.0, in_call_ms=8_500, text="Tell me more about it.", voice_to_voice_ms=2_340,
            late_frames=9
        ),
        TurnOutcome(
            kind="interrupt", at_s=214.0, in_call_ms=14_500, text="Wait, one moment please.", voice_to_voice_ms=710,
            stop_ms=620, talked_on_ms=400,
        ),
        TurnOutcome(kind="press", at_s=222.0, in_call_ms=21_000, text="1#", answer_expected=True),
    )  # fmt: skip
    call = CallOutcome(
        number=number, transport="websocket", fate=Fate.COMPLETED, offered_s=198.6, answered_s=198.7, ended_s=224.0,
        setup_ms=84, end_cause="hangup", call_id=f"sess_{number:08x}", turns=turns, frames_due=640, frames_late=9,
        underruns=2, gaps=1, longest_gap_ms=180, mos=3.9, caller_lag_ms=1.4,
        faults=("slow_answer", "slow_stop", "talked_on", "late_frames", "no_answer"), recording=recording,
    )  # fmt: skip
    stages = (
        StageTimes(
            decision_ms=320,
            final_ms=335,
            first_token_ms=420,
            first_clause_ms=470,
            first_audio_ms=540,
            first_sent_ms=545,
        ),
        StageTimes(decision_ms=510, final_ms=900, first_token_ms=1_600, first_audio_ms=2_200, first_sent_ms=2_260),
        StageTimes(decision_ms=340, final_ms=300, first_token_ms=410, first_audio_ms=600, first_sent_ms=612),
    )
    return CallDetail(outcome=call, badness=1_000.0 - number, worst=True, stages=stages)


RECORDED_TURNS = ((1.0, 3.0, 3.64, 8.0), (8.5, 10.0, 12.34, 15.12), (14.5, 16.0, 16.71, 20.5), (21.0, 21.4, 30.0, 30.0))


def large(folder: Path | None, seed: int = 7) -> RunReport:
    """2,000 calls in ten minutes, with a bad minute in the middle and recordings of its worst calls in ``folder``."""
    dice = random.Random(seed)
    length = 600
    timeline, turns, values = [], [], []
    for second in range(length):
        up = min(100, second // 2) if second < 570 else max(0, 100 - 4 * (second - 570))
        strained = 290 <= second < 340
        times = []
        for _ in range(dice.randint(0, 2 + up // 8)):
            times.append(dice.lognormvariate(math.log(900 if strained else 520), 0.45 if strained else 0.16))
            turns.append(TurnPoint(at_s=float(second), voice_to_voice_ms=times[-1], call=dice.randrange(2000), up=up))
        values += times
        buckets = [0] * (len(BOUNDS_MS) + 1)
        for value in times:
            buckets[sum(value > bound for bound in BOUNDS_MS)] += 1
        spread = percentiles(times)
        timeline.append(
            TimelinePoint(
                at_s=float(second), up=up, offered=4, refused=dice.randint(0, 3) if strained else 0, ended=3,
                bad=dice.randint(0, 2) if strained else 0, turns=len(times), p50_ms=spread.p50, p95_ms=spread.p95,
                max_ms=spread.max, late=dice.randint(0, 60) if strained else dice.choice((0, 0, 0, 0, 1)),
                buckets=tuple(buckets),
            )
        )  # fmt: skip
    readings = tuple(
        ServerReading(
            at_s=float(s), cpu_s=0.4 * s, cpu_cores=0.05 + 0.006 * timeline[s].up + dice.uniform(0, 0.05),
            rss_bytes=92e6 + 140e3 * timeline[s].up + 2e3 * s, threads=11, fds=24 + timeline[s].up,
            tasks=9 + 6 * timeline[s].up, loop_lag_ms=dice.uniform(0.1, 1.2) + (9 if 290 <= s < 340 else 0),
            calls_live=timeline[s].up, calls_refused=0, send_late_frames=0,
            utilisation=min(1.0, timeline[s].up / 130 + dice.uniform(0, 0.1)), queue_age_ms=dice.uniform(0, 12),
        )
        for s in range(length)
    )  # fmt: skip
    generators = tuple(
        GeneratorReading(
            at_s=float(s), up=timeline[s].up, cpu_cores=0.02 + 0.003 * timeline[s].up, p99_ms=dice.uniform(0.2, 0.9),
            worst_ms=dice.uniform(1, 6),
        )
        for s in range(length)
    )  # fmt: skip
    calls = []
    for number in range(9):
        name = f"call-{number}.wav"
        if folder is not None:
            write_recording(folder / name, 24.0, RECORDED_TURNS)
        calls.append(worst_call(417 + number, name if folder is not None else None))
    stage = {
        "decision": (300, 340, 410, 520), "final": (310, 360, 480, 700), "first_token": (390, 460, 720, 1_100),
        "first_audio": (480, 580, 900, 1_500), "first_sent": (486, 590, 930, 1_540),
    }  # fmt: skip
    return RunReport(
        verdict=Verdict.NOT_GOOD,
        reasons=(
            "goodput is 97.65 %, below 99 %: 47 of 2,000 calls were not good",
            "late frames are 0.210 %, above 0.1 %",
            "worse than the baseline: voice to voice p95",
        ),
        fake_engines=True,
        notes=("no Piper voice was found: the callers speak with the shipped lines", "two scrapes of /metrics failed"),
        scenario="interrupters",
        about="Callers who talk for a minute, interrupt every third answer, and murmur now and then.",
        seed=7,
        url="ws://127.0.0.1:8080/v1/realtime?agent=sales",
        transports=("websocket", "twilio"),
        options={"calls": 100, "ramp_s": 200, "for_s": 600, "processes": 2, "key": True, "baseline": "yesterday.json"},
        expect={"answer_within_ms": 1500, "stop_within_ms": 500, "setup_within_ms": 1000, "max_late_share": 0.001},
        started_at="2026-03-04T09:30:00Z",
        length_s=600.4,
        machine=MACHINE,
        goodput=0.9765,
        late_frames_ratio=0.0021,
        calls=CallCounts(
            offered=2000, accepted=1981, completed=1971, refused=12, failed=7, dropped=3, abandoned=2, left=5,
            good=1953, most_up=100,
        ),
        latency_ms=Latencies(
            voice_to_voice=percentiles(values),
            stop=percentiles([dice.gauss(230, 40) for _ in range(600)]),
            talked_on=percentiles([400.0, 380.0, 90.0]),
            setup=percentiles([dice.lognormvariate(math.log(70), 0.4) for _ in range(1981)]),
            refusal=percentiles([dice.uniform(3, 30) for _ in range(12)]),
        ),
        stages_ms={
            name: Percentiles(count=6100, p50=a, p90=b, p95=b + 30, p99=c, max=d)
            for name, (a, b, c, d) in stage.items()
        },
        lateness=Lateness(
            generator_p99_ms=0.8,
            generator_worst_ms=6.1,
            server_send=Percentiles(count=1_240_000, p50=0.2, p90=0.4, p95=0.6, p99=2.2, max=31),
        ),
        media=MediaTotals(due=1_242_118, late=2_608, lost=41, underruns=310, gaps=92, longest_gap_ms=640),
        false_barge_in_rate=0.0008,
        false_barge_ins=5,
        replies=6_204,
        selectivity=Selectivity(ratio=0.942, went_on=180, of=191),
        turn_taking=TurnTaking(score=0.9, turns=6_204, early=200, on_time=5_800, late=198, silent=6),
        mos=Mos(count=1981, p50=4.36, p10=4.2, p5=4.02, min=3.1),
        cross_talk=CrossTalk(calls_checked=1981, turns_checked=6_204, own=6_198, lost=6, foreign=0, damaged=2),
        faults={"late_frames": 21, "slow_answer": 14, "refused": 12, "failed": 7, "dropped": 3, "slow_stop": 2,
                "talked_on": 3},
        end_causes={"hangup": 1971, "busy": 12, "no_session": 7, "connection_lost": 3},
        problems={"the server closed the connection: 1013 at capacity": 12, "no session within 10 s": 7},
        generators=(
            GeneratorReport(
                process=0, calls=1000, most_up=50, cpu_cores=0.18, cpu_cores_max=0.31, p99_ms=0.8, worst_ms=6.1,
                ticks=150_000
            ),
            GeneratorReport(
                process=1, calls=1000, most_up=50, cpu_cores=0.17, cpu_cores_max=0.3, p99_ms=0.7, worst_ms=4.9,
                ticks=150_000
            ),
        ),
        generator_readings=generators,
        server=ServerReport(
            info={"version": "0.6.0", "preset": "null", "vad": "silero", "fake": "true"},
            metrics_url="http://127.0.0.1:8080/metrics",
            readings=readings,
            cpu_cores_per_call=0.0061,
            rss_bytes_per_call=151_000,
            scrapes_failed=2,
        ),
        timeline_step_s=1.0,
        timeline_bounds_ms=BOUNDS_MS,
        timeline=tuple(timeline),
        turns=tuple(turns),
        calls_detail=tuple(calls),
        knee=knee(),
        slopes={
            "rss_bytes": Slope(
                unit="bytes", per_hour=7.2e6, samples=540, from_s=60, to_s=600, first=106e6, last=107e6,
                uncertainty_per_hour=2e5, allowed_per_hour=4e6, flat=False,
            ),
            "fds": Slope(unit="count", per_hour=0.1, samples=540, from_s=60, to_s=600, first=124, last=124, flat=True),
            "voice_to_voice_ms": Slope(unit="ms", per_hour=3.0, samples=90, from_s=60, to_s=600, first=520, last=521),
        },
        base=Base(
            before=ServerReading(at_s=-1, rss_bytes=92e6, threads=11, fds=24, tasks=9, calls_live=0),
            after=ServerReading(at_s=610, rss_bytes=93.1e6, threads=11, fds=24, tasks=9, calls_live=0),
            settled_s=5.0,
            grown={"rss_bytes": 1.1e6, "threads": 0, "fds": 0, "tasks": 0, "calls_live": 0},
            back=True,
        ),
        baseline=Baseline(
            file="yesterday.json",
            at="2026-03-03T09:30:00Z",
            comparable=True,
            differences=("the machine's load before was 0.1, and is 1.3 now",),
            regressed=True,
            lines=(
                BaselineLine(name="goodput", unit="ratio", before=0.995, now=0.9765, allowed=0.985, regressed=True),
                BaselineLine(name="voice to voice p95", unit="ms", before=610, now=790, allowed=701.5, regressed=True),
                BaselineLine(name="memory a call", unit="bytes", before=1.6e5, now=1.5e5, allowed=1.84e5,
                regressed=False),
            ),
        ),
    )  # fmt: skip


def knee() -> Knee:
    def level(calls: int, held: bool, goodput: float, p95: float, *, void: bool = False) -> Level:
        times = Percentiles(count=calls * 12, p50=p95 * 0.8, p90=p95 * 0.97, p95=p95, p99=p95 * 1.4, max=p95 * 2)
        stages = {
            "decision": Percentiles(count=calls * 12, p50=300, p95=330 + calls / 8, max=500),
            "final": Percentiles(count=calls * 12, p50=310, p95=350 + calls / 4, max=900),
            "first_token": Percentiles(count=calls * 12, p50=340, p95=420 + calls / 2, max=1_500),
            "first_audio": Percentiles(count=calls * 12, p50=480, p95=p95 - 40, max=2_500),
        }
        return Level(
            calls=calls, held=held, void=void, goodput=goodput, late_frames_ratio=0.0001 if held else 0.012,
            offered=calls * 3, good=int(calls * 3 * goodput), voice_to_voice=times, stop=times,
            server_cpu_cores=0.05 + 0.0061 * calls, server_rss_bytes=92e6 + 151e3 * calls, generator_p99_ms=0.6,
            stages_ms=stages, faults={} if held else {"late_frames": calls // 4, "slow_answer": calls // 9},
        )  # fmt: skip

    levels = (
        level(10, True, 1.0, 540), level(20, True, 1.0, 545), level(40, True, 1.0, 560), level(80, True, 0.998, 610),
        level(160, False, 0.71, 2_400), level(120, True, 0.993, 720), level(140, False, 0.95, 1_300),
    )  # fmt: skip
    return Knee(held=120, broke=140, levels=levels, stopped_by="140 and 120 lie within 20 % of each other.")


def smoke() -> RunReport:
    """One good call."""
    turn = TurnOutcome(kind="say", at_s=1.2, in_call_ms=900, text="Hello.", voice_to_voice_ms=431.0)
    call = CallOutcome(
        number=0, transport="sip", fate=Fate.COMPLETED, offered_s=0.0, answered_s=0.1, ended_s=6.1, setup_ms=95.0,
        end_cause="hangup", turns=(turn,), frames_due=120, mos=4.4,
    )  # fmt: skip
    times = percentiles([431.0])
    return RunReport(
        verdict=Verdict.GOOD, scenario="smoke", seed=1, url="sip:127.0.0.1:5060", transports=("sip",),
        started_at="2026-03-04T09:30:00Z", length_s=6.2, machine=Machine(cores=8), goodput=1.0, late_frames_ratio=0.0,
        calls=CallCounts(offered=1, accepted=1, completed=1, good=1, most_up=1),
        latency_ms=Latencies(voice_to_voice=times, setup=percentiles([95.0])),
        media=MediaTotals(due=120), turns=(TurnPoint(at_s=1.2, voice_to_voice_ms=431.0, call=0, up=1),),
        timeline=tuple(TimelinePoint(at_s=float(s), up=1) for s in range(7)), expect={"refused_ok": False},
        calls_detail=(CallDetail(outcome=call, badness=0.0),),
    )  # fmt: skip


def void() -> RunReport:
    """The load test itself was late."""
    reasons = ("the generators' own p99 lateness was 18.2 ms, above 5 ms", "process 1 ended by itself (exit code -9)")
    return RunReport(
        verdict=Verdict.VOID, reasons=reasons, void=True, void_reasons=reasons, scenario="talk", seed=3,
        url="http://127.0.0.1:8080", transports=("webrtc",), started_at="2026-03-04T09:30:00Z", length_s=62.0,
        machine=MACHINE, goodput=0.6, calls=CallCounts(offered=20, accepted=20, completed=12, abandoned=8, good=12,
        most_up=20),
        lateness=Lateness(generator_p99_ms=18.2, generator_worst_ms=240.0), faults={"late_frames": 8},
        generators=(GeneratorReport(process=1, calls=20, p99_ms=18.2, worst_ms=240.0, skipped=31,
        problem="it ended by itself"),),
        generator_readings=tuple(GeneratorReading(at_s=float(s), up=20, p99_ms=4.0 + s / 4,
        cpu_cores=0.9) for s in range(60)),
    )  # fmt: skip


def interrupted() -> RunReport:
    """Stopped before the first call."""
    return RunReport(
        verdict=Verdict.INTERRUPTED, reasons=("it was stopped by hand",), interrupted=True, scenario="soak", seed=1,
        started_at="2026-03-04T09:30:00Z", length_s=0.8, machine=MACHINE,
    )  # fmt: skip


def hostile() -> RunReport:
    """A server, and files, that put what they like into every text there is."""
    h = HOSTILE
    turn = TurnOutcome(kind=h, at_s=1, in_call_ms=500, text=h, code=h, heard_codes=(h,), voice_to_voice_ms=10_000)
    call = CallOutcome(
        number=0, transport=h, fate=Fate.DROPPED, offered_s=0.0, ended_s=6.1, end_cause=h, problem=h * 50, call_id=h,
        turns=(turn,), foreign_codes=(h,), faults=(h,), recording="../../etc/passwd",
    )  # fmt: skip
    return RunReport(
        verdict=Verdict.NOT_GOOD, reasons=(h,), void=True, void_reasons=(h,), notes=(h,), scenario=h, about=h, seed=1,
        url=h,
        transports=(h,), options={h: h}, expect={h: True}, started_at=h, length_s=6.2,
        machine=Machine(cores=1, system=h, processor=h, python=h), goodput=0.0,
        calls=CallCounts(offered=1, accepted=1, dropped=1), stages_ms={h: percentiles([1.0])}, faults={h: 1},
        end_causes={h: 1}, problems={h: 1}, generators=(GeneratorReport(process=0, problem=h),),
        server=ServerReport(info={"version": h, h: h}, metrics_url=h), calls_detail=(CallDetail(outcome=call,
        badness=1.0, worst=True),),
        knee=Knee(held=0, stopped_by=h, levels=(Level(calls=1, held=False, stages_ms={h: percentiles([1.0])},
        faults={h: 1}),)),
        slopes={h: Slope(unit=h, per_hour=1, samples=2, from_s=0, to_s=1, first=0, last=1)},
        cross_talk=CrossTalk(calls_checked=1, turns_checked=1, foreign=1, calls=(0,)),
        baseline=Baseline(
            file=h, at=h, comparable=False, differences=(h,), regressed=True,
            lines=(BaselineLine(name=h, unit=h, before=1, now=2, allowed=1, regressed=True),),
        ),
    )  # fmt: skip
