"""Creating a batch costs the same, whatever the size of its file: nothing is written per line."""

from batchline.store.session import Session
from tests.support.builders import a_batch, a_file, read, sql

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'batchline'"


async def rows(db: Session) -> dict[str, int]:
    """The number of rows of every table."""
    tables = [name for (name,) in await sql(db, TABLES)]
    counts = ", ".join(f"(SELECT count(*) FROM batchline.{name})" for name in tables)
    ((*numbers,),) = await sql(db, f"SELECT {counts}")
    return dict(zip(tables, numbers, strict=True))


async def added_by_a_batch(db: Session, lines: int) -> dict[str, int]:
    file_id = await a_file(db, {"small": lines // 2, "large": lines // 2})
    before = await rows(db)
    batch = await a_batch(db, file_id=file_id)
    assert (await read(db, batch)).total == lines
    after = await rows(db)
    return {table: number - before[table] for table, number in after.items() if number != before[table]}


async def test_a_batch_of_ten_thousand_lines_is_as_many_rows_as_one_of_ten(db: Session) -> None:
    few, many = await added_by_a_batch(db, 10), await added_by_a_batch(db, 10_000)
    assert few == many
    assert few["batches"] == 1
    assert few["lanes"] == 2
