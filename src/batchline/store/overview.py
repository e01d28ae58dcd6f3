"""What the dashboard's overview and the page of one batch read: counts, rates over time, workers,
upstreams."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from batchline.store.listing import BatchViewer
from batchline.store.session import Session
from batchline.store.statements import statement

# Notes that are read for one chart.
_MAX_NOTES = 50_000
_MAX_RECENT = 10_000
_MAX_LOADS = 1_000
_MAX_LANES = 100
_MAX_FAILED_PER_LANE = 10_000
_MAX_POINTS = 1_000
_CHUNK = 5_000


class OpenCounts(msgspec.Struct, frozen=True):
    open: int
    paused: int
    waiting_for_approval: int
    overdue: int
    failed_recently: int
    read_at: datetime


class MinuteCounts(msgspec.Struct, frozen=True):
    """What all batches of a tenant did in one minute."""

    minute: datetime
    completed: float
    failed: float
    in_flight: float


class Spent(msgspec.Struct, frozen=True):
    """Nano-dollars and tokens."""

    cost: int
    tokens: int
    read_at: datetime


class WorkerLoad(msgspec.Struct, frozen=True):
    """What a worker holds of a tenant at one routing key; None: nothing."""

    id: UUID
    name: str
    started_at: datetime
    lease_until: datetime
    key: str | None
    items: int
    # Of Batchline; None: it has not reported yet.
    version: str | None
    # The name of the upstream, if several serve the key.
    sent_to: str | None = None


class UpstreamReport(msgspec.Struct, frozen=True):
    """What live workers report of an upstream, by routing key. Of all tenants."""

    key: str
    workers: int
    # Those that cannot connect to it, and why.
    cut_off: int
    reason: str | None
    limited: bool
    # The name of the upstream, if several serve the key.
    upstream: str | None = None
    # Requests that these workers may have in flight there now, and at most; None: not reported.
    limit: int | None = None
    ceiling: int | None = None
    # Whether workers find the limit, and the name of what it follows.
    auto: bool = False
    signal: str | None = None


class KeyLatency(msgspec.Struct, frozen=True):
    key: str
    p50: float
    p95: float


class StuckBatches(msgspec.Struct, frozen=True):
    """Batches of a tenant whose files could not be written, and that are past their deadline and open."""

    unwritten: int
    unwritten_since: datetime | None
    # One of the reasons.
    reason: str | None
    overdue: int
    overdue_since: datetime | None
    read_at: datetime


class ProgressNote(msgspec.Struct, frozen=True):
    """What a batch did in the seconds before a moment."""

    at: datetime
    seconds: float
    completed: int
    failed: int


class LaneCounts(msgspec.Struct, frozen=True):
    """Items of a lane. `capped`: more have failed than were counted."""

    model: str
    total: int
    next: int
    in_flight: int
    retrying: int
    returned: int
    failed: int
    capped: bool


async def open_counts(session: Session, viewer: BatchViewer) -> OpenCounts:
    params = {"tenant": viewer.tenant, "viewer": viewer.user, "limit": _MAX_RECENT}
    (row,) = await session.rows(statement("open_counts"), params)
    return OpenCounts(*row)


async def stuck_batches(session: Session, tenant: str) -> StuckBatches:
    (row,) = await session.rows(statement("stuck_batches"), {"tenant": tenant})
    return StuckBatches(*row)


async def throughput(session: Session, tenant: str, minutes: int) -> list[MinuteCounts]:
    """The minutes in which something was done."""
    params = {"tenant": tenant, "minutes": minutes, "limit": _MAX_NOTES}
    return [MinuteCounts(*row) for row in await session.rows(statement("throughput"), params)]


async def spent_today(session: Session, tenant: str) -> Spent:
    (row,) = await session.rows(statement("spent_since"), {"tenant": tenant, "limit": _MAX_NOTES})
    return Spent(*row)


async def worker_loads(session: Session, tenant: str) -> list[WorkerLoad]:
    params = {"tenant": tenant, "limit": _MAX_LOADS}
    return [WorkerLoad(*row) for row in await session.rows(statement("live_loads"), params)]


async def upstream_reports(session: Session) -> list[UpstreamReport]:
    rows = await session.rows(statement("upstream_reports"), {"limit": _MAX_LOADS})
    return [UpstreamReport(*row) for row in rows]


async def latencies(session: Session, tenant: str) -> list[KeyLatency]:
    rows = await session.rows(statement("recent_latencies"), {"tenant": tenant})
    return [KeyLatency(*row) for row in rows]


async def refusals(session: Session, tenant: str) -> dict[str, int]:
    """Requests of the last minute that were answered with 429, by routing key."""
    rows = await session.rows(statement("recent_refusals"), {"tenant": tenant})
    return {row[0]: row[1] for row in rows}


async def notes(session: Session, batch_id: UUID) -> list[ProgressNote]:
    """Of one batch, oldest first."""
    rows = await session.rows(statement("batch_progress"), {"batch": batch_id, "limit": _MAX_POINTS})
    return [ProgressNote(*row) for row in reversed(rows)]


async def lanes(session: Session, batch_id: UUID) -> Sequence[LaneCounts]:
    params = {"batch": batch_id, "limit": _MAX_LANES, "max_failed": _MAX_FAILED_PER_LANE}
    return [LaneCounts(*row) for row in await session.rows(statement("lane_counts"), params)]


async def drop_old_notes(session: Session, older_than: timedelta) -> int:
    """Delete a chunk of old notes. Return 0 when none is left."""
    params = {"older_than": older_than, "chunk": _CHUNK}
    ((gone,),) = await session.rows(statement("drop_old_progress"), params)
    return int(gone)
