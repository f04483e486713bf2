"""Sections of the report on time: percentiles, stages, the climb for capacity, and how it all went over the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from loadtest.markup import Content, Markup, join, number, tag
from loadtest.page_parts import defined, figure, section, table, tone_text
from loadtest.plots import (
    Axis,
    HeatColumn,
    Limit,
    Series,
    Values,
    around,
    heat_map,
    line_plot,
    over_latency,
    over_time,
    range_bar,
    range_scale,
    say_clock,
    say_count,
    say_ms,
    up_to,
    worst_of,
)
from loadtest.run_options import VOID_P99_MS
from loadtest.run_report import Knee, Level, Percentiles, RunReport
from loadtest.summary import GOODPUT

_LEAST_FOR_CURVE = 20
_MOST_COLUMNS = 90

_STAGE_NAMES = {
    "decision": "End of turn",
    "final": "Final transcript",
    "first_token": "First token",
    "first_clause": "First clause",
    "first_audio": "First audio",
    "first_sent": "First packet",
    "cut_to_silence": "Cut to silence",
}


def latency_section(report: RunReport) -> Markup | None:
    latencies = report.latency_ms
    rows = [
        (defined("Voice to voice", "voice-to-voice"), latencies.voice_to_voice),
        (defined("Stop after an interruption", "stop"), latencies.stop),
        (defined("Talked on", "talked-on"), latencies.talked_on),
        (defined("Set-up", "setup"), latencies.setup),
        (defined("Refusal", "setup"), latencies.refusal),
    ]
    heard = _percentile_table("Latency as callers heard it", rows)
    if heard is None:
        return None
    stages = [(_STAGE_NAMES.get(name, name.replace("_", " ")), times) for name, times in report.stages_ms.items()]
    split = _percentile_table("Where the server’s time went", stages)
    told = None
    if split is not None:
        note = "After the caller’s last sound, from the server’s own metrics."
        told = join(
            [tag("h3", defined("Where the server’s time went", "stages")), tag("p", note, class_="muted small"), split]
        )
    note = "Bar: p50 to p95. Line: to p99. Dot: the longest."
    return section("latency", "Latency", heard, told, _curve(report), note=note)


def _percentile_table(caption: str, rows: Sequence[tuple[Content, Percentiles]]) -> Markup | None:
    known = [(name, times) for name, times in rows if times.count and times.p50 is not None]
    if not known:
        return None
    values = [value for _, times in known for value in (times.p50, times.p99, times.max) if value is not None]
    axis = over_latency(max(min(values), 10.0), max(values))
    drawn: list[list[Content]] = []
    for name, times in known:
        p50 = times.p50 or 0.0
        p95, p99 = _or(times.p95, times.p50), _or(times.p99, times.p95, times.p50)
        bar = range_bar(axis, p50, p95, p99, times.max)
        shown = (times.p50, times.p90, times.p95, times.p99, times.max)
        drawn.append([name, bar, *(_ms(value) for value in shown), say_count(times.count)])
    heads = ("", range_scale(axis), "p50", "p90", "p95", "p99", "longest", "of")
    return table(caption, heads, drawn, class_="ranges")


def _curve(report: RunReport) -> Markup | None:
    """Latency by percentile, the tail stretched: each nine takes as much room as the one before."""
    times = sorted(point.voice_to_voice_ms for point in report.turns)
    if len(times) < _LEAST_FOR_CURVE:
        return None
    nines = math.log10(len(times))
    named = ((0.5, "50 %"), (0.9, "90 %"), (0.95, "95 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"))
    ticks = tuple(-math.log10(1 - share) for share, _ in named if -math.log10(1 - share) <= nines)
    names = {round(-math.log10(1 - share), 4): name for share, name in named}

    def say(at: float) -> str:
        return names.get(round(at, 4), f"{number(100 * (1 - 10**-at))} %")

    places = [nines * index / 60 for index in range(61)]
    ranks = [min(len(times), max(1, math.ceil((1 - 10**-at) * len(times) - 1e-9))) for at in places]
    values: Values = [times[rank - 1] for rank in ranks]
    limit = _limit(report, "answer_within_ms", "allowed")
    if limit is not None and limit.value > 2 * times[-1]:
        limit = None  # far away, it would press the curve flat
    upward = up_to(max(times[-1], limit.value if limit else 0.0), say_ms, least=100.0)
    across = Axis(0.0, nines, ticks, say)
    series = [Series("Voice to voice", "one", values)]
    plot = line_plot("Voice to voice by percentile", places, series, across=across, upward=upward, limit=limit)
    rows = [[say(tick), say_ms(times[min(len(times), math.ceil((1 - 10**-tick) * len(times))) - 1])] for tick in ticks]
    heads = ("Of 100 turns", "no longer than")
    return figure("Voice to voice by percentile", plot, numbers=table("Voice to voice by percentile", heads, rows))


# --- capacity ---


def capacity_section(report: RunReport) -> Markup | None:
    knee = report.knee
    if knee is None:
        return None
    levels = sorted(knee.levels, key=lambda level: level.calls)
    told = f"{knee.held} calls at once were held." if knee.held else "No level was held."
    title = tag("p", tag("strong", told), f" {knee.stopped_by}" if knee.stopped_by else None, class_="lead")
    plots = tag("div", *_knee_plots(levels, knee.held), class_="grid-of-plots") if len(levels) > 1 else None
    return section(
        "capacity", "Capacity", title, plots, _level_table(knee), note="By goodput and late frames, level by level."
    )


def _knee_plots(levels: Sequence[Level], held: int) -> list[Markup]:
    at = [float(level.calls) for level in levels]
    across = up_to(max(at), say_count, whole=True)
    mark = Limit(float(held), f"{held} held") if held else None

    def plot(title: str, series: Sequence[Series], upward: Axis, limit: Limit | None = None) -> Markup:
        tips = [_level_tip(level, series, index, upward) for index, level in enumerate(levels)]
        drawn = line_plot(title, at, series, across=across, upward=upward, limit=limit, mark=mark, dots=True, tips=tips)
        legend = [(one.name, one.tone) for one in series] if len(series) > 1 else []
        return figure(title, drawn, legend=legend)

    goodput = [None if level.goodput is None else 100 * level.goodput for level in levels]
    p50, p95 = [level.voice_to_voice.p50 for level in levels], [level.voice_to_voice.p95 for level in levels]
    plots = [
        plot(
            "Goodput by calls at once",
            [Series("Goodput", "one", goodput)],
            Axis(0.0, 100.0, (0, 25, 50, 75, 100), _percent),
            Limit(100 * GOODPUT, "99 %"),
        ),
        plot(
            "Voice to voice by calls at once",
            [Series("p50", "two", p50), Series("p95", "one", p95)],
            up_to(_most([*p50, *p95]), say_ms, least=100.0),
        ),
    ]
    cpu = [level.server_cpu_cores for level in levels]
    if any(value is not None for value in cpu):
        plots.append(plot("Server’s CPU by calls at once", [Series("Cores", "three", cpu)], up_to(_most(cpu), _cores)))
    stages = {name for level in levels for name in level.stages_ms}
    shown = [name for name in _STAGE_NAMES if name in stages and name not in ("first_clause", "cut_to_silence")][:4]
    curves = [
        Series(_STAGE_NAMES[name], tone, [level.stages_ms.get(name, Percentiles()).p95 for level in levels])
        for name, tone in zip(shown, ("one", "two", "three", "four"), strict=False)
    ]
    if curves:
        upward = up_to(_most([value for one in curves for value in one.values]), say_ms, least=100.0)
        plots.append(plot("Stages (p95) by calls at once", curves, upward))
    return plots


def _level_tip(level: Level, series: Sequence[Series], index: int, upward: Axis) -> str:
    values = ((one.name, one.values[index]) for one in series)
    lines = [f"{name}: {upward.say(value)}" for name, value in values if value is not None]
    return "\n".join([f"{level.calls} calls, {_level_words(level)}", *lines])


def _level_words(level: Level) -> str:
    return "void" if level.void else "held" if level.held else "not held"


def _level_table(knee: Knee) -> Markup:
    rows: list[list[Content]] = []
    for level in knee.levels:
        tone = "warn" if level.void else "ok" if level.held else "bad"
        faults = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in list(level.faults.items())[:4])
        rows.append(
            [
                say_count(level.calls),
                tone_text(_level_words(level), tone),
                _ratio(level.goodput),
                _ratio(level.late_frames_ratio, digits=3),
                _ms(level.voice_to_voice.p50),
                _ms(level.voice_to_voice.p95),
                _ms(level.stop.p95),
                None if level.server_cpu_cores is None else _cores(level.server_cpu_cores),
                None if level.server_rss_bytes is None else say_megabytes(level.server_rss_bytes),
                _ms(level.generator_p99_ms),
                faults or None,
            ]
        )
    at_once = ("Calls", "", "Goodput", "Late", "v2v p50", "v2v p95", "Stop p95")
    heads = (*at_once, "CPU", "Memory", "Load test late p99", "Faults")
    return table("Levels in the order they were tried", heads, rows, class_="states")


# --- over time ---


def time_section(report: RunReport) -> Markup | None:
    points = report.timeline
    if not points:
        return None
    step = max(report.timeline_step_s, 1e-3)
    across = over_time(max(report.length_s, points[-1].at_s + step))
    at, columns = worst_of(
        [point.at_s for point in points],
        [
            [float(point.up) for point in points],
            [float(point.late) for point in points],
            [float(point.bad) for point in points],
            [float(point.refused) for point in points],
        ],
    )
    up, late, bad, refused = columns
    calls = _time_figure(report, "Calls that were up", at, [Series("Up", "one", up)], across, say_count)
    step_words = _step(report, at)
    not_good = [Series("Calls that were not good", "one", bad), Series("Calls refused", "two", refused)]
    troubles = [
        _time_figure(report, f"{title}, in {step_words}", at, shown, across, say_count)
        for several, series in (("Late frames", [Series("Late frames", "three", late)]), ("Calls", not_good))
        if (shown := [one for one in series if any(one.values)])
        for title in (several if len(shown) > 1 else shown[0].name,)
    ]
    beside = tag("div", *troubles, class_="grid-of-plots") if troubles else None
    return section("time", "Over time", calls, _heat(report, across), beside)


def _heat(report: RunReport, across: Axis) -> Markup | None:
    points, bounds = [p for p in report.timeline if p.buckets], report.timeline_bounds_ms
    if not points or not bounds:
        return None
    wide = math.ceil(len(report.timeline) / _MOST_COLUMNS)
    step = report.timeline_step_s
    columns: dict[int, list[int]] = {}
    for point in points:
        counts = columns.setdefault(int(point.at_s / step) // wide, [0] * (len(bounds) + 1))
        for row, count in enumerate(point.buckets[: len(counts)]):
            counts[row] += count
    used = [row for counts in columns.values() for row, count in enumerate(counts) if count]
    if not used:
        return None
    # A few empty rows around, or two of them would look like a wall.
    low, high = max(0, min(used) - 2), min(len(bounds) + 1, max(used) + 3)
    names = [f"≤ {say_ms(bound)}" for bound in bounds] + [f"> {say_ms(bounds[-1])}"]
    cells = [HeatColumn(c * wide * step, wide * step, counts[low:high]) for c, counts in sorted(columns.items())]
    plot = heat_map("Voice to voice over time", cells, names[low:high], across=across)
    rows = [
        [say_clock(p.at_s), say_count(p.turns), _ms(p.p50_ms), _ms(p.p95_ms), _ms(p.max_ms)]
        for p in report.timeline[:: max(1, math.ceil(len(report.timeline) / 60))]
    ]
    numbers = table("Voice to voice over time", ("At", "Turns", "p50", "p95", "longest"), rows)
    most = max(max(column.counts) for column in cells)
    legend = [("1 turn", "heat h1"), (f"{most} turns", "heat h8")] if most > 1 else []
    return figure("Voice to voice: how many turns took how long", plot, legend=legend, numbers=numbers)


# --- server and load test ---


def machines_section(report: RunReport) -> Markup | None:
    server, generators = report.server.readings, report.generator_readings
    if not server and not generators:
        return None
    spans = [reading.at_s for reading in server[-1:]] + [reading.at_s for reading in generators[-1:]]
    across = over_time(max(report.length_s, *spans))
    plots: list[Markup | None] = []

    def of_server(
        title: str,
        say: Callable[[float], str],
        *curves: tuple[str, str, str],
        least: float = 1.0,
        from_zero: bool = True,
    ) -> None:
        curves = tuple(each for each in curves if any(getattr(reading, each[2]) is not None for reading in server))
        columns: list[Values] = [[getattr(reading, field) for reading in server] for _, _, field in curves]
        if columns:
            at, columns = worst_of([reading.at_s for reading in server], columns)
            series = [Series(name, tone, column) for (name, tone, _), column in zip(curves, columns, strict=True)]
            plots.append(_time_figure(report, title, at, series, across, say, least=least, from_zero=from_zero))

    cores = (("CPU", "one", "cpu_cores"), ("Engine hosts", "two", "hosts_cpu_cores"))
    of_server("Server: CPU, in cores", _cores, *cores, least=0.1)
    of_server("Server: memory", say_megabytes, ("Resident", "one", "rss_bytes"), least=2e7, from_zero=False)
    hosts = ("Resident", "one", "hosts_rss_bytes")  # with models: the gateway's own would be a flat line beside it
    of_server("Server: memory of its engine hosts", say_megabytes, hosts, least=2e7, from_zero=False)
    of_server("Server: loop lag", say_ms, ("Loop lag", "three", "loop_lag_ms"), least=5.0)
    of_server("Server: busiest executor lane", _share, ("Busy", "one", "utilisation"))
    of_server("Server: oldest job that waits", say_ms, ("Waits", "three", "queue_age_ms"), least=5.0)
    counts = (("Tasks", "one", "tasks"), ("Files", "two", "fds"), ("Threads", "three", "threads"))
    of_server("Server: tasks, open files, threads", say_count, *counts)
    if generators:
        at, columns = worst_of(
            [reading.at_s for reading in generators],
            [[r.p99_ms for r in generators], [r.worst_ms for r in generators], [r.cpu_cores for r in generators]],
        )
        late = [Series("p99 of the latest", "one", columns[0]), Series("worst", "four", columns[1])]
        limit = Limit(VOID_P99_MS, "void above (p99)")
        plots.append(_time_figure(report, "Load test: its own lateness", at, late, across, say_ms, limit=limit))
        busy = [Series("CPU", "one", columns[2])]
        limit = Limit(0.7, "70 % of a core")
        plots.append(
            _time_figure(report, "Load test: its busiest process, in cores", at, busy, across, _cores, limit=limit)
        )
    note = "Readings once a second; where several share a place, the largest is drawn."
    return section("machines", "Server and load test", tag("div", *plots, class_="grid-of-plots"), note=note)


def _time_figure(
    report: RunReport,
    title: str,
    at: Sequence[float],
    series: Sequence[Series],
    across: Axis,
    say: Callable[[float], str],
    *,
    limit: Limit | None = None,
    least: float = 1.0,
    from_zero: bool = True,
) -> Markup | None:
    series = [one for one in series if any(value is not None for value in one.values)]
    if not series:
        return None
    known = [value for one in series for value in one.values if value is not None]
    if from_zero:
        upward = up_to(max(*known, limit.value * 1.1 if limit else 0.0), say, least=least, whole=say is say_count)
    else:
        upward = around(min(known), max(known), say, least=least)
    plot = line_plot(title, at, series, across=across, upward=upward, limit=limit)
    every = max(1, math.ceil(len(at) / 60))
    rows = [
        [say_clock(at[index]), *(None if (value := one.values[index]) is None else say(value) for one in series)]
        for index in range(0, len(at), every)
    ]
    numbers = table(title, ("At", *(one.name for one in series)), rows)
    legend = [(one.name, one.tone) for one in series] if len(series) > 1 else []
    return figure(title, plot, legend=legend, numbers=numbers)


# --- words ---


def say_megabytes(value: float) -> str:
    written = f"{value / 1e6:,.0f}" if abs(value) >= 1e7 else number(value / 1e6)
    return f"{written}\N{NO-BREAK SPACE}MB"


def _step(report: RunReport, at: Sequence[float]) -> str:
    step = report.timeline_step_s
    worst = " (the worst of each place)" if len(at) < len(report.timeline) else ""
    return f"each {'second' if step == 1 else f'{number(step)} s'}{worst}"


def _limit(report: RunReport, key: str, name: str) -> Limit | None:
    value = report.expect.get(key)
    if value is None or isinstance(value, bool) or value <= 0:
        return None
    return Limit(float(value), f"{name}: {say_ms(value)}")


def _or(*values: float | None) -> float:
    return next((value for value in values if value is not None), 0.0)


def _most(values: Sequence[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def _ms(value: float | None) -> str | None:
    return None if value is None else say_ms(value)


def _ratio(value: float | None, digits: int = 1) -> str | None:
    return None if value is None else f"{100 * value:.{digits}f}\N{NO-BREAK SPACE}%"


def _percent(value: float) -> str:
    return f"{number(value)}\N{NO-BREAK SPACE}%"


def _share(value: float) -> str:
    return f"{100 * value:.0f}\N{NO-BREAK SPACE}%"


def _cores(value: float) -> str:
    return number(value)
