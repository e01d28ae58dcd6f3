"""Chunks: which items are called together, and that each gets its own verdict."""

import asyncio
import threading
from typing import Any
from uuid import uuid4

import pytest

from batchline.executors.python import PythonExecutor
from batchline.model import Deferred, Item, Ran, Retried, TaskParked
from batchline.operations.context import Context
from batchline.operations.operation import AnyOperation, make_operation
from batchline.operations.outcomes import Fail, Parked, Retry
from tests.support.python_operations import an_item, emitted_by, error_of, executing, result_of
from tests.support.waiting import eventually


async def run_all(executor: PythonExecutor, items: list[Item]) -> list[Ran]:
    return await asyncio.gather(*(executor.run(item) for item in items))


def items_of(operation: AnyOperation, values: Any, **keywords: Any) -> list[Item]:
    return [an_item(operation, value, index=n, **keywords) for n, value in enumerate(values)]


class Recorded:
    """A handler that notes its chunks, in both ways."""

    def __init__(self) -> None:
        self.chunks: list[list[int]] = []

    async def in_loop(self, items: list[int]) -> list[int]:
        return self.in_thread(items)

    def in_thread(self, items: list[int]) -> list[int]:
        self.chunks.append(items)
        return [item * 2 for item in items]


@pytest.mark.parametrize("attribute", ["in_loop", "in_thread"])
async def test_items_are_gathered_up_to_the_size_of_a_chunk(attribute: str) -> None:
    recorded = Recorded()
    operation = make_operation(getattr(recorded, attribute), chunk=4)
    async with executing(operation) as executor:
        verdicts = await run_all(executor, items_of(operation, range(10)))
    assert [result_of(verdict) for verdict in verdicts] == [2 * n for n in range(10)]
    assert sorted(recorded.chunks) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_the_items_of_a_chunk_are_of_one_batch() -> None:
    recorded = Recorded()
    operation = make_operation(recorded.in_loop, chunk=10)
    batches = [uuid4(), uuid4()]
    items = [an_item(operation, n, batch_id=batches[n % 2]) for n in range(8)]
    async with executing(operation) as executor:
        await run_all(executor, items)
    assert sorted(recorded.chunks) == [[0, 2, 4, 6], [1, 3, 5, 7]]


async def test_each_item_has_its_own_outcome() -> None:
    async def mixed(items: list[int]) -> list[int | Retry | Fail | Parked]:
        return [10, Retry("busy", after=30), Fail("gone", code="not_found"), Parked("task", after=7), "x"]  # type: ignore[list-item]

    operation = make_operation(mixed, chunk=5)
    async with executing(operation) as executor:
        value, retried, failed, parked, wrong = await run_all(executor, items_of(operation, range(5)))
    assert result_of(value) == 10
    assert isinstance(retried, Retried)
    assert (retried.error_code, retried.delay) == ("Retry", 30.0)
    assert error_of(failed) == ("not_found", "gone")
    assert isinstance(parked, TaskParked)
    assert parked.delay == 7.0
    assert error_of(wrong)[0] == "invalid_result"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1, 2], "it returned 2 outcomes for 3 items"),
        ([1, 2, 3, 4], "it returned 4 outcomes for 3 items"),
        (None, "it returned NoneType, not a list"),
        ({1: 2}, "it returned dict, not a list"),
    ],
)
async def test_a_wrong_list_fails_the_attempt_of_all_items(returned: Any, message: str) -> None:
    async def wrong(items):  # type: ignore[no-untyped-def]
        return returned

    operation = make_operation(wrong, chunk=3)
    async with executing(operation) as executor:
        verdicts = await run_all(executor, items_of(operation, range(3)))
    for verdict in verdicts:
        assert isinstance(verdict, Retried)
        assert (verdict.error_code, verdict.message) == (
            "invalid_result",
            f"The function got a chunk: {message}.",
        )


async def test_an_exception_counts_for_all_items_by_the_attempts_of_each() -> None:
    async def raises_error(items: list[int]) -> list[int]:
        raise ValueError("no")

    operation = make_operation(raises_error, chunk=2, max_attempts=2)
    async with executing(operation) as executor:
        first, last = await run_all(executor, [an_item(operation), an_item(operation, attempt=2)])
    assert isinstance(first, Retried)
    assert error_of(last) == ("ValueError", "no")


async def test_an_item_that_does_not_match_is_left_out_of_its_chunk() -> None:
    seen: list[Any] = []

    async def handler(items: list[int], ctx: Context) -> list[int]:
        seen.append((items, [each.index for each in ctx.items]))
        return items

    operation = make_operation(handler, chunk=3)
    async with executing(operation) as executor:
        one, two, three = await run_all(executor, items_of(operation, [1, "two", 3]))
        assert (result_of(one), error_of(two)[0], result_of(three)) == (1, "invalid_item", 3)
        only = await run_all(executor, items_of(operation, ["a", "b", "c"]))
    assert [error_of(each)[0] for each in only] == ["invalid_item"] * 3
    assert seen == [([1, 3], [0, 2])]


async def test_each_item_of_a_chunk_emits_for_itself() -> None:
    async def parse(page: str) -> None: ...

    def handler(items: list[int], ctx: Context) -> list[Any]:
        for item, each in zip(items, ctx.items, strict=True):
            for n in range(item):
                each.emit("parse", f"{item}-{n}")
        return [None, Retry(), None]

    operation = make_operation(handler, chunk=3, emits=["parse"])
    async with executing(make_operation(parse), operation) as executor:
        none, retried, two = await run_all(executor, items_of(operation, [0, 1, 2]))
    assert emitted_by(none) == []
    assert isinstance(retried, Retried)
    assert [value for _, _, value in emitted_by(two)] == ["2-0", "2-1"]


async def test_a_time_limit_is_that_of_the_call() -> None:
    async def endless(items: list[int], ctx: Context) -> list[int]:
        await asyncio.Event().wait()
        return items

    def stuck(items: list[int], ctx: Context) -> list[int]:
        ctx.cancelled.wait(60)
        assert all(each.cancelled.is_set() for each in ctx.items)
        return items

    for function in (endless, stuck):
        operation = make_operation(function, chunk=2, timeout=0.01)
        async with executing(operation) as executor:
            for verdict in await run_all(executor, items_of(operation, range(2))):
                assert isinstance(verdict, Retried)
                assert verdict.error_code == "timeout"


async def test_an_item_that_two_workers_died_with_is_called_alone() -> None:
    recorded = Recorded()
    operation = make_operation(recorded.in_loop, chunk=4)
    async with executing(operation) as executor:
        await run_all(executor, [*items_of(operation, range(2)), an_item(operation, 7, losses=2)])
    assert sorted(recorded.chunks) == [[0, 1], [7]]


async def test_items_that_wait_for_their_chunk_go_back_when_the_worker_stops() -> None:
    recorded = Recorded()
    operation = make_operation(recorded.in_loop, chunk=4)
    async with executing(operation) as executor:
        item = an_item(operation)
        waiting = asyncio.create_task(_ran(executor.run(item)))
        await asyncio.sleep(0)
        executor.wind_down()
        assert await waiting == Deferred(item)
    assert recorded.chunks == []


async def test_items_whose_lease_was_lost_while_they_waited_are_not_run() -> None:
    recorded, fence = Recorded(), ["before"]
    operation = make_operation(recorded.in_loop, chunk=2)
    async with executing(operation) as executor:
        executor.fenced_by(lambda: fence[0])
        first = asyncio.create_task(_ran(executor.run(an_item(operation))))
        await asyncio.sleep(0)
        fence[0] = "after"
        second = await executor.run(an_item(operation))
        assert isinstance(await first, Deferred)
        assert isinstance(second, Deferred)
    assert recorded.chunks == []


async def test_a_chunk_is_cancelled_when_nobody_waits_for_any_of_its_items() -> None:
    started, cancelled = threading.Event(), asyncio.Event()

    async def endless(items: list[int]) -> list[int]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return items

    operation = make_operation(endless, chunk=2)
    async with executing(operation) as executor:
        tasks = [asyncio.create_task(_ran(executor.run(an_item(operation)))) for _ in range(2)]
        await eventually("the chunk runs", started.is_set)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        assert not cancelled.is_set()
        tasks[1].cancel()
        await cancelled.wait()
        await asyncio.wait(tasks)


async def test_an_item_that_is_cancelled_before_its_chunk_begins_is_not_in_it() -> None:
    recorded = Recorded()
    operation = make_operation(recorded.in_loop, chunk=3)
    async with executing(operation) as executor:
        gone = asyncio.create_task(_ran(executor.run(an_item(operation, 1))))
        kept = asyncio.create_task(_ran(executor.run(an_item(operation, 2))))
        await asyncio.sleep(0)
        gone.cancel()
        assert result_of(await kept) == 4
    assert recorded.chunks == [[2]]


async def _ran(running: Any) -> Ran:
    ran: Ran = await running
    return ran
