"""Spans of lines: one for the whole line, and in it each claim, each request and each settle.

The claim's span is made when the line is claimed, the others when its verdict is stored. So the path of a
request pays nothing, and a line that is not traced pays for two comparisons. If a worker is killed, spans
that it has not sent are lost; the next worker's spans are in the same trace.

Which lines are traced depends on the batch, the line's number and the settings alone. So workers with the
same settings agree.
"""

import time
from collections.abc import Sequence
from uuid import UUID

import structlog
from msgspec.structs import replace

from batchline.config.settings import TraceSettings
from batchline.model import Completed, Deferred, Failed, Item, Retried, SubmissionUnknown, TaskParked, Verdict
from batchline.model.ids import milliseconds_of
from batchline.model.trace import LineTrace
from batchline.secrets.tracebacks import traceback_of
from batchline.traces import conventions
from batchline.traces.span import (
    AttributeValue,
    FinishedSpan,
    SpanAddress,
    SpanSink,
    derived,
    new_span_id,
    read_traceparent,
)

_ENDS = (Completed, Failed)
_OUTCOMES: dict[type[Verdict], str] = {
    Completed: "completed",
    Failed: "failed",
    Retried: "retry",
    Deferred: "deferred",
    TaskParked: "parked",
    SubmissionUnknown: "submission_unknown",
}
# Multiples of this, modulo 2**64, are spread evenly: so is the sample over the lines.
_STEP = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1

_log = structlog.get_logger("batchline.traces")


class LineSampler:
    """Chooses lines: the first ones of each batch, and an even share of the others."""

    def __init__(self, settings: TraceSettings) -> None:
        self.first = settings.first
        self.below = int(settings.sample * 2**64)

    def offset(self, batch_id: UUID) -> int:
        """Which lines are chosen differs from batch to batch."""
        return batch_id.int & _MASK

    def chooses(self, offset: int, line_no: int) -> bool:
        return line_no <= self.first or (line_no * _STEP + offset & _MASK) < self.below


class LineTracer:
    """Whatever goes wrong with a trace is logged, and does not concern the line."""

    def __init__(self, spans: SpanSink, settings: TraceSettings) -> None:
        self._spans = spans
        self._sampler = LineSampler(settings)

    def claimed(self, items: list[Item], began: float) -> None:
        """Mark the items of a claim that are traced. `began`: when the claim was sent, by time.monotonic."""
        try:
            self._mark(items, began)
        except Exception as error:  # noqa: BLE001
            _log.error("cannot trace claims", exception=traceback_of(error))

    def stored(
        self, verdicts: Sequence[Verdict], late: Sequence[Verdict], repeated: Sequence[Verdict]
    ) -> None:
        """Verdicts were stored. Those in `late` did not count."""
        try:
            self._settle(verdicts, late)
        except Exception as error:  # noqa: BLE001
            _log.error("cannot trace settles", exception=traceback_of(error))

    def _mark(self, items: list[Item], began: float) -> None:
        sampler, claim, offset = self._sampler, None, 0
        for index, item in enumerate(items):
            if item.claim is not claim:
                claim = item.claim
                offset = sampler.offset(claim.batch_id)
            if sampler.chooses(offset, item.line_no):
                items[index] = self._marked(item, began)

    def _settle(self, verdicts: Sequence[Verdict], late: Sequence[Verdict]) -> None:
        dropped: set[int] | None = None
        for verdict in verdicts:
            trace = verdict.item.trace
            if trace is not None:
                if dropped is None:
                    dropped = {id(each) for each in late}
                self._settled(verdict, trace, counts=id(verdict) not in dropped)

    def _marked(self, item: Item, began: float) -> Item:
        claim = item.claim
        trace_id, line = derived(claim.batch_id, item.line_no, claim.attempts_before)
        trace = LineTrace(
            trace_id,
            line,
            new_span_id(),
            began,
            time.time_ns() - time.monotonic_ns(),
            claim.settings.traceparent,
            conventions.request_parameters(item),
        )
        attributes = {**conventions.line_attributes(item), "batchline.claim.size": claim.size}
        self._add("claim", trace, new_span_id(), began, time.monotonic(), attributes)
        return replace(item, trace=trace)

    def _settled(self, verdict: Verdict, trace: LineTrace, *, counts: bool) -> None:
        item, now = verdict.item, time.monotonic()
        error, answered = conventions.error_type(verdict), item.stamps.answered or now
        if item.stamps.sent:
            attributes = {**conventions.request_attributes(item), **conventions.answer_attributes(verdict)}
            name = conventions.request_name(item)
            self._add(name, trace, trace.request, item.stamps.sent, answered, attributes, error)
        outcome = {**conventions.line_attributes(item), "batchline.outcome": _OUTCOMES[type(verdict)]}
        if counts and isinstance(verdict, _ENDS):
            self._ended(item, trace, now, outcome, error)
        if not isinstance(verdict, _ENDS):
            # It comes back after so many seconds.
            outcome["batchline.delay"] = verdict.delay
        if not counts:
            outcome["batchline.late"] = True
        self._add("settle", trace, new_span_id(), answered, now, outcome)

    def _ended(
        self,
        item: Item,
        trace: LineTrace,
        now: float,
        attributes: dict[str, AttributeValue],
        error: str | None,
    ) -> None:
        claim = item.claim
        parent, began = None, milliseconds_of(claim.batch_id)
        if claim.attempts_before:
            # It runs again, because its batch was retried: a part of the line's first life.
            parent = SpanAddress(*derived(claim.batch_id, item.line_no))
            began = None
        self._spans.add(
            FinishedSpan(
                "line",
                SpanAddress(trace.trace_id, trace.line),
                parent,
                _unix(trace, trace.claimed) if began is None else began * 1_000_000,
                _unix(trace, now),
                attributes,
                error=error,
                link=read_traceparent(trace.submission),
            )
        )

    def _add(
        self,
        name: str,
        trace: LineTrace,
        span_id: int,
        began: float,
        ended: float,
        attributes: dict[str, AttributeValue],
        error: str | None = None,
    ) -> None:
        self._spans.add(
            FinishedSpan(
                name,
                SpanAddress(trace.trace_id, span_id),
                SpanAddress(trace.trace_id, trace.line),
                _unix(trace, began),
                _unix(trace, ended),
                attributes,
                "client" if span_id == trace.request else "internal",
                error,
            )
        )


def _unix(trace: LineTrace, seconds: float) -> int:
    return trace.to_unix + int(seconds * 1_000_000_000)
