"""Spans that have ended, their ids, and W3C's `traceparent`."""

import os
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Literal, Protocol, TypeAlias
from uuid import UUID

import msgspec

from batchline.model.trace import traceparent

AttributeValue: TypeAlias = str | int | float | bool | Sequence[str]
Attributes: TypeAlias = Mapping[str, AttributeValue]

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class SpanAddress(msgspec.Struct, frozen=True):
    """Names a span, of this process or of another one."""

    trace_id: int
    span_id: int
    sampled: bool = True

    def __str__(self) -> str:
        return traceparent(self.trace_id, self.span_id, sampled=self.sampled)


class FinishedSpan(msgspec.Struct, frozen=True):
    """One span. Times are nanoseconds of Unix time. `error` is a code, never a message."""

    name: str
    address: SpanAddress
    parent: SpanAddress | None
    started: int
    ended: int
    attributes: Attributes
    kind: Literal["internal", "client", "server", "producer"] = "internal"
    error: str | None = None
    link: SpanAddress | None = None


class SpanSink(Protocol):
    def add(self, span: FinishedSpan) -> None:
        """Take a span in, and return at once."""
        ...


def new_trace_id() -> int:
    return int.from_bytes(os.urandom(16), "big") or 1


def new_span_id() -> int:
    return int.from_bytes(os.urandom(8), "big") or 1


def derived(batch_id: UUID, line_no: int = 0, run: int = 0) -> tuple[int, int]:
    """The trace of a line, or of a batch itself (line 0), and the span of its whole life. A line that runs
    again because its batch is retried has another such span in the same trace: `run` tells them apart."""
    trace = blake2b(batch_id.bytes + line_no.to_bytes(8, "big"), digest_size=24, person=b"batchline trace")
    digest = trace.digest()
    if run:
        trace.update(run.to_bytes(8, "big"))
    return int.from_bytes(digest[:16], "big") or 1, int.from_bytes(trace.digest()[16:], "big") or 1


def read_traceparent(text: str | None) -> SpanAddress | None:
    """None if it is not valid: then it must be ignored."""
    found = _TRACEPARENT.fullmatch(text or "")
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5] is not None):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    return SpanAddress(trace_id, span_id, bool(int(found[4], 16) & 1)) if trace_id and span_id else None
