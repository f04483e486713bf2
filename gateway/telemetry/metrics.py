"""What Prometheus can read at ``/metrics``. One registry an application, so that two in one process never collide."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engines.api import EngineHealth
from gateway.records.call_record import CallRecord
from gateway.telemetry.metrics_engines import EngineReadings
from gateway.telemetry.metrics_process import ProcessReadings
from gateway.telemetry.metrics_timings import Timings
from streaming.turn_times import TurnTimes

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
MAX_LABELS = 256
"""Names a label may take; later ones are counted as ``other``, so that no caller can grow the registry."""

ALARMING: Final = (
    "defect",
    "line_defect",
    "engine_failed",
    "sip_registration_failed",
    "trace_failed",
    "trace_dropped",
)
"""Events that somebody is woken for. They are there from the start, at 0: of a counter that begins at 1 Prometheus sees
no increase."""
REFUSALS: Final = ("busy", "draining", "overloaded", "engines_down", "too_many_unconnected")
OVERLOADS: Final = ("loop_lag", "late_frames", "lane_late", "lane_use", "engines")

_CUT = "cut_to_silence"
_TO_DECIDE_S = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Around the least silence of a turn (0.3 s), up to the longest wait for a caller who sounds unfinished."""
_TO_ANSWER_S = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 3.5, 5.0, 8.0, 15.0)
"""Close together where a caller begins to notice; 0.5, 2 and 3.5 s are the corners of EVA's turn-taking curve."""
_TO_FALL_SILENT_S = (0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0)
"""A hold is due within 0.15 s of the onset, a commit within 0.5 s."""
_STAGE_BUCKETS_S = {
    "decision": _TO_DECIDE_S,
    "final": _TO_DECIDE_S,
    "first_token": _TO_ANSWER_S,
    "first_clause": _TO_ANSWER_S,
    "first_audio": _TO_ANSWER_S,
    "first_sent": _TO_ANSWER_S,
    _CUT: _TO_FALL_SILENT_S,
}
STAGES: Final = tuple(_STAGE_BUCKETS_S)
_LATE_BUCKETS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.5, 1.0)
LATE_S = 0.02
"""Where a frame is played as it comes, one that leaves more than a whole frame after its deadline is late."""
_SETUP_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
WORST_LAG_S = 15.0
"""What the gauge of the worst loop lag covers: as long as Prometheus commonly waits between two scrapes. It is not
taken away by who reads it first."""
LAG_EVERY_S = 0.05
MAX_MISSED = 200
"""Moments told of one stall, which was 10 s long then."""
_JITTER_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
_CALL_BUCKETS_S = (1, 5, 15, 30, 60, 120, 300, 600, 1_800, 3_600)


Bounds = Sequence[float] | Mapping[str, Sequence[float]]

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


class Sender:
    """How late the frames of calls of one transport leave, after the deadline that their pacer set them."""

    __slots__ = ("_late", "_timing", "frames", "late_frames")

    def __init__(self, timings: Timings, late: Counter, transport: str) -> None:
        self._timing = timings.of(transport)
        self._late = late.labels(transport)
        self.frames = 0
        self.late_frames = 0

    def sent(self, late_s: float, frames: int = 1, ahead_s: float = LATE_S) -> None:
        """So many frames left together, the first of them so long after its time. ``ahead_s`` is what the far end has
        to play when a frame is on time."""
        self._timing.observe(late_s, frames)
        self.frames += frames
        if late_s > ahead_s:
            self.late_frames += frames
            self._late.inc(frames)


class _Worst:
    """The largest of the last :data:`WORST_LAG_S`, at the least, and at the most twice that."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._since = now_s()
        self._before = self._largest = 0.0

    def note(self, value: float) -> None:
        self._age()
        self._largest = max(self._largest, value)

    def read(self) -> float:
        self._age()
        return max(self._before, self._largest)

    def _age(self) -> None:
        passed_s = self._now_s() - self._since
        if passed_s >= WORST_LAG_S:
            self._before = self._largest if passed_s < 2 * WORST_LAG_S else 0.0
            self._largest = 0.0
            self._since += passed_s


class Metrics:
    """``on_response`` is told of each answer's ``first_sent`` stage, in milliseconds. ``now_s`` is monotonic,
    ``started_s`` Unix time."""

    def __init__(
        self,
        *,
        on_response: Callable[[float], None] = lambda _: None,
        now_s: Callable[[], float] = time.monotonic,
        started_s: float = 0.0,
    ) -> None:
        self._on_response = on_response
        registry = self._registry = CollectorRegistry()
        self._info = Gauge(
            "offhook_info",
            "Always 1: what runs here. fake: an engine is scripted, so that no figure of it tells of a model",
            ["version", "preset", "vad", "stt", "llm", "tts", "fake"],
            registry=registry,
        )
        self._live = Gauge("offhook_calls_live", "Calls that hold a place", registry=registry)
        self._limit = Gauge("offhook_calls_limit", "Places there are", registry=registry)
        self._admitted = Counter("offhook_calls_admitted", "Calls that got a place", registry=registry)
        self._ended = Counter("offhook_calls", "Calls that ended", ["cause", "transport"], registry=registry)
        self._length = Histogram(
            "offhook_call_seconds", "Length of ended calls", buckets=_CALL_BUCKETS_S, registry=registry
        )
        self._refused = Counter("offhook_calls_refused", "Calls refused", ["reason"], registry=registry)
        self._overloaded = Counter(
            "offhook_calls_overloaded",
            "Of the calls refused for overload, what was over its limit",
            ["measure"],
            registry=registry,
        )
        self._setup = self._timings(
            "offhook_call_setup_seconds",
            "From a caller's request for a call until media flows; of calls that came in and were answered",
            "transport",
            _SETUP_BUCKETS_S,
        )
        self._events = Counter("offhook_events", "What sessions counted", ["name"], registry=registry)
        self._stages = self._timings(
            "offhook_turn_stage_seconds",
            "After the caller's last voiced sample; cut_to_silence after the onset of the interruption",
            "stage",
            _STAGE_BUCKETS_S,
        )
        self._tokens = Counter("offhook_tokens", "Tokens of the language model", ["kind"], registry=registry)
        self._send_late = self._timings(
            "offhook_send_late_seconds",
            "How long after its deadline a frame of the agent's voice left, as far as that is this process's doing",
            "transport",
            _LATE_BUCKETS_S,
        )
        self._frames_late = Counter(
            "offhook_frames_late",
            "Frames of the agent's voice that left when the far end had none left to play",
            ["transport"],
            registry=registry,
        )
        self._frames = Counter(
            "offhook_phone_frames",
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
        self._lag = self._timings(
            "offhook_loop_lag_seconds",
            "How late the event loop came to what was due, looked at every 50 ms",
            "",
            _LATE_BUCKETS_S,
        )
        self._worst_lag = _Worst(now_s)
        worst_lag = Gauge(
            "offhook_loop_lag_worst_seconds", "The longest of the last 15 to 30 seconds", registry=registry
        )
        worst_lag.set_function(self._worst_lag.read)
        self._ready = Gauge("offhook_ready", "1 when calls are taken", registry=registry)
        registry.register(ProcessReadings(started_s))
        self._causes, self._reasons, self._names = _Names(), _Names(), _Names()
        self._transports = _Names()
        for name in ALARMING:
            self._events.labels(self._names.bounded(name))
        for reason in REFUSALS:
            self._refused.labels(self._reasons.bounded(reason))
        for measure in OVERLOADS:
            self._overloaded.labels(measure)
        self._senders: dict[str, Sender] = {}

    def _timings(self, name: str, documentation: str, label: str, bounds_s: Bounds) -> Timings:
        timings = Timings(name, documentation, label, bounds_s)
        self._registry.register(timings)
        return timings

    def tell(self, *, version: str, preset: str, engines: Mapping[str, str], fake: bool) -> None:
        """What runs here. ``engines``: the backend that serves each of ``vad``, ``stt``, ``llm`` and ``tts``."""
        backends = {stage: engines.get(stage, "") for stage in ("vad", "stt", "llm", "tts")}
        self._info.labels(version=version, preset=preset, **backends, fake=str(fake).lower()).set(1)

    def watch(self, *, live: Callable[[], int], limit: int, ready: Callable[[], bool]) -> None:
        """Where the gauges are read from."""
        self._live.set_function(live)
        self._limit.set(limit)
        self._ready.set_function(lambda: float(ready()))

    def watch_engines(self, health: Callable[[], EngineHealth]) -> None:
        """Where it is read how the engines are."""
        self._registry.register(EngineReadings(health))

    def watch_beside(self, collector: Collector) -> None:
        """Something else that is read when asked."""
        self._registry.register(collector)

    def admitted(self) -> None:
        self._admitted.inc()

    def refused(self, reason: str) -> None:
        self._refused.labels(self._reasons.bounded(reason)).inc()

    def overloaded(self, measure: str) -> None:
        """Of a call that was refused for it."""
        self._overloaded.labels(measure).inc()

    def answered(self, transport: str, after_s: float) -> None:
        """A call that came in got its media so long after it was asked for."""
        self._setup.of(self._transports.bounded(transport)).observe(after_s)

    def sender(self, transport: str) -> Sender:
        """Whom a call's pacer tells of its frames."""
        transport = self._transports.bounded(transport)
        sender = self._senders.get(transport)
        if sender is None:
            sender = self._senders[transport] = Sender(self._send_late, self._frames_late, transport)
        return sender

    def frames_sent(self) -> tuple[int, int]:
        """Of all calls, and how many of them late."""
        senders = self._senders.values()
        return sum(sender.frames for sender in senders), sum(sender.late_frames for sender in senders)

    def ended(self, record: CallRecord) -> None:
        transport = self._transports.bounded(record.transport)
        self._ended.labels(self._causes.bounded(record.cause or "unknown"), transport).inc()
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
                self._stages.of(stage).observe(value / 1000)
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
        self._lag.of().observe(lag_s)
        self._worst_lag.note(lag_s)

    def exposition(self) -> Iterator[bytes]:
        """All of it, a family at a time: together they would hold the event loop for too long."""
        for family in self._registry.collect():
            yield generate_latest(_Alone(family))


class _Alone(Collector):
    """One family, as if it were all there is."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


async def measure_loop_lag(report: Callable[[float], None], *, every_s: float = LAG_EVERY_S) -> None:
    """Runs until cancelled: how much later than asked a wait ends is how long the loop was busy. Each moment that a
    busy loop missed is told of: one long stall, looked at once, would weigh no more than one quiet moment."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    number = 1
    while True:
        due = began + number * every_s
        await asyncio.sleep(due - loop.time())
        now = loop.time()
        missed = int(max(0.0, now - due) / every_s)
        for moment in range(min(missed, MAX_MISSED) + 1):
            report(max(0.0, now - due - moment * every_s))
        number += missed + 1
