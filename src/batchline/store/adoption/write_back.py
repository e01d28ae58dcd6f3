"""The way back: results and unfinished requests are written to the old tables, and adopted batches go."""

from collections.abc import Sequence
from uuid import UUID

from psycopg import sql

from batchline.store.adoption.copies import page_range
from batchline.store.adoption.records import StoredResult, WrittenBack
from batchline.store.adoption.source import BATCHES, REQUESTS, Source
from batchline.store.arrays import Int2Array, Int4Array, TextArray
from batchline.store.session import StoreConnection, run
from batchline.store.statements import statement


async def busy_workers(connection: StoreConnection) -> list[tuple[str, int]]:
    return [(name, items) for name, items in await run(connection, statement("busy_workers"), {})]


async def own_batches(connection: StoreConnection) -> list[tuple[UUID, int, bool]]:
    """Batches created since the cutover: id, lines, and whether it has not ended."""
    rows = await run(connection, statement("own_batches"), {})
    return [(batch_id, total, running) for batch_id, total, running in rows]


async def unwritten_results(
    connection: StoreConnection, *, first: int | None = None, beyond: int | None = None
) -> list[StoredResult]:
    rows = await run(connection, statement("results_to_write_back"), page_range(first, beyond))
    return [StoredResult(*row) for row in rows]


async def write_back(connection: StoreConnection, source: Source, written: Sequence[WrittenBack]) -> None:
    if not written:
        return
    params = {
        "ids": [one.request_id for one in written],
        "states": [one.state for one in written],
        "retry_attempts": Int4Array([one.retry_attempt for one in written]),
        "statuses": Int2Array([one.response_status for one in written]),
        "bodies": TextArray([one.response_body for one in written]),
        "errors": TextArray([one.error for one in written]),
        "finished": [one.finished_at for one in written],
    }
    query = _template(connection, "write_back_results").format(
        requests=source.table(REQUESTS), assignments=source.assignments()
    )
    await connection.execute(query, params)


async def add_missing_requests(connection: StoreConnection, source: Source) -> int:
    columns, values = source.pending()
    query = _template(connection, "add_missing_requests").format(
        requests=source.table(REQUESTS), columns=columns, values=values
    )
    return (await connection.execute(query)).rowcount


async def reset_unfinished(connection: StoreConnection, source: Source) -> int:
    query = _template(connection, "reset_unfinished").format(
        requests=source.table(REQUESTS), assignments=source.assignments()
    )
    return (await connection.execute(query)).rowcount


async def write_back_cancels(connection: StoreConnection, source: Source) -> None:
    if "cancelling_at" in source.tables[BATCHES]:
        query = _template(connection, "write_back_cancels").format(batches=source.table(BATCHES))
        await connection.execute(query)


async def add_held(connection: StoreConnection) -> None:
    await run(connection, statement("add_held"), {})


async def remove_adopted(connection: StoreConnection) -> int:
    ((batches,),) = await run(connection, statement("remove_adopted"), {})
    await run(connection, statement("keep_adopted_lanes"), {})
    return int(batches)


def _template(connection: StoreConnection, name: str) -> sql.SQL:
    return sql.SQL(statement(name).text_in(connection.schema))
