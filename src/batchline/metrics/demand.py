"""The demand of workers: the work of each upstream and model, and how many workers meet its deadlines.

The rate of one worker is measured, not assumed. While nothing is measured, one worker is enough: it begins,
and its reports tell the rest.
"""

import math
from collections.abc import Sequence
from itertools import groupby

import msgspec

from batchline.store.monitoring import MAX_DEMAND_ROWS, Delay, DemandRow, OpenBatches


class ModelDemand(msgspec.Struct, frozen=True):
    """Times are in seconds. Rates are lines per second."""

    # None: lines that a provider works on.
    model: str | None
    waiting: int
    waited: float | None
    next_deadline: float | None
    in_flight: int
    rate: float


class UpstreamDemand(msgspec.Struct, frozen=True):
    # A name of the settings, or a URL as a batch names it: it may contain secrets.
    upstream: str
    waiting: int
    in_flight: int
    rate: float
    required_rate: float
    deadline_margin: float | None
    # The upstream slows workers down, so more workers would not help.
    limited: bool
    workers_busy: int
    workers_needed: int
    models: Sequence[ModelDemand]


class Demand(msgspec.Struct, frozen=True):
    workers_needed: int
    upstreams: Sequence[UpstreamDemand]
    # There are more pairs of upstream and model; those with the most waiting lines are listed.
    truncated: bool = False


def demand_of(rows: Sequence[DemandRow], batches: OpenBatches, delays: Sequence[Delay]) -> Demand:
    ordered = sorted(rows, key=lambda row: (row.upstream, row.model or ""))
    upstreams = [
        _of_upstream(name, list(group)) for name, group in groupby(ordered, lambda row: row.upstream)
    ]
    needed = max((each.workers_needed for each in upstreams), default=0)
    if batches.finalizing or batches.closing or batches.overdue or any(each.pending for each in delays):
        # Any worker ends these, whatever it serves.
        needed = max(needed, 1)
    return Demand(needed, upstreams, len(rows) >= MAX_DEMAND_ROWS)


def _of_upstream(name: str, rows: Sequence[DemandRow]) -> UpstreamDemand:
    waiting, in_flight = sum(row.waiting for row in rows), sum(row.in_flight for row in rows)
    rate, first = sum(row.rate for row in rows), rows[0]
    lines = waiting + in_flight
    needed = _workers_needed(first, lines, rate) if lines or first.tasks else 0
    return UpstreamDemand(
        name,
        waiting,
        in_flight,
        rate,
        first.required,
        first.margin,
        first.limited,
        first.workers,
        needed,
        [
            ModelDemand(row.model, row.waiting, row.waited, row.next_deadline, row.in_flight, row.rate)
            for row in rows
        ],
    )


def _workers_needed(upstream: DemandRow, lines: int, rate: float) -> int:
    busy = max(upstream.workers, 1)
    if rate <= 0:
        return busy
    needed = math.ceil(upstream.required / (rate / busy))
    if upstream.limited:
        needed = min(needed, busy)
    return max(1, min(needed, lines))
