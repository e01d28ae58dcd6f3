"""Operations that collect the results of another stage, when everything else has ended."""

from datetime import datetime
from typing import Any

import pytest

from batchline import Batchline, BatchlineError, Context, Fail, InvalidApp


def words_of(app: Batchline) -> Any:
    """Texts are split into words; each word is measured."""

    @app.operation
    async def measure(word: str) -> int:
        if word == "bad":
            raise Fail("no such word")
        return len(word)

    @app.operation(emits=[measure])
    async def split(text: str, ctx: Context) -> None:
        for word in text.split():
            await ctx.emit(measure, word, key=word[0])

    return split, measure


async def test_all_results_of_a_stage_are_collected_once(app: Batchline) -> None:
    split, measure = words_of(app)

    @app.operation(collects=measure)
    async def total(lengths: list[int]) -> int:
        return sum(lengths)

    batch = await app.submit(split, ["a bb", "ccc bad", ""])
    progress = await batch.wait()
    assert [result.value async for result in batch.results(stage="total")] == [6]
    assert (progress.status, progress.completed, progress.failed) == ("completed", 7, 1)


@pytest.mark.parametrize("run_in", ["thread", "process"])
async def test_results_are_collected_key_by_key(app: Batchline, run_in: Any) -> None:
    split, measure = words_of(app)
    by_letter = app.operation(collects=measure, by="key", run_in=run_in)(collected_lengths)

    @app.operation(collects=by_letter)
    async def longest(sums: list[int]) -> int:
        return max(sums)

    batch = await app.submit(split, ["apple ant", "bee avocado"])
    await batch.wait()
    sums = {result.key: result.value async for result in batch.results(stage="collected_lengths")}
    assert sums == {"a": 15, "b": 3}
    assert [result.value async for result in batch.results(stage="longest")] == [15]


def collected_lengths(lengths: list[int]) -> int:
    return sum(lengths)


async def test_items_whose_results_would_have_to_be_collected_again_cannot_be_retried(app: Batchline) -> None:
    split, measure = words_of(app)

    @app.operation(collects=measure)
    async def total(lengths: list[int]) -> int:
        return sum(lengths)

    batch = await app.submit(split, ["ccc bad"])
    await batch.wait()
    with pytest.raises(BatchlineError, match=r"its stage 'total' has collected .* in a new batch"):
        await batch.retry()
    progress = await batch.status()
    assert (progress.status, progress.completed, progress.failed, progress.pending) == ("completed", 3, 1, 0)
    assert [result.value async for result in batch.results(stage="total")] == [3]


async def test_a_stage_that_failed_to_collect_collects_when_it_is_retried(app: Batchline) -> None:
    broken = True

    @app.operation
    async def same(number: int) -> int:
        return number

    @app.operation(collects=same)
    async def total(numbers: list[int]) -> int:
        if broken:
            raise Fail("not today")
        return sum(numbers)

    batch = await app.submit(same, [1, 2])
    assert (await batch.wait()).failed == 1
    broken = False
    assert await batch.retry() == 1
    assert (await batch.wait()).failed == 0
    assert [result.value async for result in batch.results(stage="total")] == [3]


async def test_a_stage_whose_results_were_collected_cannot_be_retried(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    @app.operation(collects=same, by="key")
    async def pair(numbers: list[int]) -> int:
        if numbers == [1]:
            raise Fail("not alone")
        return sum(numbers)

    @app.operation(collects=pair)
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    batch = await app.submit(same, [1, 2], key=str)
    await batch.wait()
    with pytest.raises(BatchlineError, match="its stage 'total' has collected"):
        await batch.retry()


async def test_a_batch_that_was_cancelled_before_it_collected_collects_after_a_retry(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    @app.operation(collects=same)
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    batch = await app.submit(same, [1, 2])
    await batch.cancel()
    await batch.wait()
    assert await batch.retry() == 2
    await batch.wait()
    assert [result.value async for result in batch.results(stage="total")] == [3]


async def test_a_batch_without_items_collects_nothing_from_nothing(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    @app.operation(collects=same)
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    batch = await app.submit(same, [])
    await batch.wait()
    assert [result.value async for result in batch.results(stage="total")] == [0]


def test_an_operation_that_collects_an_unknown_one_is_refused() -> None:
    app = Batchline()

    @app.operation(collects="nothing")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    with pytest.raises(InvalidApp, match="collects 'nothing', which is no operation of this app"):
        app._core.catalog.check()


def test_operations_that_collect_each_other_are_refused() -> None:
    app = Batchline()

    @app.operation(collects="second")
    async def first(numbers: list[int]) -> int:
        return 0

    @app.operation(collects=first)
    async def second(numbers: list[int]) -> int:
        return 0

    with pytest.raises(InvalidApp, match="in a cycle"):
        app._core.catalog.check()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [({"by": "key"}, "add collects"), ({"by": "lane", "collects": "x"}, '"batch" or "key"')],
)
def test_wrong_keywords_are_refused(keywords: Any, message: str) -> None:
    with pytest.raises(InvalidApp, match=message):
        Batchline().operation(**keywords)(collected_lengths)


async def test_an_operation_that_collects_cannot_begin_a_batch(app: Batchline) -> None:
    @app.operation
    async def same(number: int) -> int:
        return number

    @app.operation(collects=same)
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    problem = "'total' cannot be submitted: it collects results of 'same'; submit the operation that begins"
    with pytest.raises(InvalidApp, match=problem):
        await app.submit(total, [[1, 2]])
    with pytest.raises(InvalidApp, match=problem):
        await app.amap(total, [[1, 2]])
    with pytest.raises(InvalidApp, match=f"schedule 'nightly': operation {problem}"):

        @app.schedule("0 0 * * *", total)
        async def nightly(at: datetime) -> list[list[int]]:
            return [[1]]
