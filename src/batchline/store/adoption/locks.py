"""Locks and triggers that keep others out: old programs after the cutover, workers during a rollback."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from psycopg import errors, sql

from batchline.store.adoption.records import AdoptionRefused
from batchline.store.adoption.source import BATCHES, FILES, REQUESTS, TEMPLATES, Source
from batchline.store.session import StoreConnection, run
from batchline.store.statements import statement

# Seconds to wait for a lock.
_LOCK_TIMEOUT = 5
_FENCE = "batchline_adopted"


async def lock_old_tables(connection: StoreConnection, source: Source) -> None:
    """Keep everybody from writing to the old tables until the transaction ends. Readers go on."""
    tables = sql.SQL(", ").join(source.table(name) for name in reversed(source.old_tables))
    async with _short_wait(connection, "a transaction writes to the old tables", "stop what writes to them"):
        await connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(tables))


async def lock_our_tables(connection: StoreConnection) -> None:
    """Keep workers from claiming and settling until the transaction ends, in the order in which they lock."""
    tables = sql.SQL(", ").join(
        sql.Identifier(connection.schema, name) for name in ("spans", "batches", "lanes")
    )
    async with _short_wait(connection, "a transaction of a worker was open", "stop the workers"):
        await connection.execute(sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(tables))


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


async def _fenced(connection: StoreConnection) -> list[sql.Identifier]:
    return [sql.Identifier(*names) for names in await run(connection, statement("fenced_tables"), {})]


def _without_readers(connection: StoreConnection) -> AbstractAsyncContextManager[None]:
    return _short_wait(connection, "a transaction reads the old tables", "wait until it has ended, or end it")


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
