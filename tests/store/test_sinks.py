"""Rows in tables of the user's are stored with the results they are of, or not at all."""

import pytest

from batchline.model import Completed, Item
from batchline.model.sink import SinkRow, SinkTable
from batchline.store import spans
from batchline.store.session import Session, StatementRefused, StoreUnavailable
from tests.support.builders import a_batch, a_worker, kill, read, sql, take

THUMBS = SinkTable("Thumb Nails")
TABLE = """
CREATE TABLE "Thumb Nails" (no integer PRIMARY KEY, "Path" text NOT NULL, made timestamptz DEFAULT now())
"""


def sunk(item: Item, no: int | None = None, path: bytes = b'"a"') -> Completed:
    row = b'{"no":%d,"Path":%b}' % (item.line_no if no is None else no, path)
    return Completed(item, 200, b"{}", sink=SinkRow(THUMBS, ("no", "Path"), row))


async def stored(db: Session) -> list[int]:
    return [no for (no,) in await sql(db, 'SELECT no FROM "Thumb Nails" ORDER BY no')]


async def test_a_row_comes_with_its_result_and_columns_that_it_lacks_get_their_default(db: Session) -> None:
    await sql(db, TABLE)
    batch, worker = await a_batch(db, 3), a_worker()
    first, second, third = await take(db, worker)
    await spans.settle(db, worker.id, [sunk(first), sunk(second), Completed(third, 200, b"{}")])
    assert await stored(db) == [1, 2]
    assert await sql(db, 'SELECT count(*) FROM "Thumb Nails" WHERE made IS NULL') == [(0,)]
    assert (await read(db, batch)).completed == 3


async def test_a_result_that_does_not_count_stores_no_row(db: Session) -> None:
    await sql(db, TABLE)
    await a_batch(db, 2)
    dead, alive = a_worker(), a_worker()
    lost = await take(db, dead)
    await kill(db, dead)
    taken = await take(db, alive)
    await spans.settle(db, alive.id, [sunk(taken[0])])
    # One of its two verdicts is late, the other counts.
    await spans.settle(db, dead.id, [sunk(item) for item in lost])
    assert await stored(db) == [1, 2]
    await spans.settle(db, alive.id, [sunk(taken[1])])
    assert await stored(db) == [1, 2]


@pytest.mark.parametrize(
    ("path", "no"), [(b"null", 7), (b'"a"', 1)], ids=["a constraint is violated", "the key is taken"]
)
async def test_a_row_that_the_table_does_not_take_leaves_nothing(db: Session, path: bytes, no: int) -> None:
    await sql(db, TABLE)
    batch, worker = await a_batch(db, 3), a_worker()
    first, second, third = await take(db, worker)
    await spans.settle(db, worker.id, [sunk(first)])
    with pytest.raises(StatementRefused, match="the sink does not take it"):
        await spans.settle(db, worker.id, [sunk(second), sunk(third, no, path)])
    assert await stored(db) == [1]
    assert (await read(db, batch)).completed == 1
    await spans.settle(db, worker.id, [sunk(second)])
    assert await stored(db) == [1, 2]


async def test_a_missing_table_refuses_the_result(db: Session) -> None:
    await a_batch(db, 1)
    worker = a_worker()
    (item,) = await take(db, worker)
    with pytest.raises(StatementRefused, match="does not exist"):
        await spans.settle(db, worker.id, [sunk(item)])


DEFERRED = """
CREATE TABLE "Thumb Nails" (
    no integer PRIMARY KEY,
    "Path" text NOT NULL,
    parent integer DEFAULT 99 REFERENCES "Thumb Nails" DEFERRABLE INITIALLY DEFERRED
)
"""
VIEW = """CREATE VIEW "Thumb Nails" AS SELECT 1 AS no, 'a' AS "Path" UNION SELECT 2, 'b'"""


@pytest.mark.parametrize(
    ("table", "reason"),
    [(DEFERRED, "violates foreign key"), (VIEW, "cannot insert into view")],
    ids=["a deferred constraint", "a view"],
)
async def test_what_cannot_be_inserted_refuses_the_result(db: Session, table: str, reason: str) -> None:
    await sql(db, table)
    batch, worker = await a_batch(db, 1), a_worker()
    (item,) = await take(db, worker)
    with pytest.raises(StatementRefused, match=f"the sink does not take it: .*{reason}"):
        await spans.settle(db, worker.id, [sunk(item)])
    await spans.settle(db, worker.id, [Completed(item, 200, b"{}")])
    assert (await read(db, batch)).completed == 1


async def test_a_lock_timeout_of_a_sink_is_temporary(db: Session) -> None:
    await sql(db, TABLE)
    await sql(
        db,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'lock_not_available'; END $$",
    )
    await sql(db, 'CREATE TRIGGER wait BEFORE INSERT ON "Thumb Nails" FOR EACH ROW EXECUTE FUNCTION wait()')
    await a_batch(db, 1)
    worker = a_worker()
    (item,) = await take(db, worker)
    with pytest.raises(StoreUnavailable):
        await spans.settle(db, worker.id, [sunk(item)])


async def test_rows_without_fields_get_defaults(db: Session) -> None:
    await sql(db, "CREATE TABLE visits (no serial PRIMARY KEY)")
    await a_batch(db, 2)
    worker = a_worker()
    row = SinkRow(SinkTable("visits"), (), b"{}")
    items = await take(db, worker)
    await spans.settle(db, worker.id, [Completed(item, 200, b"{}", sink=row) for item in items])
    assert await sql(db, "SELECT count(*) FROM visits") == [(2,)]


async def test_names_may_have_percent_signs(db: Session) -> None:
    # Doubled, because the helper reads parameters.
    await sql(db, 'CREATE TABLE "100%%s" ("share in %%" integer)')
    await a_batch(db, 1)
    worker = a_worker()
    (item,) = await take(db, worker)
    row = SinkRow(SinkTable("100%s"), ("share in %",), b'{"share in %":7}')
    await spans.settle(db, worker.id, [Completed(item, 200, b"{}", sink=row)])
    assert await sql(db, 'SELECT "share in %%" FROM "100%%s"') == [(7,)]


def test_a_table_is_named_with_or_without_its_schema() -> None:
    assert SinkTable.named("thumbs") == SinkTable("thumbs")
    assert SinkTable.named("app.thumbs") == SinkTable("thumbs", "app")
