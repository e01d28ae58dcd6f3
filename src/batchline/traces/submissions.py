"""Spans of batches: the submission, in the trace of the submitter if it has one, and the finalizing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from batchline.model import Batch, ids
from batchline.model.trace import SUBMISSION, TracedSubmission
from batchline.traces.span import (
    AttributeValue,
    FinishedSpan,
    SpanAddress,
    SpanSink,
    derived,
    new_span_id,
    new_trace_id,
    read_traceparent,
)


@dataclass(slots=True)
class SubmissionSpan:
    """What its maker learns while it lasts."""

    name: str
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    error: str | None = None


class BatchTracer:
    def __init__(self, spans: SpanSink) -> None:
        self._spans = spans

    @contextmanager
    def submitting(
        self, span: SubmissionSpan, kind: Literal["server", "producer"], caller: str | None = None
    ) -> Iterator[None]:
        """Batches that are created in here carry the trace of the span. If there are none, the span is
        dropped. `caller` is the `traceparent` of whoever submits."""
        parent, began = read_traceparent(caller), time.time_ns()
        address = SpanAddress(
            new_trace_id() if parent is None else parent.trace_id,
            new_span_id(),
            parent is None or parent.sampled,
        )
        submission = TracedSubmission(str(address))
        token = SUBMISSION.set(submission)
        try:
            yield
        finally:
            SUBMISSION.reset(token)
            if submission.batches and address.sampled:
                batch = ids.show(ids.BATCH, submission.batches[-1])
                attributes = {**span.attributes, "batchline.batch.id": batch}
                self._spans.add(
                    FinishedSpan(
                        span.name, address, parent, began, time.time_ns(), attributes, kind, span.error
                    )
                )

    def finalized(self, batch: Batch, seconds: float) -> None:
        """The batch has ended, and its files were written in so many seconds."""
        parent = read_traceparent(batch.settings.traceparent)
        if parent is not None and not parent.sampled:
            return
        trace_id = derived(batch.id)[0] if parent is None else parent.trace_id
        ended = time.time_ns()
        self._spans.add(
            FinishedSpan(
                "finalize",
                SpanAddress(trace_id, new_span_id()),
                parent,
                ended - int(seconds * 1_000_000_000),
                ended,
                {
                    "batchline.batch.id": ids.show(ids.BATCH, batch.id),
                    "batchline.batch.status": batch.status.value,
                    "batchline.batch.lines": batch.total,
                    "batchline.batch.completed": batch.completed,
                    "batchline.batch.failed": batch.failed,
                },
            )
        )
