"""The thread that sends traces, with an exporter of the test's; then the real one against a collector on loopback."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.records.call_record import CallRecord
from gateway.settings import ConfigurationError, Settings
from gateway.telemetry import traces_otlp
from gateway.telemetry.traces import MAX_WAITING, Traces, check_telemetry
from gateway.telemetry.traces_context import CallTrace, TraceParent
from gateway.telemetry.traces_otlp import MAX_REQUEST_SPANS, PAUSE_SPANS, OtlpExporter
from gateway.telemetry.traces_spans import CallSnapshot
from gateway.telemetry_settings import TelemetrySettings
from streaming.turn_times import TurnTimes
from tests.gateway.telemetry.collector import MOST_BYTES, attributes, collector

STARTED = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
WAIT_S = 20.0


class Collected:
    """An exporter that keeps what it is given; while ``shut`` is not set it blocks in :meth:`export`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.takes = True
        self.raises: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.closed = 0

    def export(self, calls: Sequence[CallSnapshot]) -> bool:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        if self.raises is not None:
            raise self.raises
        self.calls += [str(call.attributes["offhook.call.id"]) for call in calls]
        return self.takes

    def close(self) -> None:
        self.closed += 1
        self.gate.set()


class Rig:
    def __init__(self, exporter: Any, ratio: float = 1.0) -> None:
        self.counts: Counter[str] = Counter()
        self._counted = threading.Condition()
        self.traces = Traces(
            exporter, sample_ratio=ratio, count=self._count, random_bits=random.Random(1).getrandbits, gather_s=0
        )

    def _count(self, name: str) -> None:
        with self._counted:
            self.counts[name] += 1
            self._counted.notify_all()

    def counted(self, total: int) -> None:
        with self._counted:
            assert self._counted.wait_for(lambda: self.counts.total() >= total, WAIT_S), self.counts

    def call(
        self, call_id: str, cause: str = "caller_hung_up", *turns: TurnTimes, parent: TraceParent | None = None
    ) -> CallTrace:
        trace = self.traces.begin(parent)
        record = CallRecord(id=call_id, transport="websocket", agent=None, started_at=STARTED, trace=trace)
        for turn in turns:
            record.turn(turn)
        record.ended(cause, 1_000.0)
        self.traces.ended(record)
        return trace


@contextmanager
def rigged(exporter: Any, ratio: float = 1.0) -> Iterator[Rig]:
    rig = Rig(exporter, ratio)
    try:
        yield rig
    finally:
        rig.traces.close()


def test_what_ended_is_sent_also_what_still_waits_at_the_end() -> None:
    exporter = Collected()
    with rigged(exporter) as rig:
        for number in range(100):
            rig.call(f"call_{number}")
    assert exporter.calls == [f"call_{number}" for number in range(100)]
    assert rig.counts == {"trace_exported": 100}
    assert exporter.closed == 1


def test_a_call_of_before_is_none_of_its_business() -> None:
    exporter = Collected()
    with rigged(exporter) as rig:
        rig.traces.ended(CallRecord(id="call_0", transport="sip", agent=None, started_at=STARTED))
    assert not exporter.calls
    assert not rig.counts


def test_a_collector_that_takes_its_time_costs_bounded_memory_and_what_is_dropped_is_counted() -> None:
    exporter = Collected()
    exporter.gate.clear()
    with rigged(exporter) as rig:
        rig.call("first")
        assert exporter.entered.wait(WAIT_S)
        for number in range(MAX_WAITING + 7):
            rig.call(f"call_{number}")
        assert rig.counts == {"trace_dropped": 7}
        exporter.gate.set()
        rig.counted(MAX_WAITING + 8)
    assert rig.counts == {"trace_dropped": 7, "trace_exported": MAX_WAITING + 1}


@pytest.mark.parametrize("fault", [None, RuntimeError("boom")])
def test_what_a_collector_does_not_take_is_counted_and_the_next_is_tried(fault: Exception | None) -> None:
    exporter = Collected()
    exporter.takes, exporter.raises = False, fault
    with rigged(exporter) as rig:
        rig.call("call_1")
        rig.counted(1)
        exporter.takes, exporter.raises = True, None
        rig.call("call_2")
        rig.counted(2)
    assert rig.counts == {"trace_failed": 1, "trace_exported": 1}
    assert exporter.calls[-1] == "call_2"


def test_of_calls_that_are_not_sampled_those_with_a_fault_are_sent() -> None:
    exporter = Collected()
    with rigged(exporter, ratio=0.0) as rig:
        rig.call("fine")
        rig.call("broken", "internal_error")
        rig.call("apologised", "caller_hung_up", TurnTimes("r", 1, False, failure="engine_failed", at_ms=1.0))
        rig.call("unwanted", "internal_error", parent=TraceParent(1, 2, False))
    assert exporter.calls == ["broken", "apologised"]


def test_a_stop_does_not_wait_for_a_collector_that_hangs() -> None:
    exporter = Collected()
    exporter.gate.clear()
    rig = Rig(exporter)
    rig.call("call_1")
    assert exporter.entered.wait(WAIT_S)
    rig.traces.close(within_s=0.05)
    assert exporter.closed == 1
    rig.counted(1)


# --- over the wire ------------------------------------------------------------------------------------------------

TURN = TurnTimes(
    "resp_1",
    1,
    False,
    decision_ms=300.0,
    final_ms=200.0,
    first_token_ms=400.0,
    first_sent_ms=500.0,
    ended_ms=900.0,
    at_ms=50.0,
)


def test_a_collector_gets_spans_that_belong_together() -> None:
    parent = TraceParent(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)
    with collector() as there:
        exporter = OtlpExporter(
            there.url + "/v1/traces", headers={"x-key": "sesame"}, resource={"offhook.preset": "null"}
        )
        with rigged(exporter) as rig:
            alone = rig.call("call_1", "caller_hung_up", TURN)
            within = rig.call("call_2", "internal_error", TURN, parent=parent)
    assert set(there.paths) == {"/v1/traces"}
    assert there.headers[0]["x-key"] == "sesame"
    assert there.headers[0]["content-type"] == "application/x-protobuf"
    assert there.resource["service.name"] == "offhook"
    assert there.resource["offhook.preset"] == "null"
    assert there.resource["service.version"]
    first, second = there.named("call")
    for span, trace in ((first, alone), (second, within)):
        assert span.trace_id.hex() == trace.hex_id
        assert span.span_id.hex() == f"{trace.span_id:016x}"
        assert span.kind == span.SPAN_KIND_SERVER
        assert span.end_time_unix_nano - span.start_time_unix_nano == 1_000_000_000
        assert span.start_time_unix_nano == int(STARTED.timestamp()) * 1_000_000_000
    assert first.parent_span_id == b""
    assert second.parent_span_id.hex() == "00f067aa0ba902b7"
    assert second.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert (first.status.code, second.status.code) == (0, 2)
    assert attributes(second.attributes)["error.type"] == "internal_error"
    turn = next(span for span in there.named("turn") if span.trace_id == first.trace_id)
    assert turn.parent_span_id == first.span_id
    stage = next(span for span in there.named("first_token") if span.trace_id == first.trace_id)
    assert stage.parent_span_id == turn.span_id
    assert stage.start_time_unix_nano - first.start_time_unix_nano == 350_000_000
    assert stage.end_time_unix_nano - first.start_time_unix_nano == 450_000_000
    assert len({span.span_id for span in there.spans}) == len(there.spans)


def test_a_long_call_is_sent_in_parts() -> None:
    turns = [
        TurnTimes(f"resp_{number}", 1, False, decision_ms=1.0, ended_ms=2.0, at_ms=10.0 * number)
        for number in range(400)
    ]
    with collector() as there, rigged(OtlpExporter(there.url + "/v1/traces")) as rig:
        rig.call("call_1", "caller_hung_up", *turns)
        rig.counted(1)
    assert len(there.requests) == -(-(2 + 2 * 400) // MAX_REQUEST_SPANS)
    assert len(there.spans) == 2 + 2 * 400
    assert rig.counts == {"trace_exported": 1}


@pytest.mark.parametrize("status", [302, 307, 308, 400, 401, 404, 500, 503])
def test_a_collector_that_refuses_is_counted(status: int, caplog: pytest.LogCaptureFixture) -> None:
    with collector() as there:
        there.status = status
        with rigged(OtlpExporter(there.url + "/v1/traces", timeout_s=0.2)) as rig:
            rig.call("call_1")
            rig.counted(1)
    assert rig.counts == {"trace_failed": 1}
    assert set(there.paths) == {"/v1/traces"}, "a redirect is not followed, for the headers are the collector's"
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_of_an_answer_without_end_little_is_read() -> None:
    with collector() as there:
        there.endless = True
        with rigged(OtlpExporter(there.url + "/v1/traces")) as rig:
            rig.call("call_1")
            rig.counted(1)
    assert rig.counts == {"trace_exported": 1}
    assert there.answered_bytes < MOST_BYTES


def test_a_connection_serves_for_many_requests() -> None:
    with collector() as there, rigged(OtlpExporter(there.url + "/v1/traces")) as rig:
        for number in range(3):
            rig.call(f"call_{number}")
            rig.counted(number + 1)
    assert len(there.requests) == 3
    assert there.connections == 1


def test_others_get_to_run_however_short_the_calls_are(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    clock = SimpleNamespace(sleep=lambda _: done.append("pause"), monotonic=time.monotonic)
    monkeypatch.setattr(traces_otlp, "time", clock)
    exporter = OtlpExporter("http://127.0.0.1:9/v1/traces")
    built = exporter._built

    def noted(call: CallSnapshot) -> Iterator[Any]:
        for span in built(call):
            done.append("span")
            yield span

    def taken(spans: Sequence[Any]) -> bool:
        assert len(spans) <= MAX_REQUEST_SPANS
        done.append("sent")
        return True

    exporter._built = noted  # type: ignore[method-assign]
    exporter._taken = taken  # type: ignore[method-assign]
    with rigged(exporter) as rig:
        for number in range(30):
            rig.call(f"call_{number}", "caller_hung_up", TURN)
    text = "".join({"pause": ".", "span": "s", "sent": "!"}[what] for what in done)
    assert len(text) - len(text.replace("s", "")) == 30 * 8
    assert all(len(part.strip("!")) <= PAUSE_SPANS for part in text.split("."))


def test_many_long_calls_are_sent_one_after_another() -> None:
    turns = [TurnTimes(f"resp_{number}", 1, False, ended_ms=2.0, at_ms=10.0 * number) for number in range(100)]
    exporter = OtlpExporter("http://127.0.0.1:9/v1/traces")
    most = 0

    def taken(spans: Sequence[Any]) -> bool:
        nonlocal most
        most = max(most, len(spans), len(exporter._ended._spans))
        return True

    exporter._taken = taken  # type: ignore[method-assign]
    with rigged(exporter) as rig:
        for number in range(8):
            rig.call(f"call_{number}", "caller_hung_up", *turns)
    assert rig.counts == {"trace_exported": 8}
    assert most <= MAX_REQUEST_SPANS


def test_nobody_is_there() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces"
        with rigged(OtlpExporter(url, timeout_s=0.2)) as rig:
            rig.call("call_1")
            rig.counted(1)
    assert rig.counts == {"trace_failed": 1}


def test_names_that_operators_give_the_service_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "voice-eu")
    with collector() as there:
        with rigged(OtlpExporter(there.url + "/v1/traces")) as rig:
            rig.call("call_1")
        assert there.resource["service.name"] == "voice-eu"


# --- settings -----------------------------------------------------------------------------------------------------


def settings(**telemetry: Any) -> Settings:
    return Settings(preset="null", telemetry=TelemetrySettings(**telemetry))


def test_headers_come_from_the_environment() -> None:
    with collector() as there:
        told = settings(otlp_endpoint=there.url, otlp_headers_env="COLLECTOR_HEADERS")
        environ = {"COLLECTOR_HEADERS": "Authorization=Bearer%20sesame,x-team=voice"}
        check_telemetry(told, environ)
        with rigged(OtlpExporter.from_settings(told, environ)) as rig:
            rig.call("call_1")
        assert there.paths == ["/v1/traces"]
        assert there.headers[0]["authorization"] == "Bearer sesame"
        assert there.headers[0]["x-team"] == "voice"
        assert there.resource["offhook.llm"] == "scripted-llm"


def test_headers_that_are_not_there_are_told_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError) as error:
        check_telemetry(settings(otlp_endpoint="http://127.0.0.1:4318", otlp_headers_env="COLLECTOR_HEADERS"), {})
    assert error.value.code == "telemetry_headers_missing"
    check_telemetry(settings(otlp_headers_env="COLLECTOR_HEADERS"), {})


@pytest.mark.parametrize(
    "given", ["sesame", "Bearer sesame", "a=b,sesame", "a%0Ab=sesame", "a=sesame%0D%0Ax:1", "a=s\u00e9same"]
)
def test_headers_that_are_none_are_told_and_not_repeated(given: str, caplog: pytest.LogCaptureFixture) -> None:
    told = settings(otlp_endpoint="http://127.0.0.1:4318", otlp_headers_env="COLLECTOR_HEADERS")
    with pytest.raises(ConfigurationError) as error:
        check_telemetry(told, {"COLLECTOR_HEADERS": given})
    assert error.value.code == "telemetry_headers_invalid"
    assert "same" not in str(error.value) + caplog.text


def test_headers_may_hold_what_separates_them() -> None:
    told = settings(otlp_headers_env="H")
    assert told.telemetry.headers({"H": "X-Key=a%2Cb=c==, x-team = voice ,"}) == {"x-key": "a,b=c==", "x-team": "voice"}


def test_a_missing_package_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.telemetry.traces._NEEDS", ("opentelemetry_of_nowhere.sdk",))
    with pytest.raises(ConfigurationError) as error:
        check_telemetry(settings(otlp_endpoint="http://127.0.0.1:4318"))
    assert error.value.code == "telemetry_not_installed"
    assert "offhook[otel]" in str(error.value)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector.example/otlp", "https://collector.example/otlp/v1/traces"),
        ("https://collector.example/v1/traces", "https://collector.example/v1/traces"),
    ],
)
def test_where_traces_go(endpoint: str, url: str) -> None:
    assert TelemetrySettings(otlp_endpoint=endpoint).traces_url == url


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:4318",
        "grpc://collector:4317",
        "http://",
        "http://a:b@collector",
        "http://c?key=sesame",
        "http://c:x",
        "http://c/a b",
    ],
)
def test_an_endpoint_that_is_none_is_refused_and_not_repeated(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"must (be like|hold no)") as error:
        TelemetrySettings(otlp_endpoint=endpoint)
    assert "sesame" not in str(error.value).split("[type=")[0]
