"""Metrics of the whole database: read when somebody asks, and kept for some seconds.

However many ask at once, one read is under way. A part that cannot be read in time is left out and reported,
so a slow database costs no more than the limit of each statement, and a scrape always ends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar, cast

import structlog
from prometheus_client.metrics_core import Metric

from batchline.metrics import definitions, exports
from batchline.metrics.demand import Demand, demand_of
from batchline.metrics.labels import BoundedLabels, UpstreamNames
from batchline.store import monitoring, operations, providers, schedules, spans
from batchline.store.errors import StoreUnusable
from batchline.store.monitoring import MonitoringSession
from batchline.store.session import StoreUnavailable

# Parts that concern governed operations and providers.
OF_OPERATIONS = ("children", "durations", "providers")

Value = TypeVar("Value")

_log = structlog.get_logger("batchline.metrics")


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """In seconds. A page ends within Prometheus' usual limit of 10 seconds."""

    # How long an answer is used again.
    max_age: float = 5.0
    # For each statement, in the server.
    statement: float = 2.0
    # No part of a page is begun later than this.
    page: float = 5.0


class NotReadable(StoreUnavailable):
    """The database did not give the answer in time, or at all. The message is for a person."""


class CachedRead(Generic[Value]):
    """An answer of the database, or the reason why there is none, for as long as it may be used."""

    def __init__(self, read: Callable[[], Awaitable[Value]], max_age: float) -> None:
        self._read = read
        self._max_age = max_age
        self._lock = asyncio.Lock()
        self._until = 0.0
        self._value: Value | None = None
        self._reason: str | None = None

    async def get(self) -> Value:
        """Raises NotReadable."""
        async with self._lock:
            if monotonic() >= self._until:
                await self._refresh()
                self._until = monotonic() + self._max_age
            if self._reason is not None:
                raise NotReadable(self._reason)
            return cast(Value, self._value)

    async def _refresh(self) -> None:
        self._value = self._reason = None
        try:
            self._value = await self._read()
        except (StoreUnavailable, StoreUnusable) as error:
            self._reason = str(error)


class DatabaseMetrics:
    """Reads over a connection of its own: a busy pool delays no reader, and no reader keeps others from a
    pool."""

    def __init__(self, url: str, names: UpstreamNames, limits: ReadLimits | None = None) -> None:
        self._limits = limits = limits or ReadLimits()
        self._session = session = MonitoringSession(url, limits.statement)
        self._parts: dict[str, Callable[[], Awaitable[list[Metric]]]] = {}
        batches = self._cached(lambda: monitoring.open_batches(session))
        delays = self._cached(lambda: monitoring.maintenance_delays(session))

        async def demand() -> Demand:
            rows = await monitoring.demand(session, names.of_keys, names.other)
            return demand_of(rows, await batches.get(), await delays.get())

        self._demand = self._cached(demand)
        self._add("batches", batches, exports.open_batches)
        self._add("demand", self._demand, lambda found: exports.demand(found, names))
        self._add("maintenance", delays, exports.maintenance)
        # The names of one page at a time: those of schedules that are gone must not use up the labels.
        self._read(
            "schedules",
            lambda: schedules.lags(session),
            lambda found: exports.schedule_lags(found, BoundedLabels()),
        )
        self._read("rows", lambda: monitoring.row_counts(session), exports.row_counts)
        self._read("snapshot", lambda: monitoring.oldest_snapshot(session), exports.oldest_snapshot)
        self._read("connections", lambda: monitoring.connections(session), exports.connections)
        self._read("children", lambda: operations.totals(session), exports.children)
        self._read("durations", lambda: operations.durations(session), exports.durations)
        self._read(
            "providers",
            lambda: providers.counts(session, spans.Scope()),
            lambda found: exports.provider_items(found, names),
        )

    async def demand(self) -> Demand:
        """Raises NotReadable."""
        return await self._demand.get()

    async def metrics(self, only: Collection[str] | None = None) -> list[Metric]:
        """All parts that can be read, or only some."""
        began, found, failed = monotonic(), list[Metric](), dict[str, str]()
        parts = self._parts if only is None else {name: self._parts[name] for name in only}
        for name, part in parts.items():
            if monotonic() - began > self._limits.page:
                failed[name] = "other parts took too long"
                continue
            try:
                found += await part()
            except NotReadable as error:
                failed[name] = str(error)
        if failed:
            reasons = "; ".join(f"{part}: {reason}" for part, reason in failed.items())
            _log.warning("metrics of the database are incomplete", reasons=reasons)
        readable = definitions.READ_OK.gauge_family()
        for name in parts:
            readable.add_metric((name,), float(name not in failed))
        return [*found, readable]

    async def close(self) -> None:
        await self._session.close()

    def _cached(self, read: Callable[[], Awaitable[Value]]) -> CachedRead[Value]:
        return CachedRead(read, self._limits.max_age)

    def _read(
        self, name: str, read: Callable[[], Awaitable[Value]], export: Callable[[Value], Iterable[Metric]]
    ) -> None:
        self._add(name, self._cached(read), export)

    def _add(self, name: str, read: CachedRead[Value], export: Callable[[Value], Iterable[Metric]]) -> None:
        async def part() -> list[Metric]:
            return list(export(await read.get()))

        self._parts[name] = part


class Collected:
    """Metrics that were collected before, as prometheus_client's registry wants them."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics
