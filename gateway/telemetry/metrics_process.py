"""What the gateway's process uses of the machine, read when asked. The names are those that Prometheus' clients use."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engines.memory import footprint_bytes

_FD_FOLDER = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
_THREADS_FOLDER = "/proc/self/task"
_CPU = "process_cpu_seconds"
_RESIDENT = "process_resident_memory_bytes"
_OPEN_FDS = "process_open_fds"
_MAX_FDS = "process_max_fds"
_THREADS = "process_threads"
_STARTED = "process_start_time_seconds"
_TASKS = "offhook_tasks"


class ProcessReadings(Collector):
    """Linux and macOS. What can't be told is left out."""

    def __init__(self, started_s: float) -> None:
        """``started_s``: Unix time."""
        self._started_s = started_s

    def describe(self) -> Iterator[Metric]:
        yield CounterMetricFamily(_CPU, "")
        for name in (_RESIDENT, _OPEN_FDS, _MAX_FDS, _THREADS, _STARTED, _TASKS):
            yield GaugeMetricFamily(name, "")

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(_CPU, "User and system CPU time, of all threads", value=time.process_time())
        yield GaugeMetricFamily(_STARTED, "When it was started, in Unix time", value=self._started_s)
        yield GaugeMetricFamily(_THREADS, "Threads, those of libraries too", value=_threads())
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        yield GaugeMetricFamily(_MAX_FDS, "How many descriptors it may open", value=limit)
        yield GaugeMetricFamily(_TASKS, "Tasks of the event loop", value=_tasks())
        if resident_bytes := footprint_bytes():
            yield GaugeMetricFamily(_RESIDENT, "Physical memory that it holds", value=resident_bytes)
        if (fds := _entries(_FD_FOLDER)) is not None:
            yield GaugeMetricFamily(_OPEN_FDS, "Open descriptors", value=fds - 1)  # but for the one it was read by


def _threads() -> int:
    threads = _entries(_THREADS_FOLDER)
    return threading.active_count() if threads is None else threads


def _entries(folder: str) -> int | None:
    try:
        return len(os.listdir(folder))
    except OSError:
        return None


def _tasks() -> int:
    """0 where no loop runs."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0
