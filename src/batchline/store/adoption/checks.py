"""Compares the old tables with what was adopted."""

from batchline.store.adoption.records import BatchCounts
from batchline.store.session import StoreConnection, run
from batchline.store.statements import statement


async def verify_counts(connection: StoreConnection) -> list[BatchCounts]:
    return [BatchCounts(*row) for row in await run(connection, statement("verify_counts"), {})]


async def verify_lines(connection: StoreConnection, one_in: int) -> tuple[int, int, str | None]:
    """How many lines were compared, how many differ, and the custom_id of one that does."""
    ((compared, different, example),) = await run(connection, statement("verify_lines"), {"one_in": one_in})
    return int(compared), int(different), example
