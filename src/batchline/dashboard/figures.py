"""A batch as lists show it: its counts, rate, forecast and cost."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from batchline.model import Approval, Batch, BatchStatus, ids
from batchline.model.spending import dollars
from batchline.store.listing import BatchSummary

# What was noted longer ago says nothing about the rate now.
_MAX_NOTE_AGE = timedelta(minutes=10)
# The name of the upstream that runs a batch; None: several, or none is known.
UpstreamOf = Callable[[Batch], str | None]


class StateCounts(msgspec.Struct, frozen=True):
    """Items by state. Those that are completed include the reused ones; the others add up to the total."""

    total: int
    completed: int
    failed: int
    retrying: int
    in_flight: int
    pending: int
    reused: int
    cancelled: int
    expired: int


class FileName(msgspec.Struct, frozen=True):
    id: str
    name: str | None


class CostFigure(msgspec.Struct, frozen=True):
    """Dollars, if prices are known, and tokens."""

    usd: float | None
    tokens: int


class PauseFigure(msgspec.Struct, frozen=True):
    """`rule`: what has paused it; `approval` or `hold` if it waits for a user; null: a user has."""

    rule: str | None
    since: datetime


class ForecastFigure(msgspec.Struct, frozen=True):
    """When a batch ends at its present rate, and how long after its deadline; null: in time, or unknown."""

    ends_at: datetime | None
    late_by_s: float | None


class BatchFigures(msgspec.Struct, frozen=True):
    id: str
    kind: Literal["batch", "operation"]
    name: str
    file: FileName
    model: str | None
    upstream: str | None
    tenant: str
    status: str
    counts: StateCounts
    rate_per_s: float | None
    eta_s: float | None
    created_at: datetime
    expires_at: datetime | None
    ended_at: datetime | None
    cost: CostFigure
    priority: int
    pause: PauseFigure | None
    approval: str | None
    forecast: ForecastFigure


def figures_of(summary: BatchSummary, upstream_of: UpstreamOf) -> BatchFigures:
    batch = summary.batch
    rate = _rate(summary)
    left = batch.total - batch.finished
    eta = left / rate if rate else None
    return BatchFigures(
        id=ids.show(ids.BATCH, batch.id),
        kind="batch" if summary.operation is None else "operation",
        name=name_of(summary),
        file=FileName(ids.show(ids.FILE, batch.file_id), summary.filename),
        model=batch.model,
        upstream=upstream_of(batch),
        tenant=batch.tenant,
        status=batch.status.value,
        counts=counts_of(batch),
        rate_per_s=None if rate is None else round(rate, 3),
        eta_s=None if eta is None else round(eta, 1),
        created_at=batch.created_at,
        expires_at=batch.expires_at,
        ended_at=batch.ended_at,
        cost=cost_of(batch),
        priority=batch.priority,
        pause=_pause(summary),
        approval=summary.approval,
        forecast=_forecast(summary, eta),
    )


def counts_of(batch: Batch) -> StateCounts:
    counts = batch.counts
    return StateCounts(
        total=counts.total,
        completed=counts.completed,
        failed=counts.failed,
        retrying=counts.retrying,
        in_flight=counts.in_progress,
        pending=counts.pending,
        reused=batch.reused,
        cancelled=counts.cancelled,
        expired=counts.expired,
    )


def cost_of(batch: Batch) -> CostFigure:
    spending = batch.settings.spending
    known = spending is not None and bool(spending.prices)
    return CostFigure(dollars(batch.cost) if known else None, batch.input_tokens + batch.output_tokens)


def _rate(summary: BatchSummary) -> float | None:
    """Items per second: what was last noted; before the first note, since the batch began. None: it does
    not run, or nothing is known."""
    batch, now = summary.batch, summary.read_at
    if batch.status is not BatchStatus.IN_PROGRESS or batch.in_progress_at is None:
        return None
    if summary.noted_at is not None and summary.noted_seconds:
        return (summary.noted_items or 0) / summary.noted_seconds if _fresh(summary) else None
    seconds = (now - batch.in_progress_at).total_seconds()
    finished = batch.finished - batch.reused
    return finished / seconds if finished > 0 and seconds >= 1 else None


def _fresh(summary: BatchSummary) -> bool:
    assert summary.noted_at is not None
    # A batch of days is noted every half an hour.
    longest = max(_MAX_NOTE_AGE, 2 * timedelta(seconds=summary.noted_seconds or 0))
    return summary.read_at - summary.noted_at <= longest


def _forecast(summary: BatchSummary, eta: float | None) -> ForecastFigure:
    batch, now = summary.batch, summary.read_at
    if batch.ended_at is not None or batch.finalizing_at is not None:
        return ForecastFigure(None, None)
    ends_at = None if eta is None else now + timedelta(seconds=min(eta, 10**9))
    if batch.expires_at is None:
        return ForecastFigure(ends_at, None)
    late = ((ends_at or now) - batch.expires_at).total_seconds()
    return ForecastFigure(ends_at, round(late, 1) if late > 0 else None)


def name_of(summary: BatchSummary) -> str:
    """The name that a user has given in the metadata, or else what the batch is made of."""
    given = (summary.batch.metadata or {}).get("name")
    return given or summary.operation or summary.filename or ids.show(ids.BATCH, summary.batch.id)


def _pause(summary: BatchSummary) -> PauseFigure | None:
    batch = summary.batch
    since = batch.paused_at or batch.held_at
    if batch.status is not BatchStatus.PAUSED or since is None:
        return None
    if batch.paused_at is not None:
        return PauseFigure(batch.paused_by, since)
    return PauseFigure("approval" if summary.approval == Approval.PENDING.value else "hold", since)
