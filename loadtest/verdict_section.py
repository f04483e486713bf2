"""The top of the report: was it good, of what, and the few numbers that say so."""

from __future__ import annotations

from collections.abc import Callable

from loadtest.markup import Content, Markup, join, number, tag, words
from loadtest.page_parts import defined, facts, notice, tone_text
from loadtest.plots import say_clock, say_count, say_ms
from loadtest.report_words import IF_LATE, VERDICTS
from loadtest.run_options import VOID_P99_MS
from loadtest.run_report import Percentiles, RunReport
from loadtest.summary import GOODPUT, late_limit


def verdict_section(report: RunReport) -> Markup:
    title, tone = VERDICTS[report.verdict]
    if report.calls.offered == 0:
        title, tone = ("No call was placed", "warn") if report.verdict.value != "void" else (title, tone)
    heading = tag("h1", tag("i", _MARK[tone], class_="mark", aria_hidden="true"), title)
    reasons = [tag("li", words(reason)) for reason in report.reasons if reason not in report.void_reasons]
    return tag(
        "section",
        tag("div", *_banners(report), class_="notices"),
        tag(
            "div",
            tag("p", "Load test ", tag("strong", words(report.scenario)), class_="what"),
            heading,
            tag("p", _told(report), class_="told"),
            tag("ul", *reasons, class_="reasons") if reasons else None,
            _facts(report),
            class_=f"card verdict {tone}",
        ),
        id="verdict",
        aria_label="Verdict",
    )


_MARK = {"ok": "✓", "bad": "✕", "warn": "!"}


def _banners(report: RunReport) -> list[Markup]:
    shown = []
    if report.void:
        lines: list[Content] = [words(reason) for reason in report.void_reasons]
        if (report.lateness.generator_p99_ms or 0.0) > VOID_P99_MS:
            lines.append(f"To do: {IF_LATE}.")
        told = "The load test itself was late or broke. Nothing below can be held against the server."
        shown.append(notice("VOID", [told, *lines], "bad"))
    if report.fake_engines:
        told = "The server’s engines are scripted. The times are those of transport and gateway alone; no model ran."
        shown.append(notice("FAKE ENGINES", [told], "warn"))
    if report.interrupted:
        shown.append(notice("INTERRUPTED", ["It was stopped by hand; what was measured until then is below."], "warn"))
    if report.baseline is not None and report.baseline.regressed:
        worse = [line.name.replace("_", " ") for line in report.baseline.lines if line.regressed]
        told_worse = join(["Worse than the baseline: ", words(", ".join(worse)), "."])
        shown.append(notice("REGRESSION", [told_worse], "bad"))
    return shown


def _told(report: RunReport) -> Markup:
    calls = report.calls
    if calls.offered == 0:
        return join([f"The run lasted {say_clock(report.length_s)}."])
    if calls.offered == 1:
        return join([f"The one call was {'good' if calls.good else 'not good'}."])
    told = f"{say_count(calls.good)} of {say_count(calls.offered)} calls were good"
    up = f", up to {say_count(calls.most_up)} at once" if calls.most_up else ""
    held = ""
    if report.knee is not None:
        held = " No level was held."
        if report.knee.held:
            held = f" {say_count(report.knee.held)} calls at once were held; the numbers below are theirs."
    return join([f"{told}{up}, in {say_clock(report.length_s)}.{held}"])


def _facts(report: RunReport) -> Markup:
    info, machine = report.server.info, report.machine
    engines = "scripted (fake)" if report.fake_engines else "it did not say" if report.fake_engines is None else "real"
    server = " ".join(part for part in (info.get("version", ""), info.get("preset", "")) if part)
    load = [
        f"{number(load)} {when}"
        for load, when in ((machine.load_before, "before"), (machine.load_after, "after"))
        if load is not None
    ]
    what = (f"{machine.cores} cores", machine.system, machine.processor)
    pairs: list[tuple[Content, Content]] = [
        ("Server", words(report.url) if report.url else None),
        ("Version, preset", words(server) if server else None),
        ("Engines", engines),
        ("Over", words(", ".join(report.transports)) if report.transports else None),
        ("Seed", str(report.seed)),
        ("Callers’ machine", words(", ".join(part for part in what if part))),
        ("Its load average", ", ".join(load) or None),
    ]
    return join([tag("p", words(report.about), class_="muted about") if report.about else None, facts(pairs)])


def figures(report: RunReport) -> Markup:
    """Eight numbers, each beside what is wanted of it. Of a void run only the load test's own is judged."""
    latency = report.latency_ms
    late, late_wanted = report.late_frames_ratio, late_limit(report.expect)
    cross, may_refuse = report.cross_talk, bool(report.expect.get("refused_ok"))
    generator = report.lateness.generator_p99_ms
    send = report.lateness.server_send.p99 if report.lateness.server_send is not None else None

    def judged(value: float | None, wanted: float | None, *, least: bool = False) -> bool | None:
        if value is None or wanted is None or report.void:
            return None
        return value < wanted if least else value > wanted

    shown = [
        _figure(
            defined("Goodput", "goodput"),
            _percent(report.goodput, 2),
            f"{_percent(report.faultless, 2)} without a fault, as calls may be refused"
            if may_refuse
            else f"{_percent(GOODPUT, 0)} wanted",
            judged(report.faultless if may_refuse else report.goodput, GOODPUT, least=True),
        ),
        _latency(
            "Voice to voice", "voice-to-voice", latency.voice_to_voice, _wanted(report, "answer_within_ms"), judged
        ),
        _latency("Stop", "stop", latency.stop, _wanted(report, "stop_within_ms"), judged),
        _latency("Set-up", "setup", latency.setup, _wanted(report, "setup_within_ms"), judged),
        _figure(
            defined("Late frames", "late"),
            _percent(late, 3),
            f"{say_count(report.media.late)} of {say_count(report.media.due)}; "
            f"{_percent(late_wanted, 2) or 'any'} allowed",
            judged(late, late_wanted),
        ),
        _figure(
            defined("Cross-talk", "cross-talk"),
            say_count(cross.foreign) if cross.calls_checked else None,
            f"{say_count(cross.own)} of {say_count(cross.own + cross.lost)} code words came back"
            if cross.calls_checked
            else "no code words in this scenario",
            judged(cross.foreign if cross.calls_checked else None, 0),
        ),
        _server(report),
        _figure(
            defined("Load test’s lateness", "lateness"),
            None if generator is None else say_ms(generator),
            f"p99, void above {say_ms(VOID_P99_MS)}" + ("" if send is None else f"; the server’s {say_ms(send)}"),
            None if generator is None else generator > VOID_P99_MS,
            bad_words="too late",
        ),
    ]
    return tag("section", *shown, class_="figures", id="figures", aria_label="The numbers in short")


def _server(report: RunReport) -> Markup:
    cores, memory = report.server.cpu_cores_per_call, report.server.rss_bytes_per_call
    if cores is None:
        return _figure("Server’s CPU per call", None, "it told nothing of itself", None)
    note = "of a core" if memory is None else f"of a core, and {memory / 1e6:.2f} MB"
    note += "; with its engine hosts" if report.server.hosts_cpu_cores_per_call is not None else ""
    return _figure("Server’s CPU per call", f"{number(100 * cores)} %", note, None)


def _latency(
    name: str, term: str, times: Percentiles, wanted: float | None, judged: Callable[..., bool | None]
) -> Markup:
    if not times.count:
        return _figure(defined(name, term), None, "nothing to measure", None)
    note = f"p95, of {say_count(times.count)}; p50 {_ms(times.p50)}"
    if wanted is not None:
        note += f"; each within {say_ms(wanted)}"
    return _figure(defined(name, term), _ms(times.p95), note, judged(times.p95, wanted))


def _figure(name: Content, value: str | None, note: str, bad: bool | None, *, bad_words: str = "not good") -> Markup:
    state = None if bad is None else tone_text(bad_words if bad else "good", "bad" if bad else "ok")
    head = tag("p", tag("span", value if value is not None else "–", class_="number"), state, class_="head")
    return tag("div", tag("h2", name), head, tag("p", note, class_="note muted"), class_="card figure-of numbers")


def _wanted(report: RunReport, key: str) -> float | None:
    value = report.expect.get(key)
    return None if value is None or isinstance(value, bool) or value <= 0 else float(value)


def _percent(share: float | None, digits: int) -> str | None:
    return (
        None if share is None else f"{number(100 * share) if digits < 3 else f'{100 * share:.3f}'}\N{NO-BREAK SPACE}%"
    )


def _ms(value: float | None) -> str | None:
    return None if value is None else say_ms(value)
