"""The overview of one tenant: rates, upstreams, workers, and the open batches that may be late.

Rates over time and what was spent change slowly and cost the most to read: they are read again after 15
seconds, once for all who look at the same tenant.
"""

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from batchline.config.settings import ServerSettings
from batchline.dashboard.figures import BatchFigures, CostFigure, figures_of
from batchline.dashboard.upstreams import UpstreamDirectory, UpstreamFacts, UpstreamFigures, figures
from batchline.model.spending import dollars
from batchline.store import listing, overview
from batchline.store.listing import BatchFilters, BatchViewer
from batchline.store.overview import MinuteCounts, OpenCounts, Spent, WorkerLoad
from batchline.store.session import Session

MINUTES = 60
_DISPLAYED = 20
# The batches with the next deadlines. Those that will be late come first.
_EXAMINED = 100
_KEPT = 15.0
_MAX_TENANTS = 1_000

Point = tuple[datetime, float, float]
LoadPoint = tuple[datetime, float, int | None]


class WorkerFigures(msgspec.Struct, frozen=True):
    id: str
    host: str
    version: str | None
    lease_until: datetime
    held: int
    started_at: datetime


class OverviewCounts(msgspec.Struct, frozen=True):
    open: int
    paused: int
    waiting_for_approval: int
    late: int
    failed_recently: int


class Overview(msgspec.Struct, frozen=True):
    now: datetime
    throughput: Sequence[Point]
    in_flight: Sequence[LoadPoint]
    upstreams: Sequence[UpstreamFigures]
    # For admins; how many there are is for everybody.
    workers: Sequence[WorkerFigures]
    live_workers: int
    open: Sequence[BatchFigures]
    counts: OverviewCounts
    spend_today: CostFigure


class _History(msgspec.Struct, frozen=True):
    read_at: float
    minutes: Sequence[MinuteCounts]
    spent: Spent


class OverviewReader:
    """Reads overviews for one server."""

    def __init__(
        self, settings: ServerSettings, names: UpstreamDirectory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._names = names
        self._priced = bool(settings.prices)
        self._clock = clock
        self._histories: dict[str, _History] = {}

    async def read(self, session: Session, viewer: BatchViewer, *, workers: bool) -> Overview:
        """`workers`: also show the processes."""
        history = await self._history(session, viewer.tenant)
        loads = await overview.worker_loads(session, viewer.tenant)
        latencies = await overview.latencies(session, viewer.tenant)
        refusals = await overview.refusals(session, viewer.tenant)
        reports = await overview.upstream_reports(session)
        counts = await overview.open_counts(session, viewer)
        nearest = await listing.page(
            session, viewer, BatchFilters(), sort="deadline", descending=False, limit=_EXAMINED
        )
        batches = await self._batches(session, viewer, [each.id for each in nearest.rows])
        now = counts.read_at
        own = {each.upstream for each in batches if each.upstream is not None}
        upstreams = figures(self._names, own, UpstreamFacts(loads, latencies, refusals, reports))
        return Overview(
            now=now,
            # Up to the minute in which the history was read.
            throughput=_throughput(history.spent.read_at, history.minutes),
            in_flight=_in_flight(now, history, upstreams),
            upstreams=upstreams,
            workers=_workers(loads) if workers else (),
            live_workers=len({load.id for load in loads}),
            open=sorted(batches, key=lambda each: each.forecast.late_by_s is None)[:_DISPLAYED],
            counts=_counts(counts, batches),
            spend_today=CostFigure(
                dollars(history.spent.cost) if self._priced or history.spent.cost else None,
                history.spent.tokens,
            ),
        )

    async def _batches(
        self, session: Session, viewer: BatchViewer, batches: Sequence[UUID]
    ) -> list[BatchFigures]:
        found = await listing.summaries(session, viewer, batches)
        return [figures_of(each, self._names.of_batch) for each in found]

    async def _history(self, session: Session, tenant: str) -> _History:
        kept = self._histories.get(tenant)
        if kept is not None and self._clock() - kept.read_at < _KEPT:
            return kept
        minutes = await overview.throughput(session, tenant, MINUTES)
        spent = await overview.spent_today(session, tenant)
        if len(self._histories) >= _MAX_TENANTS:
            self._histories.clear()
        self._histories[tenant] = found = _History(self._clock(), minutes, spent)
        return found


def without_series(found: Overview) -> dict[str, Any]:
    """What an event has: the newest point instead of each series."""
    fields = msgspec.structs.asdict(found)
    for name in ("throughput", "in_flight"):
        series = fields.pop(name)
        fields[f"{name}_point"] = series[-1] if series else None
    return fields


def _minutes(now: datetime) -> list[datetime]:
    """The minutes before the present one: that is not over."""
    current = now.replace(second=0, microsecond=0)
    return [current - timedelta(minutes=ago) for ago in range(MINUTES, 0, -1)]


def _throughput(now: datetime, found: Sequence[MinuteCounts]) -> list[Point]:
    by_minute = {each.minute: each for each in found}
    points = ((minute, by_minute.get(minute)) for minute in _minutes(now))
    return [
        (minute, 0.0, 0.0)
        if each is None
        else (minute, round(each.completed / 60, 3), round(each.failed / 60, 3))
        for minute, each in points
    ]


def _in_flight(now: datetime, history: _History, upstreams: Sequence[UpstreamFigures]) -> list[LoadPoint]:
    """The last point is that of now, with the limit."""
    by_minute = {each.minute: round(each.in_flight, 1) for each in history.minutes}
    minutes = _minutes(history.spent.read_at)[1:]
    past: list[LoadPoint] = [(minute, by_minute.get(minute, 0.0), None) for minute in minutes]
    limits = [each.limit for each in upstreams if each.in_flight and each.limit is not None]
    current = float(sum(each.in_flight for each in upstreams))
    return [*past, (now, current, sum(limits) if limits else None)]


def _workers(loads: Sequence[WorkerLoad]) -> list[WorkerFigures]:
    held: dict[UUID, int] = {}
    for load in loads:
        held[load.id] = held.get(load.id, 0) + load.items
    first = {load.id: load for load in reversed(loads)}
    return [
        WorkerFigures(
            id=load.id.hex,
            # host:pid@machine/birth
            host=load.name.split("@")[0],
            version=load.version,
            lease_until=load.lease_until,
            held=held[load.id],
            started_at=load.started_at,
        )
        for load in reversed(first.values())
    ]


def _counts(counts: OpenCounts, nearest: Sequence[BatchFigures]) -> OverviewCounts:
    """A batch is late if it is past its deadline, or will be at its present rate; the latter is known of
    the batches with the next deadlines."""
    late = sum(each.forecast.late_by_s is not None for each in nearest)
    return OverviewCounts(
        counts.open,
        counts.paused,
        counts.waiting_for_approval,
        max(counts.overdue, late),
        counts.failed_recently,
    )
