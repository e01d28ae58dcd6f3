"""Keys that may be submitted once."""

import asyncio

import psycopg
import pytest

from batchline import Batchline, DuplicateKey
from batchline.operations.operation import PythonOperation
from batchline.store.session import Session
from tests.support.builders import sql, until


def same(app: Batchline) -> PythonOperation[int, int]:
    @app.operation
    async def same(number: int) -> int:
        return number

    return same


async def test_items_with_taken_keys_are_left_out(app: Batchline) -> None:
    operation = same(app)
    first = await app.submit(operation, [1, 2, 2], key=str, unique=True, on_conflict="skip")
    second = await app.submit(operation, [2, 3], key=str, unique=True, on_conflict="skip")
    assert (first.skipped, second.skipped) == (1, 1)
    await asyncio.gather(first.wait(), second.wait())
    assert [result.value async for result in first.results()] == [1, 2]
    assert [(result.index, result.value) async for result in second.results()] == [(0, 3)]


async def test_a_taken_key_refuses_the_submission(app: Batchline) -> None:
    operation = same(app)
    await app.submit(operation, [1, 2], key=str, unique=True)
    with pytest.raises(DuplicateKey, match='item 1: the key "2"') as refused:
        await app.submit(operation, [3, 2], key=str, unique=True)
    assert (refused.value.key, refused.value.index) == ("2", 1)
    assert (await app.submit(operation, [3], key=str, unique=True)).skipped == 0, "nothing was taken"


async def test_a_batch_whose_items_are_all_taken_ends_at_once(app: Batchline) -> None:
    operation = same(app)
    await app.submit(operation, [1], key=str, unique=True)
    batch = await app.submit(operation, [1], key=str, unique=True, on_conflict="skip")
    assert (await batch.wait()).total == 0


async def test_of_two_submissions_at_once_one_gets_the_key(app: Batchline) -> None:
    operation = same(app)
    batches = await asyncio.gather(
        *(app.submit(operation, range(200), key=str, unique=True, on_conflict="skip") for _ in range(4))
    )
    assert sum(batch.skipped for batch in batches) == 600


async def test_submissions_with_keys_in_another_order_do_not_block_each_other(
    app: Batchline, database_url: str, db: Session
) -> None:
    operation = same(app)
    began = asyncio.Event()

    async def submitted(connection: object, number: int) -> int:
        batch = await app.submit(
            operation, [number], key=str, unique=True, on_conflict="skip", connection=connection
        )
        return batch.skipped

    async def backwards(connection: psycopg.AsyncConnection) -> list[int]:
        skipped = [await submitted(connection, 2)]
        began.set()
        skipped.append(await submitted(connection, 1))
        await connection.commit()
        return skipped

    async with (
        await psycopg.AsyncConnection.connect(database_url) as first,
        await psycopg.AsyncConnection.connect(database_url) as second,
    ):
        assert await submitted(first, 1) == 0
        other = asyncio.create_task(backwards(second))
        await until(lambda: _waits(db, second, began))
        assert await submitted(first, 2) == 0
        await first.commit()
        assert await other == [1, 1]


async def _waits(db: Session, connection: psycopg.AsyncConnection, began: asyncio.Event) -> bool:
    query = "SELECT count(*) FROM pg_locks WHERE pid = %(pid)s AND NOT granted"
    ((waiting,),) = await sql(db, query, pid=connection.info.backend_pid)
    return began.is_set() or bool(waiting)


async def test_other_operations_have_keys_of_their_own(app: Batchline) -> None:
    operation = same(app)

    @app.operation
    async def other(number: int) -> int:
        return number

    await app.submit(operation, [1], key=str, unique=True)
    assert (await app.submit(other, [1], key=str, unique=True)).skipped == 0


async def test_batches_that_accept_items_have_no_unique_keys(app: Batchline) -> None:
    operation = same(app)
    with pytest.raises(TypeError, match="cannot be used with hold or keep_open"):
        await app.submit(operation, [1], key=str, unique=True, hold=True)
    with pytest.raises(TypeError, match="cannot be used with hold or keep_open"):
        await app.submit(operation, [1], key=str, unique=True, keep_open=True)


async def test_unique_needs_a_key(app: Batchline) -> None:
    with pytest.raises(TypeError, match="unique=True needs a key"):
        await app.submit(same(app), [1], unique=True)


async def test_keys_are_free_again_when_the_submission_is_rolled_back(
    app: Batchline, database_url: str
) -> None:
    operation = same(app)
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await app.submit(operation, [1], key=str, unique=True, connection=connection)
        await connection.rollback()
    assert (await app.submit(operation, [1], key=str, unique=True)).skipped == 0
