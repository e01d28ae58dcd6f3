"""Few items are inserted with their batch in one round trip. What is stored is the same as for many."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from batchline import Batchline, BatchlineError, Context
from batchline.governance import tenants as governed
from batchline.governance.access import Actor
from batchline.model import Role
from batchline.store import batches, small_batches, tenants
from batchline.store.batches import NewBatch
from batchline.store.session import Session
from tests.support.builders import sql
from tests.support.rows import counted_rows

NOTHING = {"batches": 0, "files": 0, "lanes": 0, "lines": 0}
# Ids, numbers from sequences and times differ between any two batches.
DIFFERENT = ("id", "no", "file_id", "file_no", "batch_id", "deadline")
KEYWORDS: list[dict[str, Any]] = [
    {},
    {"name": "mine", "priority": 3, "concurrency": 2, "metadata": {"a": "b"}},
    {"deadline": 3600, "max_failed": 1, "key": lambda number: f"n{number}"},
]


@asynccontextmanager
async def transaction(url: str, wanted: bool) -> AsyncIterator[dict[str, Any]]:
    """The keyword `connection`, if it is wanted. Commits at the end."""
    if not wanted:
        yield {}
        return
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield {"connection": connection}


async def stored(db: Session) -> dict[str, list[Any]]:
    """All rows of the newest batch, without what always differs."""
    files = "SELECT id, no FROM batchline.files ORDER BY no DESC LIMIT 1"
    ((file_id, no),) = await sql(db, files)
    queries = {
        table: f"SELECT to_jsonb(t) FROM batchline.{table} AS t WHERE {key} = %(key)s ORDER BY {order}"
        for table, key, order in (
            ("files", "no", "no"),
            ("file_lanes", "file_no", "lane_no"),
            ("lines", "file_no", "ordinal"),
            ("lanes", "file_no", "lane_no"),
            ("batches", "file_id", "id"),
        )
    }
    keys = {"batches": file_id}
    rows = {table: await sql(db, query, key=keys.get(table, no)) for table, query in queries.items()}
    return {name: [_same(row) for (row,) in found] for name, found in rows.items()}


def _same(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in row.items()
        if name not in DIFFERENT and (value is None or not name.endswith("_at"))
    }


@pytest.fixture
def first(app: Batchline) -> Any:
    @app.operation
    async def second(number: int) -> int:
        return number

    @app.operation(emits=[second])
    async def first(number: int, ctx: Context) -> int:
        await ctx.emit(second, number)
        return number

    return first


@pytest.fixture
def inserted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of items of batches that were created in one round trip."""
    true_create, numbers = small_batches.create, list[int]()

    async def create(session: Session, file: Any, new: Any, custom_ids: Any, bodies: Any) -> None:
        numbers.append(len(bodies))
        await true_create(session, file, new, custom_ids, bodies)

    monkeypatch.setattr(small_batches, "create", create)
    return numbers


@pytest.mark.parametrize("guest", [False, True], ids=["alone", "in a transaction of the caller"])
@pytest.mark.parametrize("keywords", KEYWORDS, ids=["plain", "named", "with keys"])
async def test_the_rows_are_those_of_the_ordinary_path(
    app: Batchline,
    first: Any,
    db: Session,
    database_url: str,
    inserted: list[int],
    keywords: dict[str, Any],
    guest: bool,
) -> None:
    def source() -> Iterator[int]:
        yield from (5, 6, 7)

    async with transaction(database_url, guest) as more:
        await app.submit(first, source(), **keywords, **more)
    ordinary, used = await stored(db), await tenants.get(db, "default")
    assert not inserted
    async with transaction(database_url, guest) as more:
        await app.submit(first, [5, 6, 7], **keywords, **more)
    assert inserted == [3]
    assert await stored(db) == ordinary
    now = await tenants.get(db, "default")
    assert used is not None
    assert now is not None
    assert now.stored == 2 * used.stored
    await app.worker(drain=True).serve()
    assert await sql(db, "SELECT DISTINCT total, completed FROM batchline.current_batches") == [(6, 6)]


async def test_many_or_large_items_are_copied(app: Batchline, first: Any, inserted: list[int]) -> None:
    @app.operation
    async def length(text: str) -> int:
        return len(text)

    assert await app.amap(first, range(17)) == list(range(17))
    assert await app.amap(length, ["x" * 100_000]) == [100_000]
    assert not inserted
    assert await app.amap(first, range(16)) == list(range(16))
    assert inserted == [16]


async def test_a_rollback_leaves_nothing(
    app: Batchline, first: Any, db: Session, database_url: str, inserted: list[int]
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await app.submit(first, [1], connection=connection)
        assert await counted_rows(db) == NOTHING
        await connection.rollback()
    assert inserted == [1]
    assert await counted_rows(db) == NOTHING


async def test_a_quota_refuses_and_the_transaction_of_the_caller_goes_on(
    app: Batchline, first: Any, db: Session, database_url: str
) -> None:
    await sql(db, "INSERT INTO batchline.tenants (name) VALUES ('default') ON CONFLICT DO NOTHING")
    await governed.set_quota(db, Actor("ops", "olga", Role.OPERATOR), "default", 2)
    with pytest.raises(BatchlineError, match="quota"):
        await app.submit(first, [100])
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        with pytest.raises(BatchlineError, match="quota"):
            await app.submit(first, [100], connection=connection)
        await app.submit(first, [10], connection=connection)
    assert await counted_rows(db) == {"batches": 1, "files": 1, "lanes": 2, "lines": 1}


class Grown(list[int]):
    """Has more items than it says, as a list that another thread appends to."""

    def __len__(self) -> int:
        return 3


async def test_a_collection_that_grows_while_it_is_submitted_loses_nothing(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, Grown(range(100)))
    assert (await batch.status()).total == 100


async def test_a_submission_that_is_cancelled_leaves_all_or_nothing(app: Batchline, db: Session) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    await app.submit(same, [0])
    for steps in range(60):
        submitting = asyncio.create_task(app.submit(same, [1]))
        for _ in range(steps):
            await asyncio.sleep(0)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
    orphans = "SELECT count(*) FROM batchline.files WHERE id NOT IN (SELECT file_id FROM batchline.batches)"
    assert await sql(db, orphans) == [(0,)]


async def test_a_client_error_in_the_middle_commits_nothing(
    app: Batchline, db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    def broken(new: NewBatch) -> dict[str, object]:
        return dict.fromkeys(created(new), object())

    created = batches.created
    monkeypatch.setattr(batches, "created", broken)
    with pytest.raises(psycopg.ProgrammingError):
        await app.submit(same, [1])
    monkeypatch.undo()
    assert await sql(db, "SELECT count(*) FROM batchline.files") == [(0,)]
    await app.submit(same, [1])
