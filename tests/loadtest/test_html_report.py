from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from loadtest import html_report
from loadtest.html_report import CALLS_OPENED, MOST_CALLS, chosen_calls, to_html
from loadtest.outcome import Fate, Fault
from loadtest.report_words import DEFINITIONS, FATES, FAULTS, VERDICTS
from loadtest.run_report import RunReport, Verdict
from tests.loadtest import sample_reports as samples

ALL = {
    "large": lambda: samples.large(None),
    "smoke": samples.smoke,
    "void": samples.void,
    "interrupted": samples.interrupted,
    "hostile": samples.hostile,
}


class Page(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.inside: list[str] = []
        self.text = ""
        self.of: dict[str, str] = {"style": "", "script": ""}
        self.feed(page)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, {key: value or "" for key, value in attributes}))
        self.inside.append(name)

    def handle_endtag(self, name: str) -> None:
        while self.inside and self.inside.pop() != name:
            pass

    def handle_data(self, data: str) -> None:
        raw = self.inside[-1] if self.inside and self.inside[-1] in self.of else None
        if raw is not None:
            self.of[raw] += data
        else:
            self.text += data + " "

    def all(self, name: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag == name]

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_fetched_and_nothing_runs_but_our_own(name: str) -> None:
    page = Page(to_html(ALL[name](), None))
    for tag, attributes in page.tags:
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, key)
            assert key != "style", (tag, key)
            if key in {"src", "href", "srcset", "action", "data", "poster", "xlink:href"}:
                assert value.startswith(("data:image/svg+xml;base64,", "data:audio/wav;base64,", "#")), (
                    tag,
                    key,
                    value,
                )
    assert "url(" not in page.of["style"]
    assert "@import" not in page.of["style"]
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|eval|innerHTML|import)\b", page.of["script"])
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == names.count("style") == names.count("img") == 1
    assert not {"iframe", "object", "embed", "base", "form", "foreignobject"} & set(names)


@pytest.mark.parametrize("name", ALL)
def test_its_policy_lets_its_own_style_and_script_run_and_no_other(name: str) -> None:
    page = Page(to_html(ALL[name](), None))
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'"
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.of[kind].encode()).digest()).decode()
        assert rules.pop(f"{kind}-src") == f"'sha256-{digest}'"
    assert rules == {"img-src": "data:", "media-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    order = [name for name, _ in page.tags]
    policy_at = next(index for index, (_, attributes) in enumerate(page.tags) if "http-equiv" in attributes)
    assert policy_at < min(order.index("style"), order.index("script"), order.index("link"))


@pytest.mark.parametrize("name", ALL)
def test_every_anchor_leads_somewhere_and_is_the_only_one_of_its_name(name: str) -> None:
    page = Page(to_html(ALL[name](), None))
    ids = page.ids()
    assert len(ids) == len(set(ids))
    targets = [link["href"][1:] for link in page.all("a")]
    labels = [value for _, attributes in page.tags for value in attributes.get("aria-labelledby", "").split()]
    assert set(targets) | set(labels) <= set(ids)
    assert targets


@pytest.mark.parametrize("name", ALL)
def test_every_plot_has_words_and_every_table_a_caption(name: str) -> None:
    page = Page(to_html(ALL[name](), None))
    for svg in page.all("svg"):
        assert svg.get("aria-hidden") == "true" or svg.get("aria-label") or "viewbox" in svg
    assert len(page.all("caption")) == len(page.all("table"))


def test_the_verdict_comes_first_and_then_why() -> None:
    text = squeezed(Page(to_html(samples.large(None), None)).text)
    places = [
        text.index(part)
        for part in (
            "FAKE ENGINES",
            "REGRESSION",
            "Not good enough",
            "1,953 of 2,000 calls were good",
            "goodput is 97.65 %",
            "Beside the baseline",
            "What came of the calls",
            "Latency",
            "Capacity",
            "Over time",
            "How it sounded",
            "Worst calls",
            "Server and load test",
            "What grew",
            "How it was run",
            "What the numbers mean",
        )
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_is_told(verdict: Verdict) -> None:
    page = Page(to_html(msgspec.structs.replace(samples.smoke(), verdict=verdict), None))
    assert f"{VERDICTS[verdict][0]} " in page.text


def test_a_void_run_judges_nobody_but_itself() -> None:
    text = squeezed(Page(to_html(samples.void(), None)).text)
    assert "VOID" in text
    assert text.count("the generators' own p99 lateness was 18.2 ms") == 1
    assert "60 % 99 % wanted" in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "not good" not in text
    assert "too late p99, void above 5 ms" in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "--pin" in text, "and it is told what to do about it"


@pytest.mark.parametrize(("fake", "told"), [(True, "scripted (fake)"), (False, "real"), (None, "it did not say")])
def test_engines_are_named_for_what_they_are(fake: bool | None, told: str) -> None:
    page = Page(to_html(msgspec.structs.replace(samples.smoke(), fake_engines=fake), None))
    assert told in page.text
    assert ("FAKE ENGINES" in page.text) is (fake is True)


def test_a_run_without_a_call_has_a_page() -> None:
    text = Page(to_html(samples.interrupted(), None)).text
    assert "No call was placed" in text
    assert "INTERRUPTED" in text
    assert "Worst calls" not in text


def test_where_calls_may_be_refused_those_without_a_fault_are_judged() -> None:
    report = msgspec.structs.replace(samples.smoke(), goodput=0.5, faultless=1.0, expect={"refused_ok": True})
    text = squeezed(Page(to_html(report, None)).text).replace("\N{NO-BREAK SPACE}", " ")
    assert "50 % ● good 100 % without a fault, as calls may be refused" in text


def test_hostile_words_are_shown_as_words() -> None:
    page = Page(to_html(samples.hostile(), None))
    shown = samples.HOSTILE.replace("\u202e", "\ufffd").replace("\x00", "\ufffd")
    assert page.text.count(shown) > 20
    assert "\u202e" not in page.text
    assert "alert" not in page.of["script"]


@pytest.mark.parametrize("verdict", ["</style>", "</title>", "-->", "]]>"])
def test_no_end_of_anything_is_the_end_of_it(verdict: str) -> None:
    report = msgspec.structs.replace(samples.smoke(), scenario=verdict, about=verdict)
    assert [name for name, _ in Page(to_html(report, None)).tags] == [
        name for name, _ in Page(to_html(msgspec.structs.replace(report, scenario="x", about="x"), None)).tags
    ]


def test_every_fate_and_fault_and_verdict_has_words() -> None:
    assert set(FATES) == set(Fate)
    assert set(FAULTS) == set(Fault)
    assert set(VERDICTS) == set(Verdict)
    assert len({anchor for anchor, _, _ in DEFINITIONS}) == len(DEFINITIONS)


# --- the worst calls ---


def test_the_worst_calls_can_be_heard(tmp_path: Path) -> None:
    page = Page(to_html(samples.large(tmp_path), tmp_path))
    assert len(page.all("audio")) == 9
    assert all("controls" in audio and audio["preload"] == "metadata" for audio in page.all("audio"))
    waves = [path["class"] for path in page.all("path") if path.get("class", "").startswith("wave")]
    assert waves.count("wave caller") == waves.count("wave agent") == 9
    calls = [attributes for attributes in page.all("details") if attributes.get("class") == "call"]
    assert ["open" in call for call in calls] == [True] * CALLS_OPENED + [False] * (9 - CALLS_OPENED)


def test_answers_are_measured_from_the_callers_last_sound(tmp_path: Path) -> None:
    page = to_html(samples.large(tmp_path), tmp_path)
    first = re.search(r'<rect class="wait answer" rx="2" x="([\d.]+)%" width="([\d.]+)%"', page)
    assert first is not None
    assert float(first[1]) == pytest.approx(100 * 3.0 / 24, abs=0.1)
    assert float(first[2]) == pytest.approx(100 * 0.64 / 24, abs=0.1)


def test_sound_that_would_make_the_page_too_large_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_report, "BUDGET_BYTES", 3_000_000)
    page = Page(to_html(samples.large(tmp_path), tmp_path))
    assert len(page.all("audio")) == 2
    assert sum(len(audio["src"]) for audio in page.all("audio")) <= 3_000_000
    assert page.text.count("Its sound is left out") == 7


def test_recordings_that_are_gone_are_said_to_be_gone(tmp_path: Path) -> None:
    report = samples.large(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    page = Page(to_html(report, tmp_path))
    assert page.all("audio") == []
    assert page.text.count("The recording is not there.") == 9


def test_those_that_can_be_heard_are_shown_first() -> None:
    calls = tuple(samples.worst_call(number, None if number % 2 else "a.wav") for number in range(40))
    chosen = chosen_calls(msgspec.structs.replace(samples.smoke(), calls_detail=calls))
    assert [detail.outcome.number for detail in chosen] == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22][:MOST_CALLS]


def test_an_agent_that_cut_in_is_told_of() -> None:
    detail = samples.worst_call(1, None)
    turn = msgspec.structs.replace(detail.outcome.turns[0], cut_in_ms=310.0, voice_to_voice_ms=None)
    cut = msgspec.structs.replace(detail, outcome=msgspec.structs.replace(detail.outcome, turns=(turn,)))
    text = Page(to_html(msgspec.structs.replace(samples.smoke(), calls_detail=(cut,)), None)).text
    assert "cut in by 310\N{NO-BREAK SPACE}ms" in text


def test_turns_and_stages_of_a_call_are_bounded() -> None:
    detail = samples.worst_call(1, None)
    turns = detail.outcome.turns * 50
    long = msgspec.structs.replace(
        detail, outcome=msgspec.structs.replace(detail.outcome, turns=turns), stages=detail.stages * 50
    )
    text = Page(to_html(msgspec.structs.replace(samples.smoke(), calls_detail=(long,)), None)).text
    assert "160 more turns are in the JSON." in text


# --- size ---


def test_a_long_run_has_no_longer_plots(tmp_path: Path) -> None:
    report = samples.large(None)
    longer: RunReport = msgspec.structs.replace(
        report,
        length_s=3_600.0,
        timeline=tuple(
            msgspec.structs.replace(report.timeline[second % 600], at_s=float(second)) for second in range(3_600)
        ),
    )
    assert len(to_html(longer, None)) < 1.2 * len(to_html(report, None))
