"""docs/operations/: dashboard and alerts ask for what a running gateway tells, and the page knows each alert."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.telemetry.metrics import ALARMING, STAGES
from gateway.telemetry.traces_spans import ORDINARY_CAUSES
from scripts.grafana.dashboard import as_json
from tests.gateway.telemetry.promql import Expression, NotPromQL, parse
from tests.serving import served

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "operations"
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
README = (FOLDER / "README.md").read_text("utf-8")
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text("utf-8"))
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"] for rule in group["rules"]
]
TARGETS = [
    pytest.param(target, id=f"{panel['title']} {target['refId']}")
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
]
EXPRESSIONS = [
    *(target.values[0]["expr"] for target in TARGETS),  # type: ignore[index]
    *(annotation["expr"] for annotation in DASHBOARD["annotations"]["list"]),
    *(alert["expr"] for alert in ALERTS),
]
OF_PROMETHEUS = {"job", "instance", "le"}
SUFFIXES = re.compile(r"_(total|bucket|count|sum)$")
KNOWN_VALUES = {"stage": set(STAGES), "kind": {"in", "out", "lost", "concealed", "late"}, "fake": {"true", "false"}}


@cache
def source() -> str:
    packages = ("gateway", "streaming", "engines")
    return "\n".join(path.read_text("utf-8") for package in packages for path in (ROOT / package).rglob("*.py"))


@cache
def documented() -> dict[str, set[str]]:
    """The labels of each metric, as docs/operations.md has them."""
    rows = re.findall(r"^\| (`(?:offhook|process)_[^|]*) \|([^|]*)\|", PAGE, re.MULTILINE)
    return {
        name: set(re.findall(r"`(\w+)`", labels)) for names, labels in rows for name in re.findall(r"`(\w+)`", names)
    }


def documented_as(metric: str) -> str:
    return metric if metric in documented() else SUFFIXES.sub("", metric)


def all_named() -> Iterator[str]:
    for text in EXPRESSIONS:
        yield from (selector.metric for selector in parse(text).selectors)


async def test_what_is_asked_for_is_what_a_gateway_tells() -> None:
    async with served() as here, httpx.AsyncClient() as client:
        told = (await client.get(f"{here.url}/metrics")).text
    families = set(re.findall(r"^# TYPE (\w+)", told, re.MULTILINE))
    assert {name for name in all_named() if not {name, SUFFIXES.sub("", name)} & families} == set()
    for family in re.findall(r"^# TYPE (\w+) histogram", told, re.MULTILINE):
        assert not [name for name in all_named() if name == family], f"{family} is a histogram: _bucket, _count, _sum"


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_is_one_and_its_labels_are_those_of_its_metrics(text: str) -> None:
    expression = parse(text)
    assert expression.selectors
    labels = set(OF_PROMETHEUS)
    for selector in expression.selectors:
        own = documented()[documented_as(selector.metric)]
        labels |= own
        assert {label for label, _, _ in selector.matchers} <= own | OF_PROMETHEUS, selector
    assert expression.labels <= labels


def test_the_values_that_are_asked_for_are_told() -> None:
    for text in EXPRESSIONS:
        for selector in parse(text).selectors:
            for label, sign, value in selector.matchers:
                if label in OF_PROMETHEUS:
                    continue
                for one in value.split("|") if "~" in sign else [value]:
                    known = KNOWN_VALUES.get(label)
                    assert one in known if known is not None else is_in_source(one), (selector.metric, label, one)


def is_in_source(value: str) -> bool:
    """As a whole constant, or as the beginning of one."""
    stem = value.removesuffix(".+").removeprefix("carrier_")
    return f'"{stem}"' in source() or (value.endswith(".+") and stem in source())


def test_the_ordinary_causes_are_causes() -> None:
    assert {cause for cause in ORDINARY_CAUSES if not is_in_source(cause)} == set()


# --- the dashboard ------------------------------------------------------------------------------------------------


def test_the_dashboard_is_the_one_that_is_described() -> None:
    assert (FOLDER / "grafana-dashboard.json").read_text("utf-8") == as_json(), "run: python -m scripts.grafana"


def test_the_dashboard_can_be_laid_out_and_every_panel_says_what_it_answers() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"].count("?") >= 1, panel["title"]
            assert panel["targets"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_query_is_limited_to_the_gateways_that_were_chosen(target: dict[str, Any]) -> None:
    for selector in parse(target["expr"]).selectors:
        assert ("job", "=~", "$job") in selector.matchers
        assert ("instance", "=~", "$instance") in selector.matchers
    shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
    assert shown <= parse(target["expr"]).labels


def test_variables_that_are_used_are_there() -> None:
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval", "__auto", "__all"}
    assert used == {variable["name"] for variable in DASHBOARD["templating"]["list"]}


def test_every_metric_is_on_the_dashboard() -> None:
    """What is worth a metric is worth a look."""
    shown = {documented_as(selector.metric) for target in TARGETS for selector in expression_of(target).selectors}
    assert set(documented()) - shown == {"offhook_admission_overloaded"}  # the alerts have it


def expression_of(target: Any) -> Expression:
    return parse(target.values[0]["expr"])


# --- the alerts ---------------------------------------------------------------------------------------------------


def test_alerts_have_what_people_need() -> None:
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS) > 20
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert {"summary", "description"} == set(alert["annotations"])
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(alert["annotations"])))
        assert used <= {"instance"} | labels_of(alert["expr"]), alert["alert"]
        assert re.fullmatch(r"\d+[mh]", alert.get("for", "1m"))


def labels_of(text: str) -> set[str]:
    expression = parse(text)
    return expression.labels.union(*(documented()[documented_as(s.metric)] for s in expression.selectors))


def test_events_that_are_alarming_are_there_from_the_start() -> None:
    """An increase from nothing to 1 is none, for Prometheus."""
    grows = [s for alert in ALERTS for s in parse(alert["expr"]).selectors if s.metric == "offhook_events_total"]
    assert {name for s in grows for _, _, value in s.matchers for name in value.split("|")} == set(ALARMING)


def test_the_page_says_what_to_do_about_each_alert() -> None:
    rows = re.findall(r"^\| (`Offhook[^|]*) \|", README, re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(a["alert"] for a in ALERTS)


# --- the parser ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "sum(rate(a_total[5m])",
        "sum by (b (a)",
        "rate(a_total)",
        "a[5m]",
        "a[5]",
        "a{b}",
        'a{b="c"',
        "a >",
        "a b",
        "histogram_quantile(0.95, sum by (stage) (rate(a_bucket[5m])))",
        "median(a)",
        "a offset b",
        "a ? b",
        "",
    ],
)
def test_what_is_no_expression_is_told(text: str) -> None:
    with pytest.raises(NotPromQL):
        parse(text)


def test_what_an_expression_names() -> None:
    found = parse('sum by (job) (rate(a_total{b=~"c|d",e!="f"}[5m])) / 2 > 1e9 and on (job, g) max(h) or vector(0)')
    assert [(s.metric, s.matchers, s.ranged) for s in found.selectors] == [
        ("a_total", (("b", "=~", "c|d"), ("e", "!=", "f")), True),
        ("h", (), False),
    ]
    assert found.labels == {"job", "g"}
