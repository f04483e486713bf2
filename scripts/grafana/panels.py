"""Panels, and how they become Grafana's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripts.grafana.promql import quantile

Json = dict[str, Any]
Steps = Sequence[tuple[float | None, str]]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
GOOD, WATCH, BAD = "green", "orange", "red"
LAST = {"reduceOptions": {"calcs": ["lastNotNull"]}}


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """``kind`` is Grafana's name of it; ``steps`` are (from, colour), the first of them without a bound."""

    title: str
    question: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    steps: Steps = ((None, GOOD),)
    most: float | None = None
    mappings: Sequence[Json] = ()
    stack: bool = False
    options: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    title: str
    panels: Sequence[Panel]


def glance(title: str, question: str, expr: str, **more: Any) -> Panel:
    """One figure, on the colour of how it is."""
    options = {**LAST, "colorMode": "background", "graphMode": "none", **more.pop("options", {})}
    return Panel(title, question, [Query(expr)], kind="stat", width=3, height=4, options=options, **more)


def percentiles(metric: str, shares: Sequence[float] = (0.5, 0.95, 0.99), **labels: str) -> list[Query]:
    return [Query(quantile(share, metric, **labels), f"p{round(share * 100)}") for share in shares]


def laid_out(rows: Sequence[Row]) -> Iterator[Json]:
    """From left to right, under their row's title."""
    number, y = 1, 0
    for row in rows:
        place = _place(0, y, COLUMNS, 1)
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": place}
        number, y, x, tallest = number + 1, y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            yield _panel(panel, number, _place(x, y, panel.width, panel.height))
            number, x, tallest = number + 1, x + panel.width, max(tallest, panel.height)
        y += tallest


def _place(x: int, y: int, width: int, height: int) -> Json:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.question,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        "targets": [_target(panel.kind, index, query) for index, query in enumerate(panel.queries)],
        "transformations": _ONLY_LABELS if panel.kind == "table" else [],
    }


_ONLY_LABELS = [{"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True}}}]


def _defaults(panel: Panel) -> Json:
    defaults: Json = {
        "unit": panel.unit,
        "mappings": list(panel.mappings),
        "thresholds": {"mode": "absolute", "steps": [{"value": at, "color": colour} for at, colour in panel.steps]},
        "color": {"mode": "thresholds" if panel.kind in ("stat", "gauge") else "palette-classic"},
        "noValue": "–",
        "min": 0,
    }
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stack else 8,
            "showPoints": "never",
            "lineWidth": 1,
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
        }
    return defaults


def _options(panel: Panel) -> Json:
    if panel.kind != "timeseries":
        return panel.options
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}, **panel.options}


def _target(kind: str, index: int, query: Query) -> Json:
    return {
        "refId": chr(ord("A") + index),
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "format": kind if kind in ("heatmap", "table") else "time_series",
        "instant": kind == "table",
        "range": kind != "table",
    }
