"""A collector of OTLP over HTTP on loopback: what it receives is decoded with the classes of opentelemetry-proto."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What was received, in the order in which it came."""

    def __init__(self) -> None:
        self.url = ""
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.request_headers: list[dict[str, str]] = []

    def spans(self, name: str | None = None) -> list[Span]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if name in (None, span.name)
        ]

    def last_metrics(self) -> dict[str, Metric]:
        return {
            metric.name: metric
            for resource in self.metrics[-1].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def attributes(pairs: Any) -> dict[str, Any]:
    def plain(pair: KeyValue) -> Any:
        kind = pair.value.WhichOneof("value")
        return getattr(pair.value, kind) if kind else None

    return {pair.key: plain(pair) for pair in pairs}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.request_headers.append({name.lower(): value for name, value in self.headers.items()})
            if self.path == "/v1/traces":
                collector.traces.append(ExportTraceServiceRequest.FromString(body))
            elif self.path == "/v1/metrics":
                collector.metrics.append(ExportMetricsServiceRequest.FromString(body))
            else:
                raise AssertionError(f"OTLP has no path {self.path}")
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
