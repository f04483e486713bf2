"""What the server under test tells of itself while callers are on it: ``/metrics`` once a second, and its records of
single calls.

A server that has none is tested all the same; what it does not tell is null. Only names are known here that Prometheus
clients agree on (``process_*``) or that are documented in ``docs/operations.md``.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from loadtest.address import CallAddress, bearer
from loadtest.call import Transport
from loadtest.readings import ServerReading
from loadtest.run_report import StageTimes

READ_EVERY_S = 1.0
MAX_READINGS = 4_000
"""More than one a second of the longest run that is looked at second by second; beyond it every other one is left out,
again and again."""
MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_VALUE = 1e18
MAX_LABELS = 64
MAX_BUCKETS = 200
MAX_TEXT = 200

_TIMEOUT_S = 5.0  # of a whole page: one that comes byte by byte is none
_NO_PAGE = frozenset({400, 401, 403, 404, 405, 410, 426})
_CONNECTIONS = 3  # more would be a load of their own
_GAUGES = {
    "cpu_s": "process_cpu_seconds_total",
    "rss_bytes": "process_resident_memory_bytes",
    "threads": "process_threads",
    "fds": "process_open_fds",
    "tasks": "offhook_tasks",
    "calls_live": "offhook_calls_live",
    "calls_refused": "offhook_calls_refused_total",
    "send_late_frames": "offhook_frames_late_total",
    "hosts_cpu_s": "offhook_host_cpu_seconds_total",
    "hosts_rss_bytes": "offhook_host_memory_bytes",
}
_LAG = "offhook_loop_lag_seconds"
_LANE_BUSY = "offhook_lane_busy_seconds_total"
_LANE_SLOTS = "offhook_lane_slots"
_QUEUE_AGE = "offhook_lane_queue_age_seconds"
_STAGES = "offhook_turn_stage_seconds"
_SEND_LATE = "offhook_send_late_seconds"
_INFO = "offhook_info"
_HISTOGRAMS = tuple(f"{name}_bucket" for name in (_LAG, _STAGES, _SEND_LATE))
_WANTED = (*_GAUGES.values(), *_HISTOGRAMS, _LANE_BUSY, _LANE_SLOTS, _QUEUE_AGE, _INFO)

Buckets = dict[float, float]
"""A Prometheus histogram: upper bound in seconds to how many were no longer, ``inf`` included."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Where an engine's jobs are worked on: ``busy_s`` of work since it began, over ``slots`` at once."""

    busy_s: float = 0.0
    slots: float = 0.0


@dataclass(frozen=True, slots=True)
class Exposition:
    """What one reading says. ``values`` are sums over labels, by the fields of :class:`ServerReading`."""

    values: Mapping[str, float]
    info: Mapping[str, str] = field(default_factory=dict)
    stages: Mapping[str, Buckets] = field(default_factory=dict)
    send_late: Buckets = field(default_factory=dict)
    loop_lag: Buckets = field(default_factory=dict)
    lanes: Mapping[str, Lane] = field(default_factory=dict)


def read_exposition(text: str) -> Exposition:
    """Takes what it knows from a Prometheus exposition and leaves the rest, numbers that are none among it. Raises
    :class:`ValueError`."""
    wanted = "\n".join(line for line in text.splitlines() if line.startswith(_WANTED)) + "\n"
    fields = {name: known for known, name in _GAUGES.items()}
    values: dict[str, float] = {}
    info: dict[str, str] = {}
    stages: dict[str, Buckets] = {}
    send_late: Buckets = {}
    loop_lag: Buckets = {}
    lanes: dict[str, Lane] = {}
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            name, labels, value = sample.name, sample.labels, float(sample.value)
            if not 0 <= value <= MAX_VALUE or len(stages) > MAX_LABELS or len(lanes) > MAX_LABELS:
                continue  # whoever wrote this lies: nothing here is less than nothing
            if name in fields:
                values[fields[name]] = values.get(fields[name], 0.0) + value
            elif name == _QUEUE_AGE:
                values["queue_age_ms"] = max(values.get("queue_age_ms", 0.0), value * 1000)
            elif name == _INFO:
                info.update({label[:MAX_TEXT]: text[:MAX_TEXT] for label, text in list(labels.items())[:MAX_LABELS]})
            elif name in (_LANE_BUSY, _LANE_SLOTS):
                key = labels.get("host", "") + "/" + labels.get("lane", "")
                lane = lanes.get(key, Lane())
                lanes[key] = Lane(value, lane.slots) if name == _LANE_BUSY else Lane(lane.busy_s, value)
            elif "le" in labels:
                if name == f"{_STAGES}_bucket":
                    buckets = stages.setdefault(labels.get("stage", ""), {})
                else:
                    buckets = loop_lag if name.startswith(_LAG) else send_late
                bound = float(labels["le"])
                if math.isnan(bound) or len(buckets) > MAX_BUCKETS:
                    continue
                buckets[bound] = buckets.get(bound, 0.0) + value
    return Exposition(values, info, stages, send_late, loop_lag, lanes)


def since(before: Buckets, now: Buckets) -> Buckets:
    """What came into a histogram between two readings; all of ``now`` where the server was started anew."""
    grown = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
    return grown if all(count >= 0 for count in grown.values()) else dict(now)


def longest_ms(buckets: Buckets) -> float | None:
    """The bound of the highest bucket that anything is in (beyond all bounds: the last); None of an empty one."""
    before, longest_s = 0.0, None
    for bound in sorted(buckets):
        if buckets[bound] > before:
            longest_s = longest_s if math.isinf(bound) and longest_s is not None else bound
        before = buckets[bound]
    return None if longest_s is None or math.isinf(longest_s) else longest_s * 1000


def metrics_url(address: CallAddress) -> str | None:
    """Where a server that is called so would have its metrics; None of those that are called without HTTP."""
    if address.transport in (Transport.SIP, Transport.AUDIOSOCKET):
        return None
    return address.beside("/metrics")


class ServerWatch:
    """Reads one server. ``clock`` is monotonic, in seconds; readings are dated from ``start_s`` of it, which may be set
    anew when the run begins. Close it with :meth:`aclose`."""

    def __init__(self, url: str | None, key: str | None, clock: Callable[[], float], start_s: float = 0.0) -> None:
        self.url = url
        self.start_s = start_s
        self.readings: list[ServerReading] = []
        self.failed = 0
        """Readings that did not come about, of a server that was read before."""
        self.problem: str | None = None
        """Why there has been no reading yet, for a person."""
        self.first: Exposition | None = None
        self.last: Exposition | None = None
        self._clock = clock
        self._read_at_s = 0.0
        self._has_none = False
        self._thinning = 1
        self._read = 0
        self._base = url.removesuffix("/metrics") if url is not None and url.endswith("/metrics") else None
        headers = {b"Authorization": bearer(key)} if key else None
        local = url is not None and (urlsplit(url).hostname or "") in ("127.0.0.1", "::1", "localhost")
        self._http = httpx.AsyncClient(
            timeout=_TIMEOUT_S,
            trust_env=not local,
            verify=ssl.create_default_context(),
            headers=headers,
            limits=httpx.Limits(max_connections=_CONNECTIONS),
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def read(self, *, keep: bool = True) -> ServerReading | None:
        """One reading, kept for the report; None where there is nothing to read. A server that has no such page, or
        shows it to nobody, is asked once."""
        if self.url is None or self._has_none:
            return None
        try:
            exposition = read_exposition((await self._get(self.url)).decode())
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            self.problem = _why(error)
            if self.first is not None:
                self.failed += 1
            else:
                self._has_none = isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _NO_PAGE
            return None
        if not exposition.values and not exposition.info:
            self.problem = "it has no metrics that are known here"
            return None
        reading = self._reading(exposition, self.last)
        self.first, self.last = self.first or exposition, exposition
        if keep:
            self._keep(reading)
        return reading

    async def stages_of(self, call_id: str) -> tuple[StageTimes, ...]:
        """The server's own record of a call, where it keeps one: the stages of each answer. Empty where it does not; a
        server that does not say what it is is not asked."""
        if self._base is None or not self.info:
            return ()
        try:
            record = await self._record(call_id)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RecursionError):
            return ()
        return tuple(turn for turn in record.turns if turn != StageTimes())

    @property
    def info(self) -> dict[str, str]:
        return dict(self.last.info) if self.last is not None else {}

    def stages(self) -> dict[str, Buckets]:
        """What came into the histograms of stages between the first reading and the last."""
        if self.first is None or self.last is None:
            return {}
        return {name: since(self.first.stages.get(name, {}), now) for name, now in self.last.stages.items()}

    def send_late(self) -> Buckets:
        """The same of how late frames were sent."""
        if self.first is None or self.last is None:
            return {}
        return since(self.first.send_late, self.last.send_late)

    def _reading(self, exposition: Exposition, before: Exposition | None) -> ServerReading:
        read_at_s, values = self._clock(), exposition.values
        passed_s = read_at_s - self._read_at_s
        self._read_at_s = read_at_s
        cores = hosts_cores = utilisation = None
        lag = since(before.loop_lag, exposition.loop_lag) if before is not None else {}  # not what was before the run
        if before is not None and passed_s > 0:
            cores, hosts_cores = (_grown(name, before.values, values, passed_s) for name in ("cpu_s", "hosts_cpu_s"))
            shares = [
                (lane.busy_s - before.lanes[name].busy_s) / (passed_s * lane.slots)
                for name, lane in exposition.lanes.items()
                if lane.slots and name in before.lanes
            ]
            utilisation = min(1.0, max(0.0, *shares)) if shares else None
        return ServerReading(
            at_s=read_at_s - self.start_s,
            cpu_cores=cores,
            hosts_cpu_cores=hosts_cores,
            utilisation=utilisation,
            loop_lag_ms=longest_ms(lag),
            **values,
        )

    def _keep(self, reading: ServerReading) -> None:
        self._read += 1
        if self._read % self._thinning == 0:
            self.readings.append(reading)
        if len(self.readings) > MAX_READINGS:
            self.readings = self.readings[::2]
            self._thinning *= 2

    async def _record(self, call_id: str) -> _Record:
        assert self._base is not None
        try:
            body = await self._get(f"{self._base}/v1/calls/{quote(call_id, safe='')}")
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            # A phone's wire has an id of its own.
            listed = msgspec.json.decode(await self._get(f"{self._base}/v1/calls?limit=100"), type=_Calls)
            found = _first(row.id for row in listed.data if row.wire_id == call_id)
            if found is None:
                raise
            body = await self._get(f"{self._base}/v1/calls/{quote(found, safe='')}")
        return msgspec.json.decode(body, type=_Record)

    async def _get(self, url: str) -> bytes:
        async with asyncio.timeout(_TIMEOUT_S), self._http.stream("GET", url) as response:
            response.raise_for_status()
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise ValueError("the page is too long")
            return bytes(body)


class _Record(msgspec.Struct, frozen=True):
    turns: list[StageTimes] = []


class _Row(msgspec.Struct, frozen=True):
    id: str
    wire_id: str | None = None


class _Calls(msgspec.Struct, frozen=True):
    data: list[_Row] = []


def _grown(name: str, before: Mapping[str, float], now: Mapping[str, float], passed_s: float) -> float | None:
    """How much a second; nothing where a process was started anew, and None where it is not told."""
    return max(0.0, (now[name] - before[name]) / passed_s) if name in now and name in before else None


def _why(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code}"
    return str(error) or type(error).__name__


def _first(ids: Iterable[str]) -> str | None:
    return next(iter(ids), None)
