"""The dashboard as Grafana imports it (10 and later)."""

from __future__ import annotations

import json

from scripts.grafana import rows
from scripts.grafana.panels import SOURCE, Json, laid_out
from scripts.grafana.promql import series


def as_json() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def dashboard() -> Json:
    shown = [
        rows.at_a_glance(),
        rows.calls(),
        rows.what_callers_hear(),
        rows.engines(),
        rows.machine(),
        rows.what_else(),
    ]
    return {
        "uid": "offhook",
        "title": "Offhook",
        "description": "A voice gateway at a glance, what its callers hear, and why.",
        "tags": ["offhook", "voice"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [],
        "annotations": {"list": [_starts()]},
        "templating": {"list": [_source(), *_variables()]},
        "panels": list(laid_out(shown)),
    }


def _source() -> Json:
    return {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variables() -> list[Json]:
    return [
        _variable("job", "Job", "label_values(offhook_ready, job)"),
        _variable("instance", "Gateway", 'label_values(offhook_ready{job=~"$job"}, instance)'),
    ]


def _variable(name: str, label: str, query: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _starts() -> Json:
    return {
        "name": "Starts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "purple",
        "expr": f"changes({series('process_start_time_seconds')}[1m]) > 0",
        "titleFormat": "started",
        "textFormat": "{{instance}}",
    }
