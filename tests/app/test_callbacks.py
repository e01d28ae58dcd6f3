"""`@app.on_batch_end`: functions that run after batches of an app have ended."""

import pytest

from batchline import Batchline, EndedBatch, InvalidApp
from batchline.store import hooks
from batchline.store.session import Session
from tests.support.builders import sql
from tests.support.waiting import eventually
from tests.support.webhooks import an_ended_batch


async def test_a_callback_runs_in_a_worker_after_each_batch_of_the_app(app: Batchline, db: Session) -> None:
    got: list[EndedBatch] = []

    @app.operation
    async def half(number: int) -> float:
        return 1 / number

    @app.on_batch_end
    async def ended(batch: EndedBatch) -> None:
        # After the commit: others see it, too.
        assert (await (await app.batch(batch.id)).status()).status == "completed"
        got.append(batch)

    async with app.worker():
        batch = await app.submit(half, [1, 2, 4], metadata={"day": "monday"})
        await eventually("the callback", lambda: got)
        empty = await app.submit(half, [])
        await eventually("the callback of a batch without items", lambda: len(got) == 2)
    assert [each.id for each in got] == [batch.id, empty.id]
    assert (got[0].operation, got[0].status, got[0].metadata) == ("half", "completed", {"day": "monday"})
    assert (got[0].counts.total, got[0].counts.completed, got[0].counts.failed) == (3, 3, 0)


async def test_a_callback_of_one_operation_gets_no_batch_of_another(app: Batchline) -> None:
    got: list[tuple[str, str]] = []

    @app.operation
    async def first(number: int) -> int:
        return number

    @app.operation
    async def second(number: int) -> int:
        return number

    @app.on_batch_end(second)
    async def of_second(batch: EndedBatch) -> None:
        got.append(("of_second", batch.operation))

    @app.on_batch_end(name="of-all")
    async def of_all(batch: EndedBatch) -> None:
        got.append(("of_all", batch.operation))

    await app.submit(first, [1])
    await app.submit(second, [1])
    await app.worker(drain=True).serve()
    assert sorted(got) == [("of_all", "first"), ("of_all", "second"), ("of_second", "second")]


async def test_batches_of_others_are_no_business_of_a_callback(app: Batchline, db: Session) -> None:
    @app.operation
    async def first(number: int) -> int:
        return number

    @app.on_batch_end
    async def ended(batch: EndedBatch) -> None: ...

    await app.worker(drain=True).serve()
    await an_ended_batch(db)
    await app.worker(drain=True).serve()
    assert await sql(db, "SELECT count(*) FROM batchline.outbox WHERE delivered_at IS NULL") == [(0,)]
    assert await hooks.deliveries(db, limit=10) == []


async def test_a_callback_has_run_when_map_returns_without_a_worker(app: Batchline) -> None:
    got: list[EndedBatch] = []

    @app.operation
    async def half(number: int) -> float:
        return 1 / number

    @app.on_batch_end
    async def ended(batch: EndedBatch) -> None:
        got.append(batch)

    assert await app.amap(half, [1, 2]) == [1, 0.5]
    assert [batch.counts.total for batch in got] == [2]


async def test_a_callback_that_fails_keeps_nobody_from_the_results_and_the_next_worker_tries_again(
    app: Batchline, db: Session
) -> None:
    calls: list[int] = []

    @app.operation
    async def half(number: int) -> float:
        return 1 / number

    @app.on_batch_end
    async def ended(batch: EndedBatch) -> None:
        calls.append(batch.attempt)
        if batch.attempt == 1:
            raise ValueError("not yet")

    assert await app.amap(half, [2]) == [0.5]
    async with app.worker():
        await eventually("the second call", lambda: calls == [1, 2])


def test_what_cannot_be_a_callback_is_refused_when_it_is_defined() -> None:
    app = Batchline()

    def blocking(batch: EndedBatch) -> None: ...

    with pytest.raises(InvalidApp, match="async def"):
        app.on_batch_end(blocking)  # type: ignore[type-var]
    other = Batchline()

    @other.operation
    async def double(number: int) -> int:
        return 2 * number

    with pytest.raises(InvalidApp, match="no operation 'double'"):
        app.on_batch_end(double)
