"""Traces of calls, when a collector is named (``[telemetry]``): built and sent by a thread of their own when a call is
over, so that no call waits for one. What a collector does not take is dropped, and counted."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import queue
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

import structlog

from gateway.records.call_record import CallRecord
from gateway.settings import ConfigurationError, Settings
from gateway.state import Gateway
from gateway.telemetry.traces_context import CallTrace, TraceParent, begin_trace
from gateway.telemetry.traces_spans import CallSnapshot, snapshot

_log = structlog.get_logger(__name__)

MAX_WAITING = 512
"""Calls that wait to be sent; later ones are dropped."""
BATCH_CALLS = 32
GATHER_S = 1.0
"""What ends within it goes together."""
CLOSE_S = 2.0
"""For what still waits when the gateway stops."""
GIVE_UP_S = 0.5
"""For the thread to see that it is over. One that a collector keeps waiting ends with the process."""

_NEEDS = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


class Exporter(Protocol):
    """Called by one thread; both may block for seconds, and :meth:`close` ends what the other waits for."""

    def export(self, calls: Sequence[CallSnapshot]) -> bool:
        """Whether the collector took them."""

    def close(self) -> None: ...


class Traces:
    """The traces of one gateway. ``count`` is told ``trace_exported``, ``trace_failed`` (the collector did not take it)
    and ``trace_dropped`` (too many wait), once a call; from any thread."""

    def __init__(
        self,
        exporter: Exporter,
        *,
        sample_ratio: float,
        count: Callable[[str], None],
        random_bits: Callable[[int], int] = secrets.randbits,
        gather_s: float = GATHER_S,
    ) -> None:
        self._exporter = exporter
        self._sample_ratio = sample_ratio
        self._count = count
        self._random_bits = random_bits
        self._gather_s = gather_s
        self._waiting: queue.Queue[CallSnapshot | None] = queue.Queue(MAX_WAITING)
        self._stopping = threading.Event()
        self._taken = True
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    def begin(self, parent: TraceParent | None) -> CallTrace:
        """For the record of a call that begins; ``parent`` is what it was asked for in."""
        return begin_trace(parent, self._sample_ratio, self._random_bits)

    def ended(self, record: CallRecord) -> None:
        """A call is over: its trace is sent, if it is wanted. Never blocks, never raises."""
        trace = record.trace
        if trace is None:
            return
        call = snapshot(record, trace)
        if not trace.sampled and (trace.parent is not None or call.fault is None):
            return
        try:
            self._waiting.put_nowait(call)
        except queue.Full:
            self._count("trace_dropped")

    def close(self, within_s: float = CLOSE_S) -> None:
        """Send what waits, for so long. Blocks."""
        self._stopping.set()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)  # wakes it, where it waits for a call
        self._thread.join(within_s)
        self._exporter.close()
        self._thread.join(GIVE_UP_S)
        while self._thread.is_alive() and self._next(wait_s=0) is not None:
            self._count("trace_dropped")

    # --- the thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not (self._stopping.is_set() and self._waiting.empty()):
            batch = self._gathered()
            if batch:
                self._send(batch)

    def _gathered(self) -> list[CallSnapshot]:
        """The calls that end within :attr:`_gather_s` of the next one."""
        first = self._next(wait_s=None)
        if first is None:
            return []
        self._stopping.wait(self._gather_s)
        batch = [first]
        while len(batch) < BATCH_CALLS and (call := self._next(wait_s=0)) is not None:
            batch.append(call)
        return batch

    def _next(self, wait_s: float | None) -> CallSnapshot | None:
        try:
            return self._waiting.get(block=wait_s != 0)
        except queue.Empty:
            return None

    def _send(self, batch: Sequence[CallSnapshot]) -> None:
        try:
            taken = self._exporter.export(batch)
        except Exception as error:  # noqa: BLE001 (whatever it is, calls go on, and the next batch is tried)
            _log.warning("traces could not be made", error=type(error).__name__)
            taken = False
        if taken is not self._taken:
            self._taken = taken
            if taken:
                _log.info("the collector takes traces again")
            else:
                _log.warning("the collector does not take traces")
        for _ in batch:
            self._count("trace_exported" if taken else "trace_failed")


def check_telemetry(settings: Settings, environ: Mapping[str, str] = os.environ) -> None:
    """Before anything is loaded. Raises :class:`ConfigurationError` (``telemetry_not_installed``,
    ``telemetry_headers_missing``, ``telemetry_headers_invalid``)."""
    telemetry = settings.telemetry
    if not telemetry.otlp_endpoint:
        return
    if not all(_found(name) for name in _NEEDS):
        raise ConfigurationError(
            "telemetry_not_installed", "telemetry.otlp_endpoint needs OpenTelemetry: install offhook[otel]"
        )
    if telemetry.otlp_headers_env and not environ.get(telemetry.otlp_headers_env):
        raise ConfigurationError(
            "telemetry_headers_missing", f"telemetry.otlp_headers_env: {telemetry.otlp_headers_env} is not set"
        )
    try:
        telemetry.headers(environ)
    except ValueError as error:
        raise ConfigurationError("telemetry_headers_invalid", f"telemetry.otlp_headers_env: {error}") from None


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@contextlib.asynccontextmanager
async def call_traces(gateway: Gateway) -> AsyncIterator[None]:
    """Trace the calls that begin within. Where no collector is named nothing is imported, and nothing runs."""
    telemetry = gateway.settings.telemetry
    if not telemetry.otlp_endpoint:
        yield
        return
    exporter = await asyncio.to_thread(_otlp, gateway.settings)
    traces = Traces(exporter, sample_ratio=telemetry.sample_ratio, count=gateway.metrics.count)
    gateway.wires.traces = traces
    _log.info("calls are traced", sample_ratio=telemetry.sample_ratio)
    try:
        yield
    finally:
        gateway.wires.traces = None
        await asyncio.to_thread(traces.close)


def _otlp(settings: Settings) -> Exporter:
    from gateway.telemetry.traces_otlp import OtlpExporter  # loads the SDK, which only this needs

    return OtlpExporter.from_settings(settings)
