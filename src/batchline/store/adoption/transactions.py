"""The transactions of an adoption, and its state.

Every step is one transaction that begins by locking the row of the adoption. So of two commands only one
works at a time, and a command that is killed leaves either all of a step or nothing of it.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from psycopg import sql

from batchline.store.adoption.records import Adoption, AdoptionRefused, Event, Phase, Size
from batchline.store.adoption.source import Source, detect
from batchline.store.session import Session, StoreConnection, run
from batchline.store.statements import statement

# Phases in which a step may run. COPYING: what was copied belongs to no batch yet.
COPYING: tuple[Phase, ...] = ("prepare", "prepared")
PREPARED: tuple[Phase, ...] = ("prepared",)
ADOPTED: tuple[Phase, ...] = ("adopted",)


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
            raise overtaken()
        yield connection


def overtaken() -> AdoptionRefused:
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
        raise overtaken()


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


async def analyze(session: Session) -> None:
    """Let the planner know what was copied, so that the cutover is planned well."""
    async with session.open_ended() as connection:
        for name in ("adopted_lines", "adopted_lanes", "adopted_batches", "lines", "results"):
            table = sql.Identifier(connection.schema, name)
            await connection.execute(sql.SQL("ANALYZE {}").format(table))


async def forget(connection: StoreConnection) -> None:
    await drop_views(connection)
    await run(connection, statement("forget_adoption"), {})
