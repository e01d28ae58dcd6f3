"""A collector of traces: a small HTTP server that takes OTLP, as OpenTelemetry's exporter sends it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.support.waiting import wait_for


@dataclass(frozen=True)
class CollectedSpan:
    """A span, with ids in hex, as `traceparent` has them, and times in nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start: int
    end: int
    attributes: dict[str, Any]
    failed: bool
    # Of the spans that it links to: their traces and ids.
    links: tuple[tuple[str, str], ...]
    # The process that made it.
    resource: dict[str, Any]


@dataclass
class Collector:
    url: str = ""
    # As they came.
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    _spans: list[CollectedSpan] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self.paths.append(path)
            request = ExportTraceServiceRequest.FromString(body if path == "/v1/traces" else b"")
            for of_resource in request.resource_spans:
                resource = _attributes(of_resource.resource.attributes)
                self._spans += [
                    _read(span, resource) for scope in of_resource.scope_spans for span in scope.spans
                ]

    @property
    def spans(self) -> list[CollectedSpan]:
        with self._lock:
            return list(self._spans)

    def named(self, *names: str) -> list[CollectedSpan]:
        """Spans whose names begin so, in the order of their starts."""
        return sorted(
            (each for each in self.spans if each.name.startswith(names)), key=lambda each: each.start
        )

    def wait_for(self, name: str, count: int = 1) -> list[CollectedSpan]:
        wait_for(f"{count} spans named {name}", lambda: len(self.named(name)) >= count)
        return self.named(name)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(self.path, body, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="collector")
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _read(span: Span, resource: dict[str, Any]) -> CollectedSpan:
    return CollectedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        span.status.code == Status.STATUS_CODE_ERROR,
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        resource,
    )


def _attributes(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, which or "string_value")
