"""The expressions that the dashboard is made of. Labels are given by name: ``~`` before a value makes it a regular
expression, ``!`` a value that it must not have."""

from __future__ import annotations

OURS = 'job=~"$job",instance=~"$instance"'
"""What every query is limited to."""
WINDOW = "$__rate_interval"


def series(metric: str, **labels: str) -> str:
    return f"{metric}{{{','.join([OURS, *(_matcher(name, value) for name, value in labels.items())])}}}"


def _matcher(label: str, value: str) -> str:
    sign = "!~" if value.startswith("!~") else "=~" if value.startswith("~") else "="
    return f'{label}{sign}"{value.lstrip("!~")}"'


def rate(metric: str, window: str = WINDOW, **labels: str) -> str:
    return f"rate({series(metric, **labels)}[{window}])"


def total(expr: str, by: str = "") -> str:
    return f"sum by ({by}) ({expr})" if by else f"sum({expr})"


def a_minute(metric: str, by: str = "", **labels: str) -> str:
    return f"60 * {total(rate(metric, **labels), by)}"


def share(part: str, whole: str, by: str = "") -> str:
    return f"{total(part, by)} / {total(whole, by)}"


def or_none(expr: str) -> str:
    """0 where nothing was counted yet: a counter of labels exists from its first time on."""
    return f"({expr} or vector(0))"


def quantile(share: float, metric: str, by: str = "", window: str = WINDOW, **labels: str) -> str:
    """Of a histogram."""
    buckets = rate(f"{metric}_bucket", window, **labels)
    return f"histogram_quantile({share}, {total(buckets, f'le, {by}' if by else 'le')})"


def grown(metric: str, by: str, **labels: str) -> str:
    return f"sum by ({by}) (increase({series(metric, **labels)}[{WINDOW}]))"
