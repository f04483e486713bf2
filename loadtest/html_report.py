"""The report of a run as one HTML file for a person: nothing is fetched, nothing runs but our own few lines.

It opens from disk, works without a script, in the dark, on a phone and on paper. A strict policy of its own says by
hash which style and which script may be used, so that not even a text that slipped through could do anything.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from loadtest.call_picture import call_card
from loadtest.latency_sections import capacity_section, latency_section, machines_section, time_section
from loadtest.markup import Markup, join, tag
from loadtest.page_parts import section
from loadtest.report_audio import BUDGET_BYTES
from loadtest.report_words import DEFINITIONS
from loadtest.run_report import CallDetail, RunReport
from loadtest.run_sections import (
    baseline_section,
    details_section,
    outcome_section,
    quality_section,
    soak_section,
)
from loadtest.verdict_section import figures, verdict_section

MOST_CALLS = 12
"""Shown one by one, the worst first."""

CALLS_OPENED = 2
"""Of those; the others are folded."""

_PAGE = Path(__file__).resolve().parent / "page"
_TOKENS = Path(__file__).resolve().parent.parent / "web" / "tokens.css"  # one look for all pages of Offhook
_ICON = Path(__file__).resolve().parent.parent / "web" / "icons" / "favicon.svg"


def to_html(report: RunReport, recordings: Path | None) -> str:
    """The page. ``recordings``: the folder in which the recordings lie that outcomes name. Blocks: it reads them."""
    style = _TOKENS.read_text("utf-8") + (_PAGE / "report.css").read_text("utf-8")
    script = (_PAGE / "report.js").read_text("utf-8")
    icon = "data:image/svg+xml;base64," + base64.b64encode(_ICON.read_bytes()).decode("ascii")
    title = f"Load test “{report.scenario}”"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="robots", content="noindex"),
        tag("title", f"{title} · Offhook"),
        tag("link", rel="icon", href=icon),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag("a", "Skip to the numbers", class_="skip", href="#figures"),
        _bar(report),
        tag("main", *_sections(report, recordings)),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _policy(style: str, script: str) -> str:
    sources = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "img-src": "data:",
        "media-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {source}" for name, source in sources.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _bar(report: RunReport) -> Markup:
    mark = base64.b64encode(_ICON.read_bytes()).decode("ascii")
    brand = tag(
        "span",
        tag("img", src=f"data:image/svg+xml;base64,{mark}", alt=""),
        "Offhook ",
        tag("span", "Load test", class_="product"),
        class_="brand",
    )
    began = report.started_at.replace("T", " ")[:16]
    return tag("header", brand, tag("span", f"{began} UTC", class_="muted numbers began"), class_="bar")


def _sections(report: RunReport, recordings: Path | None) -> list[Markup]:
    shown = [
        baseline_section(report),
        outcome_section(report),
        latency_section(report),
        capacity_section(report),
        time_section(report),
        quality_section(report),
        _calls(report, recordings),
        machines_section(report),
        soak_section(report),
        details_section(report),
        _definitions(),
    ]
    present = [part for part in shown if part is not None]
    return [verdict_section(report), figures(report), *present]


def _calls(report: RunReport, recordings: Path | None) -> Markup | None:
    chosen = chosen_calls(report)
    if not chosen:
        return None
    cards: list[Markup] = []
    left_bytes = BUDGET_BYTES
    for detail in chosen:
        card = call_card(detail, recordings, report.expect, left_bytes, opened=len(cards) < CALLS_OPENED)
        left_bytes -= card.sound_bytes
        cards.append(card.markup)
    bad = any(not detail.outcome.good for detail in chosen)
    note = "The worst first." if bad else "All were good; these came nearest to not being so."
    return section("calls", "Worst calls", join(cards), note=note)


def chosen_calls(report: RunReport) -> list[CallDetail]:
    """The worst, and with none of those the first of the sample. Those with a recording come before the others."""
    worst = [detail for detail in report.calls_detail if detail.worst] or list(report.calls_detail[:3])
    by_badness = sorted(worst, key=lambda detail: -detail.badness)
    heard = [detail for detail in by_badness if detail.outcome.recording is not None]
    silent = [detail for detail in by_badness if detail.outcome.recording is None]
    return (heard + silent)[:MOST_CALLS]


def _definitions() -> Markup:
    terms = [
        tag("div", tag("dt", name, id=f"def-{anchor}"), tag("dd", meaning)) for anchor, name, meaning in DEFINITIONS
    ]
    told = tag("p", "In full, with their sources: ", tag("code", "docs/loadtest/report.md"), ".", class_="muted small")
    return section("definitions", "What the numbers mean", tag("dl", *terms, class_="definitions"), told)
