"""Sends spans by OTLP over HTTP, with OpenTelemetry's SDK: in batches, from a thread of its own.

Spans that cannot be sent are dropped: a trace never delays a line. The SDK's variables have their usual
meaning, such as OTEL_EXPORTER_OTLP_HEADERS for a key, OTEL_SERVICE_NAME and OTEL_BSP_SCHEDULE_DELAY.
"""

import asyncio
import logging
from threading import Thread
from uuid import uuid4

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from batchline import __version__
from batchline.traces.span import FinishedSpan, SpanAddress

_PATH = "/v1/traces"
_KINDS = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
    "producer": SpanKind.PRODUCER,
}
_NO_PARENT = Context()
# A collector that does not answer keeps no process from ending for longer than this, in seconds.
_PATIENCE = 5.0

_log = structlog.get_logger("batchline.traces")


class OtlpSpans:
    """Call it from one thread."""

    def __init__(self, endpoint: str) -> None:
        self._ids = _ChosenIds()
        self._provider = TracerProvider(
            ALWAYS_ON, _resource(), shutdown_on_exit=False, id_generator=self._ids
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=_address(endpoint))))
        self._tracer = self._provider.get_tracer("batchline", __version__)
        self._messages = _Messages()

    def add(self, span: FinishedSpan) -> None:
        self._ids.trace_id, self._ids.span_id = span.address.trace_id, span.address.span_id
        started = self._tracer.start_span(
            span.name,
            _NO_PARENT if span.parent is None else _inside(span.parent),
            _KINDS[span.kind],
            span.attributes,
            () if span.link is None else (Link(_context(span.link)),),
            span.started,
        )
        if span.error is not None:
            started.set_attribute("error.type", span.error)
            started.set_status(StatusCode.ERROR)
        started.end(span.ended)

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        # A daemon: the process does not wait for it.
        sending = Thread(target=self._provider.shutdown, name="last traces", daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, _PATIENCE)
        self._messages.close()


class _ChosenIds(IdGenerator):
    """The ids of the span that is being made. They are hashes, so as good as random."""

    trace_id = 1
    span_id = 1

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id

    def is_trace_id_random(self) -> bool:
        return True


class _Messages(logging.Handler):
    """What the SDK says in the standard library's log, as one warning for each kind of trouble."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self)
        self._logger.propagate = False
        self._last: tuple[str, int] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        source = (record.pathname, record.lineno)
        if source != self._last:
            self._last = source
            _log.warning("traces cannot be sent", reason=record.getMessage())

    def close(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = True
        super().close()


def _address(endpoint: str) -> str:
    """As the SDK reads OTEL_EXPORTER_OTLP_ENDPOINT, and also with the path."""
    base = endpoint.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH


def _resource() -> Resource:
    """This process. The SDK's variables come first."""
    usual = {
        "service.name": "batchline",
        "service.version": __version__,
        "service.instance.id": str(uuid4()),
    }
    return Resource(usual).merge(OTELResourceDetector().detect())


def _inside(parent: SpanAddress) -> Context:
    return set_span_in_context(NonRecordingSpan(_context(parent)), _NO_PARENT)


def _context(address: SpanAddress) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if address.sampled else TraceFlags.DEFAULT)
    return SpanContext(address.trace_id, address.span_id, is_remote=True, trace_flags=flags)
