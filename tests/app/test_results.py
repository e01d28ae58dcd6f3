"""Results in the order of submission, while the batch runs and afterwards."""

import asyncio
from typing import Any

import pytest

from batchline import Batchline, Fail, ItemFailed
from batchline.store.session import Session
from batchline.store.statements import Statement


async def test_results_come_in_order_while_the_batch_runs(app: Batchline) -> None:
    first, second = asyncio.Event(), asyncio.Event()

    @app.operation
    async def gated(number: int) -> int:
        await {0: first, 1: second}.get(number, second).wait()
        return number

    batch = await app.submit(gated, range(3))
    async with app.worker():
        results = batch.results()
        waiting = asyncio.ensure_future(anext(results))
        second.set()
        # The others are completed, and wait for the first one.
        while (await batch.status()).completed < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not waiting.done()
        first.set()
        assert (await waiting).value == 0
        assert [result.value async for result in results] == [1, 2]
        await batch.wait()


async def test_a_failed_item_has_its_error_and_attempts(app: Batchline) -> None:
    @app.operation(max_attempts=2, backoff=(0, 0))
    async def picky(number: int) -> int:
        if number == 1:
            raise Fail("not this one", code="unwanted")
        if number == 2:
            raise ValueError("never")
        return number

    batch = await app.submit(picky, range(3))
    await batch.wait()
    good, failed, raised = [result async for result in batch.results()]
    assert (good.ok, good.get(), good.attempts) == (True, 0, 1)
    assert failed.error is not None
    assert raised.error is not None
    assert (failed.ok, failed.error.code, failed.attempts) == (False, "unwanted", 1)
    assert failed.error.message == "not this one"
    assert (raised.error.code, raised.attempts) == ("ValueError", 2)
    with pytest.raises(ItemFailed, match="item 1 failed with unwanted: not this one") as error:
        failed.get()
    assert (error.value.index, error.value.key) == (1, "1")


async def test_map_raises_for_the_first_failed_item_or_returns_it(app: Batchline) -> None:
    @app.operation(max_attempts=1)
    async def odd(number: int) -> int:
        if number % 2 == 0:
            raise Fail("even")
        return number

    with pytest.raises(ItemFailed, match="item 1 failed"):
        await app.amap(odd, [1, 2, 3, 4])
    one, two, three = await app.amap(odd, [1, 2, 3], return_exceptions=True)
    assert (one, three) == (1, 3)
    assert isinstance(two, ItemFailed)


async def test_items_that_never_ran_are_results_too(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, range(3), key=lambda number: f"k{number}")
    await batch.cancel()
    progress = await batch.wait(here=True)
    assert (progress.status, progress.cancelled) == ("cancelled", 3)
    results = [result async for result in batch.results()]
    assert [result.key for result in results] == ["k0", "k1", "k2"]
    assert {result.error.code for result in results if result.error} == {"batch_cancelled"}
    assert {result.attempts for result in results} == {0}


async def test_a_result_of_an_older_type_is_an_error_of_its_item(app: Batchline) -> None:
    @app.operation(name="length")
    async def length(word: str) -> str:
        return f"{len(word)} letters"

    batch = await app.submit(length, ["abc"])
    await batch.wait()

    newer = Batchline(app._core.location.database, data_dir=app._core.location.data_dir)

    @newer.operation(name="length")
    async def changed(word: str) -> int:
        return len(word)

    async with newer:
        (result,) = [result async for result in (await newer.batch(batch.id)).results()]
    assert result.error is not None
    assert result.error.code == "invalid_result"


async def test_results_of_an_operation_that_the_app_does_not_have_are_plain_json(app: Batchline) -> None:
    @app.operation
    async def pair(number: int) -> dict[str, int]:
        return {"number": number}

    batch = await app.submit(pair, [3])
    await batch.wait()
    async with Batchline(app._core.location.database, data_dir=app._core.location.data_dir) as other:
        found = await other.batch(batch.id)
        assert [result.value async for result in found.results()] == [{"number": 3}]
        with pytest.raises(LookupError, match="this app has no operation 'pair'"):
            await (await other.batch(await _running(app, pair))).wait(here=True)


async def _running(app: Batchline, operation: Any) -> str:
    return (await app.submit(operation, [1])).id


async def test_reading_results_takes_pages_and_not_a_query_per_item(
    app: Batchline, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, range(20_000))
    await batch.wait()
    queries: list[str] = []
    original = Session.raw_rows

    async def counting(self: Session, statement: Statement, params: Any) -> Any:
        queries.append(statement.name)
        return await original(self, statement, params)

    monkeypatch.setattr(Session, "raw_rows", counting)
    assert [result.value async for result in batch.results()] == list(range(20_000))
    assert 2 <= queries.count("page_python_results") <= 20


async def test_a_deleted_batch_has_no_results(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [1])
    await batch.wait()
    await batch.delete()
    with pytest.raises(LookupError):
        await anext(batch.results())
