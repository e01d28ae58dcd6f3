"""What metrics and autoscalers read of the database. No statement reads a large table or takes a lock."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from batchline.model import RESERVED
from batchline.store.session import Row, Session, run
from batchline.store.statements import Statement, statement

# Seconds that the client waits longer than the server gives a statement.
_MARGIN = 2.0
# Pairs of upstream and model, those with the most waiting lines.
MAX_DEMAND_ROWS = 1_000


class MonitoringSession(Session):
    """A session whose statements are read-only and end in time, also in the server: whoever monitors must not
    add to the load of a database that is slow already."""

    def __init__(self, url: str, server_limit: float) -> None:
        super().__init__(url, "metrics", timeout=server_limit + _MARGIN)
        self._server_limit = server_limit

    async def rows(
        self, statement: Statement, params: Mapping[str, Any], *, extra_time: float = 0.0
    ) -> list[Row]:
        async with self.transaction() as connection:
            # Local to the transaction: behind a pooler, the next one may be another client's.
            limits = (
                "SET TRANSACTION READ ONLY; SET LOCAL jit = off;"
                f" SET LOCAL statement_timeout = {round(self._server_limit * 1000)}"
            )
            await connection.execute(limits.encode())
            return await run(connection, statement, params, prepare=True)


class DemandRow(msgspec.Struct, frozen=True):
    """Work for one model at one upstream, and the state of the whole upstream. See demand.sql."""

    upstream: str
    # None: lines that a provider works on.
    model: str | None
    waiting: int
    waited: float | None
    next_deadline: float | None
    in_flight: int
    rate: float
    workers: int
    limited: bool
    required: float
    margin: float | None
    tasks: bool


class Delay(msgspec.Struct, frozen=True):
    task: str
    # By how many seconds it is overdue.
    seconds: float
    # A worker is needed for it.
    pending: bool


class OpenBatches(msgspec.Struct, frozen=True):
    in_progress: int
    # By a user, and by a rule.
    paused: int
    stopped: int
    held: int
    closing: int
    # Past their deadline, and counted above as well.
    overdue: int
    finalizing: int
    # Of these, how many failed at the last try, and how long the first has waited.
    failed: int
    age: float


class RowCounts(msgspec.Struct, frozen=True):
    table: str
    live: int
    dead: int


class OldestSnapshot(msgspec.Struct, frozen=True):
    seconds: float
    transactions: int


class Connections(msgspec.Struct, frozen=True):
    """Of the database server."""

    used: int
    own: int
    allowed: int


async def demand(session: Session, upstreams: Mapping[str, str], other: str) -> list[DemandRow]:
    """`upstreams`: the upstream of each routing key that is known; `other` has all other models."""
    params = {
        "keys": list(upstreams),
        "upstreams": list(upstreams.values()),
        "other": other,
        "excluded": [f"{RESERVED}%"],
        "limit": MAX_DEMAND_ROWS,
    }
    return [DemandRow(*row) for row in await session.rows(statement("demand"), params)]


async def open_batches(session: Session) -> OpenBatches:
    (row,) = await session.rows(statement("open_batches"), {})
    return OpenBatches(*row)


async def maintenance_delays(session: Session) -> Sequence[Delay]:
    """What any worker does besides lines and files."""
    return [Delay(*row) for row in await session.rows(statement("maintenance_delays"), {})]


async def row_counts(session: Session) -> Sequence[RowCounts]:
    return [RowCounts(*row) for row in await session.rows(statement("row_counts"), {})]


async def oldest_snapshot(session: Session) -> OldestSnapshot:
    (row,) = await session.rows(statement("oldest_snapshot"), {})
    return OldestSnapshot(*row)


async def connections(session: Session) -> Connections:
    (row,) = await session.rows(statement("connections"), {})
    return Connections(*row)
