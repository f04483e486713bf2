"""Percentiles: nearest-rank over the values themselves, or read from a histogram where there is no more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from loadtest.run_report import Percentiles


def nearest_rank(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least ``share`` (0 to 1) of them do not exceed; None of none."""
    if not ordered:
        return None
    # 0.95 * 20 is 19 and a bit in floating point: that bit is no whole rank more.
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def percentiles_of(values: Iterable[float]) -> Percentiles:
    ordered = sorted(values)
    at = {f"p{rank}": _rounded(nearest_rank(ordered, rank / 100)) for rank in (50, 90, 95, 99)}
    return Percentiles(count=len(ordered), max=_rounded(ordered[-1]) if ordered else None, **at)


def percentiles_of_histogram(buckets: Mapping[float, float]) -> Percentiles:
    """Of a Prometheus histogram: counts of values up to each bound in seconds, the last bound infinite. Within a bucket
    values are taken to lie evenly; what is beyond the last bound is put at it. ``max`` is the bound of the highest
    bucket that has any."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return Percentiles()
    at = {f"p{rank}": _rounded(_quantile(buckets, bounds, total * rank / 100) * 1000) for rank in (50, 90, 95, 99)}
    return Percentiles(count=round(total), max=_rounded(_highest(buckets, bounds) * 1000), **at)


def _quantile(buckets: Mapping[float, float], bounds: Sequence[float], rank: float) -> float:
    low_s, below = 0.0, 0.0
    for bound_s in bounds:
        if buckets[bound_s] >= rank and buckets[bound_s] > below:
            if math.isinf(bound_s):
                return low_s
            return low_s + (bound_s - low_s) * (rank - below) / (buckets[bound_s] - below)
        low_s, below = bound_s, buckets[bound_s]
    return low_s


def _highest(buckets: Mapping[float, float], bounds: Sequence[float]) -> float:
    low_s, below, highest_s = 0.0, 0.0, 0.0
    for bound_s in bounds:
        if buckets[bound_s] > below:
            highest_s = low_s if math.isinf(bound_s) else bound_s
        low_s, below = bound_s, buckets[bound_s]
    return highest_s


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
