"""The report of a run in a terminal: the verdict, and the numbers that it rests on."""

from __future__ import annotations

from loadtest.progress import FAKE
from loadtest.report_words import IF_LATE
from loadtest.run_options import VOID_P99_MS
from loadtest.run_report import Percentiles, RunReport, Verdict

_VERDICTS = {
    Verdict.GOOD: "GOOD",
    Verdict.NOT_GOOD: "NOT GOOD ENOUGH",
    Verdict.VOID: "VOID: the load test itself was late or broke, so nothing of this can be held against the server",
    Verdict.INTERRUPTED: "INTERRUPTED, good until then",
}
_PROBLEMS = 5


def to_text(report: RunReport) -> str:
    """Several lines."""
    counts = report.calls
    lines = [f"{report.scenario}: {_VERDICTS[report.verdict]}"]
    lines += [f"  {reason}" for reason in report.reasons]
    if (report.lateness.generator_p99_ms or 0.0) > VOID_P99_MS:
        lines.append(f"  {IF_LATE}")
    if report.interrupted and report.verdict is not Verdict.INTERRUPTED:
        lines.append("  and it was stopped by hand, before its time")
    if report.fake_engines:
        lines.append(FAKE)
    if report.knee is not None:
        held = f"{report.knee.held} calls" if report.knee.held else "none found"
        whose = "" if report.knee.held else "of the last level, which was not held"
        lines.append(f"capacity       {held} ({report.knee.stopped_by}); the numbers below are {whose or 'theirs'}")
    fates = ("completed", "refused", "failed", "dropped", "abandoned", "left")
    others = [f"{getattr(counts, name)} {name}" for name in fates if getattr(counts, name)]
    lines.append(f"calls          {counts.offered} offered, up to {counts.most_up} at once: {', '.join(others) or '-'}")
    lines.append(f"goodput        {_share(report.goodput)} ({counts.good} good)")
    lines.append(f"late frames    {_share(report.late_frames_ratio, 3)}")
    latency = report.latency_ms
    for name in ("voice_to_voice", "stop", "talked_on", "setup", "refusal"):
        values: Percentiles = getattr(latency, name)
        if values.count:
            lines.append(f"{name.replace('_', ' '):<14} {_percentiles(values)}")
    if report.turn_taking.turns:
        lines.append(
            f"turn taking    {report.turn_taking.score or 0.0:.2f} of 1 (EVA curve), {report.turn_taking.turns} turns"
        )
    if report.mos.count:
        lines.append(f"estimated MOS  p50 {_number(report.mos.p50)}, worst {_number(report.mos.min)}")
    if report.cross_talk.turns_checked:
        talk = report.cross_talk
        lines.append(
            f"code words     {talk.own} of {talk.own + talk.lost} came back, {talk.foreign} of other callers, "
            f"{talk.damaged} damaged; {talk.words:,} different ones"
        )
    if report.faults:
        lines.append(f"faults         {', '.join(f'{name} {count}' for name, count in report.faults.items())}")
    lines += [f"problem        {count} times: {text}" for text, count in list(report.problems.items())[:_PROBLEMS]]
    lateness = report.lateness
    if lateness.generator_p99_ms is not None:
        shares = [each.cpu_cores_max for each in report.generators if each.cpu_cores_max is not None]
        lines.append(
            f"load test      p99 {lateness.generator_p99_ms:.1f} ms late itself, {len(report.generators)} process(es), "
            f"at most {max(shares, default=0.0):.0%} of a core"
        )
    if server := _server(report):
        lines.append(f"server         {server}")
    for name, slope in report.slopes.items():
        flat = "too short to say" if slope.flat is None else "flat" if slope.flat else "NOT FLAT"
        lines.append(f"slope          {name} {slope.per_hour:+,.1f} {slope.unit} an hour: {flat}")
    if report.baseline is not None:
        lines += _baseline(report)
    return "\n".join(lines + [f"note           {note}" for note in report.notes])


def _server(report: RunReport) -> str:
    server = report.server
    parts = []
    if server.cpu_cores_per_call is not None:
        parts.append(f"{server.cpu_cores_per_call:.2%} of a core a call")
    if server.rss_bytes_per_call is not None:
        parts.append(f"{server.rss_bytes_per_call / 1024:.0f} KiB a call")
    if parts and server.hosts_cpu_cores_per_call is not None:
        parts[-1] += " (with its engine hosts)"
    sent = report.lateness.server_send
    if sent is not None and sent.p99 is not None:
        parts.append(f"its own frames left {sent.p99:.1f} ms late (p99)")
    return ", ".join(parts)


def _baseline(report: RunReport) -> list[str]:
    baseline = report.baseline
    assert baseline is not None
    if not baseline.comparable:
        return [f"baseline       NOT COMPARABLE: {'; '.join(baseline.differences)}"]
    lines = [f"baseline       {difference}" for difference in baseline.differences]
    for line in baseline.lines:
        if line.before is not None and line.now is not None:
            word = "REGRESSED" if line.regressed else "as good"
            lines.append(
                f"baseline       {line.name}: {line.now:.6g} {line.unit} now, {line.before:.6g} before: {word}"
            )
    return lines


def _percentiles(values: Percentiles) -> str:
    ranks = ("p50", "p90", "p95", "p99", "max")
    return ", ".join(f"{rank} {getattr(values, rank):.0f}" for rank in ranks) + f" ms, of {values.count}"


def _share(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
