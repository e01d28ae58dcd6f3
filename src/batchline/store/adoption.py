"""Adoption of a database with one row per request: the statements, and the transactions that they run in.

Every step is one transaction that begins by locking the row of the adoption. So of two commands only one
works at a time, and a command that is killed leaves either all of a step or nothing of it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from psycopg import errors, sql

from batchline.store.adoption_source import (
    ARCHIVE,
    BATCHES,
    FILES,
    REQUESTS,
    TEMPLATES,
    Source,
    detect,
)
from batchline.store.arrays import Int2Array, Int4Array, Int8Array, TextArray
from batchline.store.session import Session, StoreConnection, run
from batchline.store.statements import statement

Phase = Literal["prepare", "prepared", "adopted", "finished"]
Event = Literal["prepared", "cutover", "rollback", "finish"]

# Phases in which a step may run. COPYING: what was copied belongs to no batch yet.
COPYING: tuple[Phase, ...] = ("prepare", "prepared")
PREPARED: tuple[Phase, ...] = ("prepared",)
ADOPTED: tuple[Phase, ...] = ("adopted",)

# Seconds to wait for a lock.
_LOCK_TIMEOUT = 5
_FENCE = "batchline_adopted"
# Ordinals that one span covers at most.
_SPAN_ITEMS = 10_000
_FIRST, _BEYOND = "(0,0)", "(4294967295,0)"


class AdoptionRefused(Exception):
    """A phase cannot run now. The message says why, and what to do; the details list what is in the way."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = list(details)


class Adoption(msgspec.Struct, frozen=True):
    """The state of the adoption, and what its steps took so far."""

    source: str
    shape: str
    phase: Phase
    next_page: int
    lines: int
    lines_seconds: float
    results: int
    results_seconds: float
    cutover_seconds: float | None
    prepared_at: datetime | None
    cutover_at: datetime | None
    rolled_back_at: datetime | None
    finished_at: datetime | None


class Size(msgspec.Struct, frozen=True):
    """How much the old tables hold, and how much of it is copied."""

    files: int
    templates: int
    batches: int
    copied_lines: int
    copied_results: int
    pending: int
    in_flight: int
    completed: int
    failed: int
    canceled: int

    @property
    def requests(self) -> int:
        return self.pending + self.in_flight + self.completed + self.failed + self.canceled


class FinishedRequest(msgspec.Struct, frozen=True):
    """An old request with an end, and the item that it is here."""

    batch_id: UUID
    lane_id: int
    line_no: int
    ordinal: int
    custom_id: str
    request_id: str
    state: str
    retry_attempt: int
    response_status: int | None
    response_body: str | None
    error: str | None
    finished_at: datetime


class AdoptedResult(msgspec.Struct, frozen=True):
    """A result that was composed from an old request."""

    request: FinishedRequest
    outcome: Literal["completed", "failed"]
    status_code: int | None
    output: bytes
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class StoredResult(msgspec.Struct, frozen=True):
    """A result here whose old request is unfinished."""

    request_id: UUID
    outcome: str
    status_code: int | None
    attempt: int
    finished_at: datetime
    output: str


class WrittenBack(msgspec.Struct, frozen=True):
    """What an old request says when its result is written back."""

    request_id: UUID
    state: str
    retry_attempt: int
    response_status: int | None
    response_body: bytes | None
    error: bytes | None
    finished_at: datetime


class LeftOut(msgspec.Struct, frozen=True):
    """A batch that stays in the old tables; without an id: requests without a batch."""

    batch_id: UUID | None
    reason: str
    unfinished: int


class PossiblySent(msgspec.Struct, frozen=True):
    """An item that a dead program had claimed: it may have been sent, and may be sent again."""

    batch_id: UUID
    line_no: int
    found_by: Literal["cutover", "rollback"]
    custom_id: str
    state: str
    claimed_at: datetime | None


class BatchCounts(msgspec.Struct, frozen=True):
    """A batch in the old tables and here. Without a total it does not exist here."""

    batch_id: UUID
    completed: int
    failed: int
    canceled: int
    unfinished: int
    total: int | None
    completed_here: int | None
    failed_here: int | None
    missing: int
    adopted: int
    since: int


class Copied(msgspec.Struct, frozen=True):
    """A range of lines of one file to copy next."""

    file_no: int
    copied: int
    line_count: int


class CutoverSettings(msgspec.Struct, frozen=True):
    """What the old tables do not say about the adopted batches."""

    tenant: str
    by_owner: bool
    upstream: str | None
    # Seconds that unfinished batches have from the cutover on, at least.
    grace: float


async def find(session: Session) -> Adoption | None:
    rows = await session.rows(statement("adoption"), {})
    return Adoption(*rows[0]) if rows else None


async def find_in(connection: StoreConnection) -> Adoption | None:
    rows = await run(connection, statement("adoption"), {})
    return Adoption(*rows[0]) if rows else None


@asynccontextmanager
async def step(
    session: Session, *, phases: Sequence[Phase] | None = None, rolled_back: bool = False
) -> AsyncIterator[StoreConnection]:
    """A transaction of a phase. With `rolled_back`, for a trial, nothing of it stays.

    Refuses if the adoption is in none of `phases`: another command may have been faster.
    """
    async with (
        session.open_ended() as connection,
        connection.transaction(force_rollback=rolled_back),
    ):
        # Large tables are read whole or by key; the planner knows which.
        await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
        await connection.execute("SET LOCAL enable_seqscan = on")
        await connection.execute("SET LOCAL work_mem = '64MB'")
        await connection.execute("SET LOCAL batchline.adopting = 'on'")
        rows = await run(connection, statement("lock_adoption"), {})
        if phases is not None and (not rows or rows[0][0] not in phases):
            raise _overtaken()
        yield connection


def _overtaken() -> AdoptionRefused:
    return AdoptionRefused("another command has changed the phase meanwhile; see `batchline adopt status`")


async def read_whole(connection: StoreConnection) -> None:
    """From here on, statements of this transaction read each table once.

    On tables that were never analyzed the planner would underestimate nested loops.
    """
    await connection.execute("SET LOCAL enable_nestloop = off")


@asynccontextmanager
async def by_key(connection: StoreConnection) -> AsyncIterator[None]:
    """Look up what belongs to a few pages by index, row by row.

    The planner may believe that a table that just grew is empty, and scan it for each row.
    """
    await _allow_scans(connection, "off")
    yield
    await _allow_scans(connection, "on")


async def _allow_scans(connection: StoreConnection, allowed: Literal["on", "off"]) -> None:
    for way in ("seqscan", "hashjoin", "mergejoin"):
        await connection.execute(f"SET LOCAL enable_{way} = {allowed}".encode())


async def source_of(connection: StoreConnection, schema: str) -> Source:
    return await detect(connection, schema)


async def begin(connection: StoreConnection, source: Source) -> None:
    params = {"source": source.schema, "shape": source.shape}
    if not await run(connection, statement("begin_adoption"), params):
        raise _overtaken()


async def create_views(connection: StoreConnection, source: Source) -> None:
    await drop_views(connection)
    for view in source.views(connection.schema):
        await connection.execute(view)


async def drop_views(connection: StoreConnection) -> None:
    names = ("source_files", "source_templates", "source_batches", "source_requests", "source_daemons")
    views = sql.SQL(", ").join(sql.Identifier(connection.schema, name) for name in names)
    await connection.execute(sql.SQL("DROP VIEW IF EXISTS {}").format(views))


async def set_phase(connection: StoreConnection, phase: Phase, event: Event) -> None:
    await run(connection, statement("set_adoption_phase"), {"phase": phase, "event": event})


async def note(
    connection: StoreConnection, *, lines: int = 0, results: int = 0, next_page: int | None = None
) -> None:
    params = {"lines": lines, "results": results, "next_page": next_page}
    await run(connection, statement("note_adopted"), params)


async def size(connection: StoreConnection) -> Size:
    (row,) = await run(connection, statement("source_size"), {})
    return Size(*row)


# Files and lines


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


# Batches and results


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
        **_range(first, beyond),
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


async def analyze(session: Session) -> None:
    """Let the planner know what was copied, so that the cutover is planned well."""
    async with session.open_ended() as connection:
        for name in ("adopted_lines", "adopted_lanes", "adopted_batches", "lines", "results"):
            table = sql.Identifier(connection.schema, name)
            await connection.execute(sql.SQL("ANALYZE {}").format(table))


# The cutover


async def living_daemons(
    connection: StoreConnection, seconds: float, *, by_claims: bool
) -> list[tuple[str, datetime]]:
    """Old daemons that were seen within so many seconds. `by_claims`: also those that have no heartbeat."""
    params = {"seconds": seconds, "by_claims": by_claims}
    rows = await run(connection, statement("living_daemons"), params)
    return [(name, seen_at) for name, seen_at in rows]


async def lock_old_tables(connection: StoreConnection, source: Source) -> None:
    """Keep everybody from writing to the old tables until the transaction ends. Readers go on."""
    tables = sql.SQL(", ").join(source.table(name) for name in reversed(source.old_tables))
    async with _short_wait(connection, "a transaction writes to the old tables", "stop what writes to them"):
        await connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(tables))


@asynccontextmanager
async def _short_wait(connection: StoreConnection, cause: str, remedy: str) -> AsyncIterator[None]:
    """Wait for locks for a short time only: meanwhile others wait behind us."""
    try:
        await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}s'".encode())
        yield
        await connection.execute("SET LOCAL lock_timeout = 0")
    except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
        raise AdoptionRefused(
            f"{cause} and did not end within {_LOCK_TIMEOUT} s; nothing was changed:"
            f" {remedy}, and run the same command again"
        ) from error


async def judge(connection: StoreConnection) -> None:
    await run(connection, statement("judge_batches"), {})


async def left_out(connection: StoreConnection) -> list[LeftOut]:
    return [LeftOut(*row) for row in await run(connection, statement("left_out"), {})]


async def create_adopted(connection: StoreConnection, settings: CutoverSettings) -> tuple[int, int]:
    """Create files, batches, lanes, spans and history. Returns how many batches, and how many unfinished."""
    owner = {"tenant": settings.tenant, "by_owner": settings.by_owner}
    await run(connection, statement("create_adopted_files"), owner)
    params = {
        **owner,
        "upstream": settings.upstream,
        "grace": settings.grace,
        "span_items": _SPAN_ITEMS,
    }
    ((batches, unfinished, _),) = await run(connection, statement("create_adopted_batches"), params)
    await run(connection, statement("add_adopted_history"), {})
    await run(connection, statement("add_in_flight"), {})
    return int(batches), int(unfinished)


async def missing_results(connection: StoreConnection) -> list[tuple[UUID, int]]:
    """Batches that were just created with fewer results than finished requests, and how many are missing."""
    rows = await run(connection, statement("missing_results"), {})
    return [(batch_id, missing) for batch_id, missing in rows]


async def fence(connection: StoreConnection, source: Source) -> None:
    """Make the old tables read-only for everybody else."""
    trigger, function = sql.Identifier(_FENCE), sql.Identifier(connection.schema, "adopted_fence_v1")
    for table in map(source.table, (FILES, TEMPLATES, BATCHES, REQUESTS)):
        query = sql.SQL(
            "CREATE OR REPLACE TRIGGER {} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {}"
            " FOR EACH STATEMENT EXECUTE FUNCTION {}()"
        )
        await connection.execute(query.format(trigger, table, function))
        await connection.execute(sql.SQL("ALTER TABLE {} ENABLE TRIGGER {}").format(table, trigger))


async def lift_fence(connection: StoreConnection) -> None:
    """Let others write to the old tables again. The caller has locked them.

    The triggers stay, disabled: to drop them would wait for readers, with all workers locked out.
    """
    for table in await _fenced(connection):
        query = sql.SQL("ALTER TABLE {} DISABLE TRIGGER {}")
        await connection.execute(query.format(table, sql.Identifier(_FENCE)))


async def drop_fence(connection: StoreConnection) -> None:
    """Drop the triggers, which needs a moment without readers."""
    async with _without_readers(connection):
        for table in await _fenced(connection):
            await connection.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(_FENCE), table))


async def _fenced(connection: StoreConnection) -> list[sql.Identifier]:
    return [sql.Identifier(*names) for names in await run(connection, statement("fenced_tables"), {})]


def _without_readers(connection: StoreConnection) -> AbstractAsyncContextManager[None]:
    return _short_wait(connection, "a transaction reads the old tables", "wait until it has ended, or end it")


async def possibly_sent(
    connection: StoreConnection, found_by: Literal["cutover", "rollback"] | None = None
) -> list[PossiblySent]:
    rows = await run(connection, statement("list_in_flight"), {"found_by": found_by})
    return [PossiblySent(*row) for row in rows]


# The way back


async def busy_workers(connection: StoreConnection) -> list[tuple[str, int]]:
    return [(name, items) for name, items in await run(connection, statement("busy_workers"), {})]


async def own_batches(connection: StoreConnection) -> list[tuple[UUID, int, bool]]:
    """Batches created since the cutover: id, lines, and whether it has not ended."""
    rows = await run(connection, statement("own_batches"), {})
    return [(batch_id, total, running) for batch_id, total, running in rows]


async def lock_our_tables(connection: StoreConnection) -> None:
    """Keep workers from claiming and settling until the transaction ends, in the order in which they lock."""
    tables = sql.SQL(", ").join(
        sql.Identifier(connection.schema, name) for name in ("spans", "batches", "lanes")
    )
    async with _short_wait(connection, "a transaction of a worker was open", "stop the workers"):
        await connection.execute(sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(tables))


async def unwritten_results(
    connection: StoreConnection, *, first: int | None = None, beyond: int | None = None
) -> list[StoredResult]:
    rows = await run(connection, statement("results_to_write_back"), _range(first, beyond))
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


# Verification and the end


async def verify_counts(connection: StoreConnection) -> list[BatchCounts]:
    return [BatchCounts(*row) for row in await run(connection, statement("verify_counts"), {})]


async def verify_lines(connection: StoreConnection, one_in: int) -> tuple[int, int, str | None]:
    """How many lines were compared, how many differ, and the custom_id of one that does."""
    ((compared, different, example),) = await run(connection, statement("verify_lines"), {"one_in": one_in})
    return int(compared), int(different), example


async def forget(connection: StoreConnection) -> None:
    await drop_views(connection)
    await run(connection, statement("forget_adoption"), {})


async def drop_old_tables(connection: StoreConnection, source: Source) -> None:
    """Drop the old tables together. Views or tables of others that depend on them keep them from that."""
    tables = sql.SQL(", ").join(source.table(name) for name in source.old_tables)
    try:
        async with _without_readers(connection):
            await connection.execute(sql.SQL("DROP TABLE {}").format(tables))
    except errors.DependentObjectsStillExist as error:
        raise AdoptionRefused(
            "other objects depend on the old tables; nothing was dropped: drop these first",
            [line for line in (error.diag.message_detail or "").splitlines() if line],
        ) from error


def _range(first: int | None, beyond: int | None) -> dict[str, Any]:
    return {
        "first": _FIRST if first is None else f"({first},0)",
        "beyond": _BEYOND if beyond is None else f"({beyond},0)",
    }


def _template(connection: StoreConnection, name: str) -> sql.SQL:
    return sql.SQL(statement(name).text_in(connection.schema))


# Trials, for estimates: the caller rolls them back


async def trial_lines(connection: StoreConnection, rows: int) -> tuple[int, float]:
    ((lines, seconds),) = await run(connection, statement("trial_lines"), {"rows": rows})
    return int(lines), float(seconds)


async def trial_requests(connection: StoreConnection, rows: int) -> list[FinishedRequest]:
    found = await run(connection, statement("trial_requests"), {"rows": rows})
    return [FinishedRequest(*row) for row in found]
