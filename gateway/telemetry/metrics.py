"""What Prometheus can read at ``/metrics``. One registry an application, so that two in one process never collide."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engines.api import EngineHealth
from gateway.records.call_record import CallRecord
from streaming.turn_times import TurnTimes

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
MAX_LABELS = 256
"""Names a label may take; later ones are counted as ``other``, so that no caller can grow the registry."""

STAGES = ("decision", "final", "first_token", "first_clause", "first_audio", "first_sent", "cut_to_silence")
_CUT = "cut_to_silence"
_STAGE_BUCKETS_S = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.2, 1.6, 2.5, 5.0, 10.0)
_JITTER_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
_CALL_BUCKETS_S = (1, 5, 15, 30, 60, 120, 300, 600, 1_800, 3_600)


_FRAME_KINDS = {"frames_in": "in", "frames_out": "out", "lost": "lost", "concealed": "concealed", "late": "late"}


class _Names:
    """The first names that came, each no longer than a name should be."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def bounded(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= MAX_LABELS or len(name) > 64:
            return "other"
        self._known.add(name)
        return name


class Metrics:
    """``on_response`` is told of each answer's ``first_sent`` stage, in milliseconds."""

    def __init__(self, *, on_response: Callable[[float], None] = lambda _: None) -> None:
        self._on_response = on_response
        registry = self._registry = CollectorRegistry()
        self._live = Gauge("offhook_calls_live", "Calls that hold a place", registry=registry)
        self._limit = Gauge("offhook_calls_limit", "Places there are", registry=registry)
        self._ended = Counter("offhook_calls_total", "Calls that ended", ["cause"], registry=registry)
        self._length = Histogram(
            "offhook_call_seconds", "Length of ended calls", buckets=_CALL_BUCKETS_S, registry=registry
        )
        self._refused = Counter("offhook_calls_refused_total", "Calls refused", ["reason"], registry=registry)
        self._events = Counter("offhook_events_total", "What sessions counted", ["name"], registry=registry)
        self._stages = Histogram(
            "offhook_turn_stage_seconds",
            "After the caller's last voiced sample; cut_to_silence after the onset of the interruption",
            ["stage"],
            buckets=_STAGE_BUCKETS_S,
            registry=registry,
        )
        self._tokens = Counter("offhook_tokens_total", "Tokens of the language model", ["kind"], registry=registry)
        self._frames = Counter(
            "offhook_phone_frames_total",
            "Frames of ended phone calls, as far as their wires tell",
            ["kind"],
            registry=registry,
        )
        self._jitter = Histogram(
            "offhook_phone_jitter_seconds",
            "Jitter of callers' audio at the end of phone calls",
            buckets=_JITTER_BUCKETS_S,
            registry=registry,
        )
        self._lag = Gauge(
            "offhook_loop_lag_seconds", "Worst delay of the event loop since last read", registry=registry
        )
        self._ready = Gauge("offhook_ready", "1 when calls are taken", registry=registry)
        self._worst_lag_s = 0.0
        self._causes, self._reasons, self._names = _Names(), _Names(), _Names()
        self._lag.set_function(self._take_worst_lag)

    def watch(self, *, live: Callable[[], int], limit: int, ready: Callable[[], bool]) -> None:
        """Where the gauges are read from."""
        self._live.set_function(live)
        self._limit.set(limit)
        self._ready.set_function(lambda: float(ready()))

    def watch_engines(self, health: Callable[[], EngineHealth]) -> None:
        """Where it is read how the engines are."""
        self._registry.register(_Engines(health))

    def refused(self, reason: str) -> None:
        self._refused.labels(self._reasons.bounded(reason)).inc()

    def ended(self, record: CallRecord) -> None:
        self._ended.labels(self._causes.bounded(record.cause or "unknown")).inc()
        if record.ended_ms is not None:
            self._length.observe(record.ended_ms / 1000)

    def count(self, name: str) -> None:
        """A :class:`streaming.effects.Count`."""
        self._events.labels(self._names.bounded(name)).inc()

    def turn(self, times: TurnTimes, before: TurnTimes | None = None) -> None:
        """A turn's times; ``before`` is the earlier record of the same turn, whose stages were observed already. What
        answers no speech (a greeting, a typed message) has no such stages."""
        for stage in STAGES:
            value: float | None = getattr(times, f"{stage}_ms") if times.utterance or stage == _CUT else None
            if value is not None and (before is None or getattr(before, f"{stage}_ms") is None):
                self._stages.labels(stage).observe(value / 1000)
                if stage == "first_sent":
                    self._on_response(value)
        for kind in ("prompt", "prefilled", "completion"):
            field = f"{kind}_tokens"
            grown = getattr(times, field) - (getattr(before, field) if before is not None else 0)
            self._tokens.labels(kind).inc(max(grown, 0))

    def phone_media(self, quality: Mapping[str, int | float | None]) -> None:
        """Of a phone call that ended: the fields of :class:`gateway.transports.phone.line.Quality`."""
        for field, kind in _FRAME_KINDS.items():
            self._frames.labels(kind).inc(quality[field] or 0)
        jitter_ms = quality["jitter_ms"]
        if jitter_ms is not None:
            self._jitter.observe(jitter_ms / 1000)

    def lagged(self, lag_s: float) -> None:
        self._worst_lag_s = max(self._worst_lag_s, lag_s)

    def _take_worst_lag(self) -> float:
        worst, self._worst_lag_s = self._worst_lag_s, 0.0
        return worst

    def exposition(self) -> bytes:
        return generate_latest(self._registry)


class _Engines(Collector):
    """Read when asked: the hosts know."""

    def __init__(self, health: Callable[[], EngineHealth]) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        health = self._health()
        yield GaugeMetricFamily(
            "offhook_engine_overload",
            "0 none, 1 no speculation, 2 short first clauses, 3 calls are refused",
            value=health.overload,
        )
        up = GaugeMetricFamily("offhook_host_up", "1 while all engines of the host take requests", labels=["host"])
        restarts = CounterMetricFamily("offhook_host_restarts", "Times the host was started again", labels=["host"])
        memory = GaugeMetricFamily("offhook_host_memory_bytes", "Physical memory of the host", labels=["host"])
        device = GaugeMetricFamily("offhook_host_device_bytes", "Memory that MLX holds", labels=["host"])
        waiting = GaugeMetricFamily("offhook_host_waiting_jobs", "Jobs without a first answer yet", labels=["host"])
        for name, host in health.hosts.items():
            up.add_metric([name], float(host.up))
            restarts.add_metric([name], host.restarts)
            device.add_metric([name], host.device_bytes)
            memory.add_metric([name], host.memory_bytes)
            waiting.add_metric([name], host.waiting)
        failed = CounterMetricFamily(
            "offhook_backend_failures",
            "Requests a backend failed where another stands behind it",
            labels=["stage", "backend"],
        )
        for (stage, backend), count in health.failed_requests.items():
            failed.add_metric([stage, backend], count)
        yield from (up, restarts, memory, device, waiting, failed)


async def measure_loop_lag(report: Callable[[float], None], *, every_s: float = 0.25) -> None:
    """Runs until cancelled: how much later than asked a sleep ends is how long the loop was busy."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + every_s
        await asyncio.sleep(every_s)
        report(max(0.0, loop.time() - due))
