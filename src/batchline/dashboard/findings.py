"""What an admin should look at: maintenance that is late, batches that do not end, and a database that cannot
clean up. Everything is read from counters and small indexes; `batchline doctor` checks the data itself.

Limits are those of the alerts (deploy/prometheus). Of batches, only those of the reader's tenant count.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from batchline.store import monitoring, overview
from batchline.store.monitoring import Connections, Delay, OldestSnapshot, RowCounts
from batchline.store.overview import StuckBatches
from batchline.store.session import Session

# Seconds.
_MAX_DELAY = 1800.0
_MAX_SNAPSHOT = 3600.0
_MAX_DEAD = 100_000
_MAX_CONNECTIONS = 0.9


class DashboardFinding(msgspec.Struct, frozen=True):
    """`since` is null if it is not known."""

    check: str
    severity: Literal["error", "warning"]
    message: str
    count: int
    since: datetime | None


async def read(session: Session, tenant: str) -> list[DashboardFinding]:
    """Errors first; empty if all is well."""
    stuck = await overview.stuck_batches(session, tenant)
    found = [
        *of_batches(stuck),
        *of_maintenance(await monitoring.maintenance_delays(session), stuck.read_at),
        *of_snapshot(await monitoring.oldest_snapshot(session), stuck.read_at),
        *of_rows(await monitoring.row_counts(session)),
        *of_connections(await monitoring.connections(session)),
    ]
    return sorted(found, key=lambda each: each.severity)


def of_batches(stuck: StuckBatches) -> Iterator[DashboardFinding]:
    if stuck.unwritten:
        message = f"Finished batches have no files: {stuck.reason}. Workers try again."
        yield DashboardFinding("files", "error", message, stuck.unwritten, stuck.unwritten_since)
    if stuck.overdue:
        message = "Batches are past their deadline and still open. A worker closes them: check that one runs."
        yield DashboardFinding("deadlines", "error", message, stuck.overdue, stuck.overdue_since)


def of_maintenance(delays: Sequence[Delay], now: datetime) -> Iterator[DashboardFinding]:
    late = {each.task: each.seconds for each in delays if each.seconds > _MAX_DELAY}
    if late:
        message = f"Maintenance is late: {', '.join(sorted(late))}. Workers do it: check that one runs."
        yield DashboardFinding(
            "maintenance", "warning", message, len(late), now - timedelta(seconds=max(late.values()))
        )


def of_snapshot(oldest: OldestSnapshot, now: datetime) -> Iterator[DashboardFinding]:
    if oldest.seconds > _MAX_SNAPSHOT:
        message = (
            "A transaction of the database is open for long, so PostgreSQL cannot remove dead rows."
            " Find it in pg_stat_activity and end it."
        )
        since = now - timedelta(seconds=oldest.seconds)
        yield DashboardFinding("snapshot", "warning", message, 1, since)


def of_rows(counts: Sequence[RowCounts]) -> Iterator[DashboardFinding]:
    # Results are deleted in large numbers, by retention.
    dead = [each for each in counts if each.dead > _MAX_DEAD and each.table != "results"]
    if dead:
        tables = ", ".join(f"{each.table} has {each.dead:,}" for each in dead)
        message = f"Vacuum does not keep up with dead rows: {tables}."
        yield DashboardFinding("vacuum", "warning", message, len(dead), None)


def of_connections(now: Connections) -> Iterator[DashboardFinding]:
    if now.used > now.allowed * _MAX_CONNECTIONS:
        message = (
            f"The database has {now.used:,} of {now.allowed:,} connections."
            " Use a pooler, or raise max_connections."
        )
        yield DashboardFinding("connections", "warning", message, now.used, None)
