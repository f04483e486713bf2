"""Percentiles of values that are all there. (Histograms of what is not: :mod:`gateway.telemetry.metrics_timings`.)"""

from __future__ import annotations

import math
from collections.abc import Sequence


def nearest_rank(ordered: Sequence[float], share: float) -> float | None:
    """The least value that ``share`` (0 to 1) of all are no greater than; None of none."""
    # 0.95 * 20 is 19 and a bit in floating point: that bit is no whole rank more.
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)] if ordered else None
