"""How the engines are, read when asked: their hosts know."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engines.api import EngineHealth, LaneHealth
from gateway.telemetry.history import lanes_of


class EngineReadings(Collector):
    def __init__(self, health: Callable[[], EngineHealth]) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        health = self._health()
        yield GaugeMetricFamily(
            "offhook_engine_overload",
            "0 none, 1 no speculation, 2 short first clauses, 3 calls are refused",
            value=health.overload,
        )
        yield from _hosts(health)
        yield from _lanes(lanes_of(health))
        failed = CounterMetricFamily(
            "offhook_backend_failures",
            "Requests a backend failed where another stands behind it",
            labels=["stage", "backend"],
        )
        for (stage, backend), count in health.failed_requests.items():
            failed.add_metric([stage, backend], count)
        yield failed


def _hosts(health: EngineHealth) -> Iterator[Metric]:
    up = GaugeMetricFamily("offhook_host_up", "1 while all engines of the host take requests", labels=["host"])
    restarts = CounterMetricFamily("offhook_host_restarts", "Times the host was started again", labels=["host"])
    memory = GaugeMetricFamily("offhook_host_memory_bytes", "Physical memory of the host", labels=["host"])
    cpu = CounterMetricFamily("offhook_host_cpu_seconds", "User and system CPU time of the host", labels=["host"])
    device = GaugeMetricFamily("offhook_host_device_bytes", "Memory that MLX holds", labels=["host"])
    waiting = GaugeMetricFamily("offhook_host_waiting_jobs", "Jobs without a first answer yet", labels=["host"])
    for name, host in health.hosts.items():
        up.add_metric([name], float(host.up))
        restarts.add_metric([name], host.restarts)
        device.add_metric([name], host.device_bytes)
        memory.add_metric([name], host.memory_bytes)
        cpu.add_metric([name], host.cpu_s)
        waiting.add_metric([name], host.waiting)
    yield from (up, restarts, memory, cpu, device, waiting)


def _lanes(lanes: dict[tuple[str, str], LaneHealth]) -> Iterator[Metric]:
    labels = ["host", "lane"]
    slots = GaugeMetricFamily("offhook_lane_slots", "Jobs that can be worked on at once", labels=labels)
    busy = CounterMetricFamily("offhook_lane_busy_seconds", "Work done, over all slots", labels=labels)
    running = GaugeMetricFamily("offhook_lane_running_jobs", "Jobs that are worked on", labels=labels)
    waiting = GaugeMetricFamily("offhook_lane_waiting_jobs", "Jobs that wait", labels=labels)
    age = GaugeMetricFamily(
        "offhook_lane_queue_age_seconds",
        "How far the latest of the jobs that wait is past its time",
        labels=labels,
    )
    for name, lane in lanes.items():
        slots.add_metric(name, lane.slots)
        busy.add_metric(name, lane.busy_s)
        running.add_metric(name, lane.running)
        waiting.add_metric(name, lane.waiting)
        age.add_metric(name, lane.late_ms / 1000)
    yield from (slots, busy, running, waiting, age)
