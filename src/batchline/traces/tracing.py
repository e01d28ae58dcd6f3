"""Tracing of one process: what makes spans, and where they go."""

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from batchline.config.settings import TraceSettings
from batchline.traces.lines import LineTracer
from batchline.traces.span import SpanSink
from batchline.traces.submissions import BatchTracer

EXTRA = "batchline[otel]"
_OTLP = "batchline.traces.otlp"


class TracingUnavailable(Exception):
    """The extra is not installed. The message says what to do."""


class ClosableSink(SpanSink, Protocol):
    async def close(self) -> None:
        """Send what is left. Nothing is added afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class Tracing:
    lines: LineTracer
    batches: BatchTracer
    spans: ClosableSink

    @classmethod
    def by(cls, settings: TraceSettings, spans: ClosableSink) -> "Tracing":
        return cls(LineTracer(spans, settings), BatchTracer(spans), spans)


def require_extra(settings: TraceSettings) -> None:
    """Raises TracingUnavailable if the settings name an endpoint, and nothing here can send to it."""
    if settings.endpoint is None:
        return
    try:
        import_module(_OTLP)
    except ImportError as error:
        raise TracingUnavailable(
            f"traces.endpoint is set, but OpenTelemetry is not installed ({error}); run"
            f" pip install '{EXTRA}', or remove the setting"
        ) from error


def open_tracing(settings: TraceSettings) -> Tracing | None:
    """None if the settings name no endpoint: then nothing of OpenTelemetry is imported. Raises
    TracingUnavailable."""
    require_extra(settings)
    if settings.endpoint is None:
        return None
    from batchline.traces.otlp import OtlpSpans

    return Tracing.by(settings, OtlpSpans(settings.endpoint))
