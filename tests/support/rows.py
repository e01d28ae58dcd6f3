"""How many rows a database has."""

from batchline.store.session import Session

_TABLES = ("batches", "files", "lanes", "lines")


async def counted_rows(db: Session) -> dict[str, int]:
    """By table."""
    async with db.transaction() as connection:
        counts = {}
        for table in _TABLES:
            cursor = await connection.execute(f"SELECT count(*) FROM batchline.{table}".encode())
            row = await cursor.fetchone()
            assert row is not None
            counts[table] = row[0]
        return counts
