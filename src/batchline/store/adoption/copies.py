"""Copies files, lines and finished requests of the old tables, under numbers that nothing else uses."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from psycopg import sql

from batchline.store.adoption.records import AdoptedResult, Copied, FinishedRequest
from batchline.store.adoption.source import ARCHIVE, REQUESTS, Source
from batchline.store.arrays import Int2Array, Int4Array, Int8Array, TextArray
from batchline.store.session import StoreConnection, run
from batchline.store.statements import statement

_FIRST, _BEYOND = "(0,0)", "(4294967295,0)"


async def changed_files(connection: StoreConnection) -> list[int]:
    return [file_no for (file_no,) in await run(connection, statement("changed_files"), {})]


async def any_file(connection: StoreConnection) -> int | None:
    """A file that was numbered, if there is one left."""
    rows = await run(connection, statement("any_adopted_file"), {})
    return int(rows[0][0]) if rows else None


async def forget_file(connection: StoreConnection, file_no: int) -> None:
    await run(connection, statement("forget_file"), {"file_no": file_no})
    await run(connection, statement("restart_pass"), {})


async def new_files(connection: StoreConnection) -> list[UUID]:
    return [file_id for (file_id,) in await run(connection, statement("new_files"), {})]


async def number_file(connection: StoreConnection, file_id: UUID) -> int:
    ((file_no, lines, not_post),) = await run(connection, statement("number_file"), {"file": file_id})
    counts = {"file_no": file_no, "lines": lines, "not_post": not_post}
    await run(connection, statement("count_file"), counts)
    return int(lines)


async def uncopied_files(connection: StoreConnection) -> list[Copied]:
    return [Copied(*row) for row in await run(connection, statement("uncopied_files"), {})]


async def copy_lines(connection: StoreConnection, file: Copied, until: int) -> int:
    params = {"file_no": file.file_no, "copied": file.copied, "until": until}
    ((lines,),) = await run(connection, statement("copy_adopted_lines"), params)
    return int(lines)


async def add_batches(connection: StoreConnection) -> int:
    ((added,),) = await run(connection, statement("add_adopted_batches"), {})
    return int(added)


async def pages(connection: StoreConnection, source: Source) -> int:
    """The number of pages of the largest table of old requests."""
    names = [source.table(name) for name in (REQUESTS, ARCHIVE) if name in source.tables]
    trees = sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT relid FROM pg_partition_tree({}::regclass)").format(
            sql.Literal(name.as_string(connection))
        )
        for name in names
    )
    single = sql.SQL("SELECT {}::regclass").format(sql.Literal(names[0].as_string(connection)))
    query = sql.SQL(
        "SELECT coalesce(max(pg_relation_size(relid)), 0) / current_setting('block_size')::bigint"
        " FROM ({} UNION ALL {}) AS t (relid)"
    ).format(trees, single)
    row = await (await connection.execute(query)).fetchone()
    assert row is not None
    return int(row[0])


async def finished_requests(
    connection: StoreConnection,
    *,
    first: int | None = None,
    beyond: int | None = None,
    transactions: int | None = None,
    also_copied: bool = False,
    one_in: int = 1,
) -> list[FinishedRequest]:
    """Finished requests in a range of pages, or written within so many transactions, that are not copied."""
    params = {
        **page_range(first, beyond),
        "transactions": transactions,
        "also_copied": also_copied,
        "one_in": one_in,
    }
    return [FinishedRequest(*row) for row in await run(connection, statement("finished_requests"), params)]


async def add_results(connection: StoreConnection, results: Sequence[AdoptedResult]) -> int:
    if not results:
        return 0
    params = {
        "lanes": Int8Array([one.request.lane_id for one in results]),
        "line_nos": Int4Array([one.request.line_no for one in results]),
        "ordinals": Int4Array([one.request.ordinal for one in results]),
        "outcomes": [one.outcome for one in results],
        "status_codes": Int2Array([one.status_code for one in results]),
        "attempts": Int2Array([one.request.retry_attempt + 1 for one in results]),
        "input_tokens": Int4Array([one.input_tokens for one in results]),
        "output_tokens": Int4Array([one.output_tokens for one in results]),
        "cached_tokens": Int8Array([one.cached_tokens for one in results]),
        "reasoning_tokens": Int8Array([one.reasoning_tokens for one in results]),
        "finished": [one.request.finished_at for one in results],
        "outputs": TextArray([one.output for one in results]),
    }
    ((added,),) = await run(connection, statement("add_adopted_results"), params)
    return int(added)


async def drop_stale(connection: StoreConnection, transactions: int) -> int:
    """Drop results whose request was written within so many transactions and says something else now."""
    ((dropped,),) = await run(connection, statement("drop_stale_results"), {"transactions": transactions})
    return int(dropped)


async def changed_since(connection: StoreConnection) -> int:
    """How many transactions ago the last complete pass over the old requests began."""
    ((transactions,),) = await run(connection, statement("changed_since"), {})
    return int(transactions)


async def begin_pass(connection: StoreConnection) -> None:
    await run(connection, statement("begin_pass"), {})


async def end_pass(connection: StoreConnection) -> None:
    await run(connection, statement("end_pass"), {})


async def stored_outputs(
    connection: StoreConnection, requests: Sequence[FinishedRequest]
) -> dict[tuple[int, int], tuple[str, str]]:
    """The outcome and the output line of each item that has a result, by lane and line number."""
    params = {
        "lanes": Int8Array([one.lane_id for one in requests]),
        "line_nos": Int4Array([one.line_no for one in requests]),
    }
    rows = await run(connection, statement("read_adopted_results"), params)
    return {(lane, line): (outcome, output) for lane, line, outcome, output in rows}


def page_range(first: int | None, beyond: int | None) -> dict[str, Any]:
    return {
        "first": _FIRST if first is None else f"({first},0)",
        "beyond": _BEYOND if beyond is None else f"({beyond},0)",
    }


async def trial_lines(connection: StoreConnection, rows: int) -> tuple[int, float]:
    ((lines, seconds),) = await run(connection, statement("trial_lines"), {"rows": rows})
    return int(lines), float(seconds)


async def trial_requests(connection: StoreConnection, rows: int) -> list[FinishedRequest]:
    found = await run(connection, statement("trial_requests"), {"rows": rows})
    return [FinishedRequest(*row) for row in found]
