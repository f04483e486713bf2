"""Calls as OpenTelemetry spans, to a collector by OTLP over HTTP. The only module that imports OpenTelemetry, and only
loaded where a collector is named.

Certificates, compression and resource attributes are OpenTelemetry's own ``OTEL_…`` variables.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from gateway.settings import Settings
from gateway.telemetry.traces_context import CallTrace
from gateway.telemetry.traces_spans import CallSnapshot, SpanPlan, spans_of

TIMEOUT_S = 10.0
"""For one request, with its retries."""
MAX_ANSWER_BYTES = 64 * 1024
"""What is read of a collector's answer, which says nothing that is needed; of a longer one the connection is given
up."""
MAX_REQUEST_SPANS = 64
PAUSE_SPANS = 16
PAUSE_S = 0.0005
"""After so many spans others get to run: what a thread computes, the audio of calls waits for."""

SERVICE_NAME = "offhook"
UNNAMED = "unknown_service"


class _Ids(RandomIdGenerator):
    """The call's own ids for its own span, which is begun first; those of the others don't matter."""

    def __init__(self) -> None:
        self.trace: CallTrace | None = None

    def generate_trace_id(self) -> int:
        return self.trace.trace_id if self.trace is not None else super().generate_trace_id()

    def generate_span_id(self) -> int:
        trace, self.trace = self.trace, None
        return trace.span_id if trace is not None else super().generate_span_id()


class _Ended(SpanProcessor):
    """Keeps what ends until it is taken."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans


class _Session(requests.Session):
    """What answers may be anybody: an answer without end must cost no memory, and a redirect, which is not followed,
    is not an answer that something was taken (the exporter holds any status below 400 to be one)."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None anywhere: to tell of one, all of the answer would be read."""

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        deadline = time.monotonic() + (kwargs.get("timeout") or TIMEOUT_S)
        with super().request(*args, **{**kwargs, "stream": True}) as response:
            if 300 <= response.status_code < 400:
                raise requests.TooManyRedirects(response=response)
            read_bytes = 0
            while read_bytes < MAX_ANSWER_BYTES and time.monotonic() < deadline:
                if not (piece := response.raw.read1(MAX_ANSWER_BYTES)):
                    break  # all of it: the connection serves again
                read_bytes += len(piece)
            return response


class OtlpExporter:
    """See :class:`gateway.telemetry.traces.Exporter`. ``resource``: what all spans say of this gateway."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        resource: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        # It says of each attempt what is said once, when it begins and when it is over.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
        self._ids = _Ids()
        self._ended = _Ended()
        self._provider = TracerProvider(
            ALWAYS_ON, _resource(resource or {}), shutdown_on_exit=False, id_generator=self._ids
        )
        self._provider.add_span_processor(self._ended)
        self._tracer = self._provider.get_tracer("offhook.gateway")
        self._wire = OTLPSpanExporter(url, headers=dict(headers or {}), timeout=timeout_s, session=_Session())

    @classmethod
    def from_settings(cls, settings: Settings, environ: Mapping[str, str] = os.environ) -> OtlpExporter:
        telemetry = settings.telemetry
        stages = {f"offhook.{spec.kind}": spec.name for spec in settings.lineup().first()}
        return cls(
            telemetry.traces_url,
            headers=telemetry.headers(environ),
            resource={"offhook.preset": settings.preset, **stages},
        )

    def export(self, calls: Sequence[CallSnapshot]) -> bool:
        spans: list[ReadableSpan] = []
        for span in itertools.chain.from_iterable(map(self._built, calls)):
            spans.append(span)
            if len(spans) % PAUSE_SPANS == 0:
                time.sleep(PAUSE_S)
            if len(spans) == MAX_REQUEST_SPANS:  # calls may be long, and many end when a gateway stops
                if not self._taken(spans):
                    return False
                spans = []
        return not spans or self._taken(spans)

    def _taken(self, spans: Sequence[ReadableSpan]) -> bool:
        return self._wire.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._wire.shutdown()  # type: ignore[no-untyped-call]

    def _built(self, call: CallSnapshot) -> Iterator[ReadableSpan]:
        begun: list[Span] = []
        self._ids.trace = call.trace
        for plan in spans_of(call):
            span = self._tracer.start_span(
                plan.name,
                _above(call.trace) if plan.parent is None else set_span_in_context(begun[plan.parent], Context()),
                kind=SpanKind.SERVER if plan.parent is None else SpanKind.INTERNAL,
                attributes=plan.attributes,
                start_time=plan.start_ns,
            )
            begun.append(span)
            _end(span, plan)
            yield from self._ended.take()


def _above(trace: CallTrace) -> Context:
    if trace.parent is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if trace.parent.sampled else TraceFlags.DEFAULT)
    remote = SpanContext(trace.trace_id, trace.parent.span_id, is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(remote), Context())


def _end(span: Span, plan: SpanPlan) -> None:
    if plan.fault is not None:
        span.set_attribute("error.type", plan.fault)
        span.set_status(Status(StatusCode.ERROR, plan.fault))
    span.end(max(plan.start_ns, plan.end_ns))


def _resource(said: Mapping[str, str]) -> Resource:
    """With what ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` say."""
    ours = dict(said)
    with suppress(PackageNotFoundError):
        ours["service.version"] = version("offhook")
    resource = Resource.create(ours)
    if str(resource.attributes["service.name"]).startswith(UNNAMED):
        resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
    return resource
