"""Traces: what a batch and an item carry, so that all that happens to a line ends up in one trace."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from uuid import UUID

import msgspec


class LineTrace(msgspec.Struct):
    """The trace of a line, and the request of one attempt in it. Only lines that are traced have one.

    `line` is the span of the whole line, and the parent of `request`. Whoever sends the request notes where.
    """

    trace_id: int
    line: int
    request: int
    # Of the claim, in seconds of time.monotonic.
    claimed: float
    # Nanoseconds from that clock to Unix time: one value, so that the times of an attempt fit together.
    to_unix: int
    # The `traceparent` of the submission.
    submission: str | None
    # Settings of the request that are no text of the user's, by their names in a trace.
    parameters: dict[str, int | float]
    upstream: str | None = None

    @property
    def traceparent(self) -> str:
        """The header that makes what the upstream does a part of this trace."""
        return traceparent(self.trace_id, self.request)


def traceparent(trace_id: int, span_id: int, *, sampled: bool = True) -> str:
    """As W3C's Trace Context has it."""
    return f"00-{trace_id:032x}-{span_id:016x}-{'01' if sampled else '00'}"


@dataclass(frozen=True, slots=True)
class TracedSubmission:
    """A submission under way that has a trace, and the batches that it has created."""

    traceparent: str
    batches: list[UUID] = field(default_factory=list)


# As for every tracer, the current trace is that of the current task. Batches are created in many places.
SUBMISSION: ContextVar[TracedSubmission | None] = ContextVar("submission", default=None)
