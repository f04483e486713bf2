"""An OTLP collector on loopback that keeps what it is sent, or behaves badly when it is told to."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

MOST_BYTES = 1 << 30
"""Of an endless answer."""


@dataclass
class Collector:
    """``status`` is what it answers; ``hangs`` until that is set, it answers nothing; ``endless``: its answer goes on
    until nobody reads it any more."""

    url: str = ""
    status: int = 200
    endless: bool = False
    answered_bytes: int = 0
    connections: int = 0
    hangs: threading.Event | None = None
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, str]:
        return attributes(self.requests[0].resource_spans[0].resource.attributes)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def attributes(pairs: object) -> dict[str, str]:
    """Of a span or a resource, each as text."""
    return {pair.key: str(getattr(pair.value, pair.value.WhichOneof("value"))) for pair in pairs}  # type: ignore[attr-defined]


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    here = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            here.paths.append(self.path)
            here.headers.append({name.lower(): value for name, value in self.headers.items()})
            if here.hangs is not None:
                here.hangs.wait(30)
            if here.status == 200:
                here.requests.append(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            with contextlib.suppress(ConnectionError):
                self.send_response(here.status)
                self.send_header("Content-Type", "application/x-protobuf")
                if here.status in (301, 302, 307, 308):
                    self.send_header("Location", here.url + "/elsewhere")
                if not here.endless:
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                    return
                self.send_header("Connection", "close")
                self.end_headers()
                while here.answered_bytes < MOST_BYTES:
                    here.answered_bytes += self.wfile.write(bytes(65_536))

        def setup(self) -> None:
            super().setup()
            here.connections += 1

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="collector")
    thread.start()
    try:
        yield here
    finally:
        if here.hangs is not None:
            here.hangs.set()
        server.shutdown()
        server.server_close()
        thread.join()
