"""Submissions: a batch with all its items, or nothing at all."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from batchline import BatchClosed, Batchline, Context, InvalidApp, InvalidItem
from batchline.store import batches
from batchline.store.session import Session
from tests.support.rows import counted_rows
from tests.support.waiting import LIMIT


@dataclass
class Photo:
    path: str
    width: int = 0


async def test_items_of_any_iterable_get_results_in_their_order(app: Batchline) -> None:
    @app.operation
    async def double(number: int) -> int:
        return 2 * number

    async def source() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    assert await app.amap(double, source()) == [0, 2, 4]
    assert await app.amap(double, iter((5, 6))) == [10, 12]
    assert await app.amap(double, {7: "a"}) == [14]


async def test_more_items_than_one_block_keep_their_order(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    assert await app.amap(same, range(12_345)) == list(range(12_345))


async def test_no_items_have_no_results(app: Batchline) -> None:
    @app.operation
    async def double(number: int) -> int:
        return 2 * number

    assert await app.amap(double, []) == []


async def test_a_batch_without_items_ends(app: Batchline) -> None:
    @app.operation
    async def double(number: int) -> int:
        return 2 * number

    batch = await app.submit(double, [])
    progress = await batch.wait()
    assert (progress.status, progress.total) == ("completed", 0)
    assert [result async for result in batch.results()] == []


async def test_an_invalid_item_is_refused_with_its_index(app: Batchline, db: Session) -> None:
    @app.operation
    async def width(photo: Photo) -> int:
        return photo.width

    items: list[Any] = [Photo("a.png"), {"path": "b.png"}, {"path": 3}]
    with pytest.raises(InvalidItem, match="item 2: ") as refused:
        await app.submit(width, items)
    assert refused.value.index == 2
    assert await counted_rows(db) == {"batches": 0, "files": 0, "lanes": 0, "lines": 0}


async def test_a_source_that_fails_leaves_nothing(app: Batchline, db: Session) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    def source(error: Exception) -> Iterator[int]:
        yield from range(20_000)
        raise error

    # An error that the database could have raised, too, is still the one of the source.
    for error in (OSError("gone"), TimeoutError("gone"), psycopg.OperationalError("gone")):
        with pytest.raises(type(error), match="gone") as raised:
            await app.submit(same, source(error))
        assert raised.value is error
    assert await counted_rows(db) == {"batches": 0, "files": 0, "lanes": 0, "lines": 0}
    assert await app.amap(same, [1]) == [1]


@pytest.mark.parametrize("items", ["abc", b"abc", 7, None])
async def test_what_is_no_list_of_items_is_refused(app: Batchline, items: Any) -> None:
    @app.operation
    async def same(item: Any) -> Any:
        return item

    with pytest.raises(TypeError, match="items must be an iterable"):
        await app.submit(same, items)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"priority": 101}, "priority must be a whole number from -100 to 100"),
        ({"concurrency": 0}, "concurrency must be a whole number from 1"),
        ({"deadline": -1}, "deadline must be in the future"),
        ({"max_failed": "much"}, "max_failed"),
        ({"metadata": {"a": "b" * 513}}, "metadata has up to 16 pairs"),
        ({"name": ""}, "name must have 1 to 255 characters"),
    ],
)
async def test_wrong_keywords_are_refused(app: Batchline, keywords: Any, message: str) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    with pytest.raises(ValueError, match=message):
        await app.submit(same, [1], **keywords)


async def test_the_keywords_are_those_of_the_batch(app: Batchline, db: Session) -> None:
    @app.operation(max_attempts=2)
    async def same(number: int) -> int:
        return number

    batch = await app.submit(
        same,
        [1, 2],
        name="two numbers",
        key=lambda number: f"n-{number}",
        priority=7,
        deadline=timedelta(hours=1),
        concurrency=3,
        max_failed="5%",
        metadata={"team": "a"},
    )
    stored = await batches.get(db, batch.uuid)
    assert stored is not None
    assert (stored.priority, stored.concurrency, stored.metadata) == (7, 3, {"team": "a"})
    assert (stored.settings.max_attempts, stored.settings.max_failed_percent) == (2, 5.0)
    assert stored.settings.stages == ("python:same",)
    assert stored.expires_at is not None
    assert (stored.expires_at - stored.created_at).total_seconds() == pytest.approx(3600, abs=1)
    await batch.wait()
    assert [result.key async for result in batch.results()] == ["n-1", "n-2"]


async def test_a_function_that_is_no_operation_of_the_app_is_refused(app: Batchline) -> None:
    other = Batchline()

    @other.operation
    async def theirs(number: int) -> int:
        return number

    def plain(number: int) -> int:
        return number

    not_an_operation: Any = plain
    with pytest.raises(InvalidApp, match="this app has no operation 'theirs'"):
        await app.submit(theirs, [1])
    with pytest.raises(TypeError, match="decorate the function"):
        await app.submit(not_an_operation, [1])


async def test_a_held_batch_runs_nothing_before_it_is_released(app: Batchline) -> None:
    ran = []

    @app.operation
    async def note(number: int) -> int:
        ran.append(number)
        return number

    batch = await app.submit(note, [0, 1], hold=True)
    async with app.worker(operations=[note]):
        assert await batch.append([2, 3]) == 2
        assert await app.call(note, 100) == 100
        assert ran == [100]
        await batch.release()
        progress = await batch.wait(here=False)
    assert (progress.status, progress.total, sorted(ran)) == ("completed", 4, [0, 1, 2, 3, 100])
    assert [(each.index, each.key, each.value) async for each in batch.results()] == [
        (number, str(number), number) for number in range(4)
    ]


async def test_an_open_batch_runs_items_while_it_accepts_more(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [0], keep_open=True)
    async with app.worker():
        results = batch.results()
        assert (await anext(results)).value == 0
        await batch.append(range(1, 6_001))
        assert (await anext(results)).value == 1
        assert not (await batch.status()).ended
        await batch.release()
        assert [result.value async for result in results] == list(range(2, 6_001))
        assert (await batch.wait()).completed == 6_001


async def test_a_slow_source_of_more_items_keeps_no_worker_from_storing_results(app: Batchline) -> None:
    reading, stored = asyncio.Event(), asyncio.Event()

    @app.operation
    async def same(number: int) -> int:
        await reading.wait()
        return number

    @app.operation
    async def other(number: int) -> int:
        return number

    async def source() -> AsyncIterator[int]:
        for number in range(1, 101):
            yield number
        reading.set()
        await stored.wait()

    batch = await app.submit(same, [0], keep_open=True)
    async with app.worker(), asyncio.timeout(LIMIT):
        appending = asyncio.create_task(batch.append(source()))
        results = batch.results()
        assert (await anext(results)).value == 0
        await results.aclose()
        assert await (await app.submit(other, [1])).wait(here=False)
        stored.set()
        assert await appending == 100
        await batch.release()
        assert (await batch.wait(here=False)).completed == 101


async def test_a_batch_that_was_released_accepts_no_items(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [0], hold=True)
    await batch.release()
    with pytest.raises(BatchClosed):
        await batch.append([1])
    with pytest.raises(BatchClosed):
        await batch.release()
    with pytest.raises(BatchClosed):
        await (await app.submit(same, [0])).append([1])


async def test_a_failed_append_adds_nothing(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    batch = await app.submit(same, [0], hold=True)
    wrong: Any = [*range(10_000), "x"]
    with pytest.raises(InvalidItem) as refused:
        await batch.append(wrong)
    assert refused.value.index == 10_000
    await batch.release()
    assert (await batch.wait()).total == 1


async def test_a_pipeline_has_the_results_and_counts_of_each_stage(app: Batchline) -> None:
    @app.operation
    async def length(word: str) -> int:
        return len(word)

    @app.operation(emits=[length])
    async def split(text: str, ctx: Context) -> int:
        for word in text.split():
            await ctx.emit(length, word)
        return text.count(" ")

    batch = await app.submit(split, ["a bb", "ccc", ""])
    progress = await batch.wait()
    assert (progress.status, progress.total, progress.completed) == ("completed", 6, 6)
    assert {name: stage.completed for name, stage in progress.stages.items()} == {"split": 3, "length": 3}
    assert [result.value async for result in batch.results()] == [1, 0, 0]
    assert sorted([result.value async for result in batch.results(stage=length)]) == [1, 2, 3]
    assert sorted([result.value async for result in batch.results(stage="length")]) == [1, 2, 3]


async def test_an_unknown_stage_is_refused_at_submission(app: Batchline) -> None:
    @app.operation(emits=["nowhere"])
    async def start(number: int) -> int:
        return number

    with pytest.raises(InvalidApp, match="'nowhere'"):
        await app.submit(start, [1])
