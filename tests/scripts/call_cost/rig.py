"""Windows that nobody measured."""

from __future__ import annotations

from loadtest.readings import Machine
from loadtest.run_report import CallCounts, Latencies, MediaTotals, Percentiles, RunReport, Verdict
from scripts.call_cost.windows import Window


def window(
    subject: str = "ours",
    asked: str = "talk",
    calls: int = 10,
    cpu_share: float = 0.25,
    *,
    late: int = 0,
    void: bool = False,
    completed: int | None = None,
    goodput: float | None = None,
    turns: int = 40,
    frames: int = 1_000,
) -> Window:
    """``goodput``: of a scenario that judges turns; None: one that does not."""
    report = RunReport(
        verdict=Verdict.GOOD,
        void=void,
        expect={} if goodput is None else {"answer_within_ms": 3_000.0},
        scenario="talk",
        seed=1,
        started_at="2026-01-01T00:00:00+00:00",
        length_s=20.0,
        machine=Machine(cores=2),
        goodput=goodput,
        late_frames_ratio=late / (frames + late),
        calls=CallCounts(offered=calls, completed=calls if completed is None else completed),
        latency_ms=Latencies(voice_to_voice=Percentiles(count=turns, p50=500.0)),
        media=MediaTotals(due=frames + late, late=late),
    )
    return Window(subject, asked, calls, cpu_share, 0.05, 0.4, calls * 2**20 + 100, 100, report)
