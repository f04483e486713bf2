"""Looks at the load about once a second, for the gate; says so once when it closes or opens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import structlog
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.admission import Load, LoadGate, Measure

EVERY_S = 1.0

_log = structlog.get_logger(__name__)


async def watch_load(gate: LoadGate, load: Callable[[], Load]) -> None:
    """Runs until cancelled."""
    loop = asyncio.get_running_loop()
    closed_by: Measure | None = None
    while True:
        await asyncio.sleep(EVERY_S)
        gate.note(load(), loop.time())
        if gate.closed_by is closed_by:
            continue
        closed_by = gate.closed_by
        ratios = {measure.value: round(ratio, 2) for measure, ratio in gate.ratios.items()}
        if closed_by is None:
            _log.info("new calls are taken again", of_limits=ratios)
        else:
            _log.warning("new calls are refused: the load is over a limit", measure=closed_by.value, of_limits=ratios)


class GateReadings(Collector):
    """How near each measure is to its limit."""

    def __init__(self, gate: LoadGate) -> None:
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        ratio = GaugeMetricFamily(
            "offhook_admission_load_ratio",
            "Each measure of load as a share of the limit at which calls are refused",
            labels=["measure"],
        )
        over = GaugeMetricFamily(
            "offhook_admission_overloaded", "1 while the measure makes that calls are refused", labels=["measure"]
        )
        for measure in Measure:
            ratio.add_metric([measure.value], self._gate.ratios[measure])
            over.add_metric([measure.value], float(self._gate.over[measure]))
        yield from (ratio, over)
