"""Sections of the report on what came of the calls, how it sounded, what grew, and what it was like before."""

from __future__ import annotations

from loadtest.latency_sections import say_megabytes
from loadtest.markup import Content, Markup, join, number, tag, words
from loadtest.page_parts import defined, facts, section, table, tone_text
from loadtest.plots import say_count, say_ms, stacked_bar
from loadtest.report_words import fault_words
from loadtest.run_report import BaselineLine, Percentiles, RunReport


def outcome_section(report: RunReport) -> Markup | None:
    calls = report.calls
    if not calls.offered:
        return None
    bad = max(0, calls.completed + calls.left - calls.good)
    parts = [
        ("Good", "good", calls.good),
        ("Up, but not good", "poor", bad),
        ("Refused", "refused", calls.refused),
        ("Failed to come about", "failed", calls.failed),
        ("Dropped", "dropped", calls.dropped),
        ("Cut short by the load test", "abandoned", calls.abandoned),
    ]
    entries = [
        tag(
            "span",
            tag("i", class_=f"key part {tone}", aria_hidden="true"),
            f"{name} ",
            tag("b", say_count(count)),
            class_="entry",
        )
        for name, tone, count in parts
        if count
    ]
    head = tag(
        "p", f"{say_count(calls.offered)} offered, {say_count(calls.accepted)} came about.", class_="muted small"
    )
    ends = _counts("How calls ended", ("Cause", "Calls"), report.end_causes)
    problems = _counts("What callers said went wrong", ("Problem", "Calls"), report.problems)
    return section(
        "calls-offered",
        "What came of the calls",
        stacked_bar(parts),
        tag("p", *entries, class_="legend numbers"),
        head,
        _faults(report),
        tag("div", ends, problems, class_="two") if ends or problems else None,
    )


def _faults(report: RunReport) -> Markup:
    if not report.faults:
        return tag("p", tone_text("No call had a fault.", "ok"))
    rows: list[list[Content]] = []
    for fault, count in sorted(report.faults.items(), key=lambda item: -item[1]):
        name, meaning = fault_words(fault)
        share = 100 * count / max(report.calls.offered, 1)
        told = tag("span", meaning, class_="muted meaning") if meaning else None
        rows.append([join([tag("b", words(name)), told]), say_count(count), f"{share:.2f} %"])
    return join([tag("h3", "Faults"), table("Faults", ("Fault", "Calls", "Of offered"), rows, class_="prose")])


def _counts(title: str, heads: tuple[str, str], counts: dict[str, int]) -> Markup | None:
    if not counts:
        return None
    ordered = sorted(counts.items(), key=lambda item: -item[1])[:12]
    rows = [[words(name), say_count(count)] for name, count in ordered]
    return tag("div", tag("h3", title), table(title, heads, rows, class_="prose"))


# --- how it sounded ---


def quality_section(report: RunReport) -> Markup | None:
    if not report.calls.accepted:
        return None
    turn, media, mos, cross = report.turn_taking, report.media, report.mos, report.cross_talk
    sends = report.lateness.server_send
    pairs: list[tuple[Content, Content]] = []
    if turn.score is not None:
        counts = {"early": turn.early, "on time": turn.on_time, "late": turn.late, "unanswered": turn.silent}
        told = ", ".join(f"{say_count(count)} {name}" for name, count in counts.items())
        term = defined("Turn-taking", "turn-taking")
        pairs.append((term, f"{number(turn.score)} of 1, over {say_count(turn.turns)} turns ({told})"))
    if report.selectivity.of:
        ratio = _percent(report.selectivity.ratio)
        pairs.append(
            (
                defined("Selectivity", "selectivity"),
                f"{ratio}: went on at {report.selectivity.went_on} of {report.selectivity.of} backchannels",
            )
        )
    if report.replies:
        told = f"{report.false_barge_ins} of {say_count(report.replies)} replies"
        pairs.append((defined("False barge-ins", "false-barge-in"), f"{_percent(report.false_barge_in_rate)}: {told}"))
    if mos.count:
        told = f"half the calls above {_two(mos.p50)}, 95 % above {_two(mos.p5)}, the worst {_two(mos.min)}"
        pairs.append((defined("Estimated MOS", "mos"), told))
    if media.due:
        told = f"{say_count(media.late)} late, {say_count(media.lost)} lost, of {say_count(media.due)} frames of 20 ms"
        pairs.append((defined("Frames", "late"), told))
        gaps = f"{say_count(media.gaps)}, the longest {say_ms(media.longest_gap_ms)}" if media.gaps else "none"
        pairs.append(
            (defined("Gaps above 60 ms", "gaps"), f"{gaps}; the buffer ran dry {say_count(media.underruns)} times")
        )
    if cross.calls_checked:
        told = f"{say_count(cross.own)} own words came back, {cross.lost} were lost, "
        told += f"{cross.damaged} damaged, {cross.foreign} were another caller’s"
        told += f"; {say_count(cross.words)} different ones"
        if cross.reused_after_s is not None:
            told += f", each said by nobody else within {cross.reused_after_s:,.0f} s"
        where = f" (calls {', '.join(str(call) for call in cross.calls[:10])})" if cross.calls else ""
        pairs.append((defined("Code words", "cross-talk"), told + where))
    if sends is not None and sends.count:
        pairs.append((defined("Server’s sending", "lateness"), f"late by {_percentiles(sends)}, by its own clock"))
    return section("quality", "How it sounded", facts(pairs)) if pairs else None


# --- what grew ---

_GROWS = {
    "rss_bytes": "Memory",
    "fds": "Open files",
    "tasks": "Tasks",
    "threads": "Threads",
    "voice_to_voice_ms": "Voice to voice",
}


def soak_section(report: RunReport) -> Markup | None:
    rows: list[list[Content]] = []
    for name, slope in report.slopes.items():
        flat = slope.flat
        state = (
            tone_text("too short to say", "plain")
            if flat is None
            else tone_text("flat" if flat else "grows", "ok" if flat else "bad")
        )
        unsure = slope.uncertainty_per_hour
        rows.append(
            [
                _GROWS.get(name, name.replace("_", " ")),
                state,
                f"{_unit(slope.per_hour, slope.unit)} an hour",
                None if unsure is None else f"± {_unit(unsure, slope.unit)}",
                None if slope.allowed_per_hour is None else _unit(slope.allowed_per_hour, slope.unit),
                _unit(slope.first, slope.unit),
                _unit(slope.last, slope.unit),
            ]
        )
    heads = ("", "", "Slope", "Uncertainty", "Allowed", "At first", "At last")
    slopes = table("Slopes", heads, rows, class_="states") if rows else None
    base = _base(report)
    if slopes is None and base is None:
        return None
    note = "Straight lines through what was read while all calls were up." if rows else ""
    return section("soak", "What grew", slopes, base, note=note)


def _base(report: RunReport) -> Markup | None:
    base = report.base
    if base is None:
        return None
    units = {"rss_bytes": ("Memory", "bytes"), "threads": ("Threads", ""), "fds": ("Open files", "")}
    units |= {"tasks": ("Tasks", ""), "calls_live": ("Calls", "")}
    rows: list[list[Content]] = []
    for field, (name, unit) in units.items():
        before, after = getattr(base.before, field), getattr(base.after, field)
        if before is not None and after is not None:
            grown = base.grown.get(field, after - before)
            rows.append(
                [name, _unit(before, unit), _unit(after, unit), f"{'+' if grown > 0 else ''}{_unit(grown, unit)}"]
            )
    back = "Whether it is back to base the server did not tell"
    if base.back is not None:
        back = "Back to base" if base.back else "Not back to base"
    told = tone_text(back, "plain" if base.back is None else "ok" if base.back else "bad")
    settled = f", {say_ms(1000 * base.settled_s)} after the last call."
    shown = table("Before and after the run", ("", "Before", "After", "Grown by"), rows) if rows else None
    return join([tag("h3", "Before and after"), tag("p", told, settled), shown])


# --- what it was before ---


def baseline_section(report: RunReport) -> Markup | None:
    baseline = report.baseline
    if baseline is None:
        return None
    state = "Worse than before" if baseline.regressed else "No regression"
    told = tone_text(state, "bad" if baseline.regressed else "ok")
    if not baseline.comparable:
        told = tone_text("The two runs cannot be compared", "warn")
    differences = [tag("li", words(difference)) for difference in baseline.differences]
    rows = [_baseline_row(line) for line in baseline.lines]
    heads = ("", "", "Before", "Now", "Change", "At worst allowed")
    shown = table("Beside the baseline", heads, rows, class_="states") if rows else None
    of = join(
        [
            "Against ",
            tag("code", words(baseline.file)),
            f" of {baseline.at[:16].replace('T', ' ')}." if baseline.at else ".",
        ]
    )
    listed = tag("ul", *differences, class_="reasons") if differences else None
    return section("baseline", "Beside the baseline", tag("p", told, " ", of), listed, shown)


def _baseline_row(line: BaselineLine) -> list[Content]:
    change = None
    if line.before is not None and line.now is not None and line.before:
        change = f"{100 * (line.now - line.before) / abs(line.before):+.1f} %"
    known = line.before is not None and line.now is not None
    state = tone_text("worse", "bad") if line.regressed else tone_text("ok", "ok") if known else None
    values = (_unit(value, line.unit) if value is not None else None for value in (line.before, line.now))
    allowed = None if line.allowed is None else _unit(line.allowed, line.unit)
    return [line.name.replace("_", " "), state, *values, change, allowed]


# --- the rest ---


def details_section(report: RunReport) -> Markup | None:
    options = [(name, _option(value)) for name, value in report.options.items()]
    expected = [(name, _option(value)) for name, value in report.expect.items()]
    info = [(name, value) for name, value in report.server.info.items()]
    if report.server.metrics_url is not None:
        info.append(("metrics", report.server.metrics_url))
    if report.server.scrapes_failed:
        info.append(("scrapes failed", str(report.server.scrapes_failed)))
    lists = [
        tag("div", tag("h3", title), facts((words(name), words(value)) for name, value in pairs))
        for title, pairs in (("Options", options), ("Expected of each call", expected), ("The server of itself", info))
        if pairs
    ]
    rows: list[list[Content]] = [
        [
            str(each.process),
            say_count(each.calls),
            say_count(each.most_up),
            _two(each.cpu_cores),
            _two(each.cpu_cores_max),
            None if each.p99_ms is None else say_ms(each.p99_ms),
            None if each.worst_ms is None else say_ms(each.worst_ms),
            say_count(each.skipped),
            words(each.problem) if each.problem else None,
        ]
        for each in report.generators
    ]
    heads = ("Process", "Calls", "Most up", "Cores", "at most", "Late p99", "worst", "Ticks skipped", "Problem")
    generators = join([tag("h3", "Processes of callers"), table("Processes of callers", heads, rows)]) if rows else None
    notes = [tag("li", words(note)) for note in report.notes]
    told = join([tag("h3", "Notes"), tag("ul", *notes, class_="reasons")]) if notes else None
    if told is None and not lists and generators is None:
        return None
    return section("details", "How it was run", told, *lists, generators)


def _option(value: str | float | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else value if isinstance(value, str) else f"{value:g}"


def _unit(value: float, unit: str) -> str:
    if unit in ("bytes", "B"):
        return say_megabytes(value)
    if unit == "ms":
        return say_ms(value)
    if unit in ("ratio", "share"):
        return f"{100 * value:.3f} %"
    if unit == "cores":
        return f"{value:.4f}"
    told = number(value) if abs(value) < 1e4 else say_count(value)
    return told if unit in ("", "count") else f"{told}\N{NO-BREAK SPACE}{unit}"


def _percentiles(times: Percentiles) -> str:
    named = (("p50", times.p50), ("p95", times.p95), ("p99", times.p99))
    return ", ".join(f"{say_ms(value)} ({name})" for name, value in named if value is not None)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _two(value: float | None) -> str | None:
    return None if value is None else number(value)
