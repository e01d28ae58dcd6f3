"""Verdicts go to the database in groups, and a group of which one verdict comes too late loses no other."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from psycopg.types.multirange import Multirange

from batchline.model import Completed, Item, Usage, Verdict
from batchline.store import arrays, spans
from batchline.store.session import Session
from batchline.store.verdicts import Grouped
from tests.support.builders import (
    a_batch,
    a_database,
    a_worker,
    completed,
    failed,
    read,
    retry,
    sql,
    take,
)


@pytest.fixture
def url(server_url: str, template: str) -> Iterator[str]:
    with a_database(server_url, template) as url:
        yield url


async def test_a_late_verdict_is_dropped_and_its_neighbours_in_the_group_count(url: str) -> None:
    async with Session(url, "test") as db:
        batch = await a_batch(db, 6)
        worker = a_worker()
        items = await take(db, worker)
        await spans.settle(db, worker.id, [completed(items[2])])

        settled = await spans.settle(db, worker.id, [completed(item) for item in items])

        assert sum(row.ended for row in settled) == 5
        assert [row.finished for row in settled] == [True]
        now = await read(db, batch)
        assert (now.completed, now.input_tokens) == (6, 18)
        assert await sql(db, "SELECT count(*) FROM batchline.results") == [(6,)]


async def test_items_of_one_span_are_one_group_also_if_each_was_routed_by_itself(url: str) -> None:
    async with Session(url, "test") as db:
        await a_batch(db, 6)
        items = await take(db, a_worker())
        routed = [replace(item, claim=replace(item.claim, model="another")) for item in items]
        assert len(Grouped([completed(item) for item in routed])) == 1


async def test_each_kind_of_verdict_is_a_group_and_a_late_one_of_any_kind_is_dropped_alone(url: str) -> None:
    async with Session(url, "test") as db:
        batch = await a_batch(db, 9)
        worker = a_worker()
        items = await take(db, worker)
        late = [items[0], items[3], items[6]]
        await spans.settle(db, worker.id, [failed(item) for item in late])
        verdicts: list[Verdict] = [completed(item) for item in items[:3]]
        verdicts += [failed(item) for item in items[3:6]]
        verdicts += [retry(item) for item in items[6:]]

        settled = await spans.settle(db, worker.id, verdicts)

        assert [(row.batch_id, row.ended) for row in settled] == [(batch.id, 4)]
        now = await read(db, batch)
        assert (now.completed, now.failed) == (2, 5)
        assert await sql(db, "SELECT ordinal FROM batchline.retry_attempts ORDER BY ordinal") == [(7,), (8,)]


async def test_a_call_in_which_nothing_counts_changes_nothing(url: str) -> None:
    async with Session(url, "test") as db:
        batch = await a_batch(db, 3)
        worker = a_worker()
        items = await take(db, worker)
        await spans.settle(db, worker.id, [completed(item) for item in items])

        assert await spans.settle(db, worker.id, [completed(item) for item in items]) == []
        assert await spans.settle(db, worker.id, []) == []
        assert (await read(db, batch)).completed == 3


async def test_token_counts_beyond_what_a_column_holds_are_cut_not_refused(url: str) -> None:
    async with Session(url, "test") as db:
        batch = await a_batch(db, 2)
        worker = a_worker()
        items = await take(db, worker)

        def greedy(item: Item) -> Completed:
            return Completed(item, 200, b"{}", Usage(2**40, 2**40, 2**40, 2**40))

        await spans.settle(db, worker.id, [greedy(item) for item in items])

        now = await read(db, batch)
        maximum = 2**31 - 1
        sums = (now.input_tokens, now.cached_tokens, now.output_tokens, now.reasoning_tokens)
        assert sums == (2 * maximum,) * 4


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, unique=True), max_size=5))
async def test_numbers_arrive_as_the_multiranges_that_they_are(
    server_url: str, numbers: list[list[int]]
) -> None:
    async with Session(server_url, "test") as db:
        (row,) = await sql(
            db, "SELECT %(numbers)b::int4multirange[] AS sent", numbers=arrays.MultirangeArray(numbers)
        )
        sent: list[Multirange[int]] = row[0]
        assert [
            sorted(n for piece in each for n in range(piece.lower or 0, piece.upper or 0)) for each in sent
        ] == [sorted(each) for each in numbers]
