"""Lists of batches: filters, three orders, pages in both directions, and who sees what."""

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from batchline.model import Batch, BatchStatus
from batchline.store import batches, listing, spans
from batchline.store.listing import BatchFilters, BatchViewer, Sort
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, complete, failed, finalize, read, sql, take

DEFAULT = BatchViewer("default")
NOTHING = BatchFilters()


async def ids(
    db: Session,
    filters: BatchFilters = NOTHING,
    *,
    viewer: BatchViewer = DEFAULT,
    limit: int = 100,
    **more: Any,
) -> list[UUID]:
    found = await listing.page(db, viewer, filters, limit=limit, **more)
    return [each.id for each in found.rows]


async def all_pages(db: Session, sort: Sort, *, descending: bool, limit: int) -> list[UUID]:
    found, after = list[UUID](), None
    while True:
        page = await listing.page(
            db, DEFAULT, NOTHING, sort=sort, descending=descending, after=after, limit=limit
        )
        found += [each.id for each in page.rows]
        if page.more is None:
            return found
        assert len(page.rows) == limit
        after = page.more


async def some_batches(db: Session, number: int) -> list[Batch]:
    """With different deadlines and failures, some of them at the same moment."""
    worker, chance = a_worker(), random.Random(7)
    made = [await a_batch(db, 5, window=chance.choice((None, 3600.0, 7200.0))) for _ in range(number)]
    for batch in made:
        items = await take(db, worker, 5, spans.Scope(batch_id=batch.id))
        lost = items[: chance.randrange(4)]
        await spans.settle(db, worker.id, [failed(item) for item in lost])
        if chance.random() < 0.5:
            await complete(db, worker, items[len(lost) :])
    await sql(db, "UPDATE batchline.batches SET created_at = date_trunc('second', created_at)")
    return [await read(db, batch) for batch in made]


@pytest.mark.parametrize("descending", [True, False])
async def test_pages_of_each_order_have_every_batch_once_in_order(db: Session, descending: bool) -> None:
    made = await some_batches(db, 12)
    far = max(each.created_at for each in made) + timedelta(days=999)
    keys: dict[Sort, Any] = {
        "created": lambda each: (each.created_at, each.id),
        "deadline": lambda each: (each.expires_at or far, each.id),
        "failed": lambda each: (each.failed, each.id),
    }
    for sort, key in keys.items():
        listed = [each for each in made if sort != "failed" or each.failed]
        expected = [each.id for each in sorted(listed, key=key, reverse=descending)]
        for limit in (1, 5, 100):
            assert await all_pages(db, sort, descending=descending, limit=limit) == expected, (sort, limit)


async def test_the_order_by_deadline_has_only_batches_that_have_not_ended(db: Session) -> None:
    worker, ended, open_one = a_worker(), await a_batch(db, 1), await a_batch(db, 1)
    await complete(db, worker, await take(db, worker, 1, spans.Scope(batch_id=ended.id)))
    await finalize(db, worker, ended)

    assert await ids(db, sort="deadline", descending=False) == [open_one.id]
    assert set(await ids(db)) == {ended.id, open_one.id}


async def test_the_index_by_status_knows_every_status_as_the_model_does(db: Session) -> None:
    worker = a_worker()
    made = {name: await a_batch(db, 2) for name in ("running", "paused", "cancelling", "cancelled", "done")}
    await take(db, worker, 1, spans.Scope(batch_id=made["cancelling"].id))
    await batches.close(db, made["paused"].id, "pause")
    await batches.close(db, made["cancelling"].id, "cancel")
    await batches.close(db, made["cancelled"].id, "cancel")
    await finalize(db, worker, made["cancelled"])
    await complete(db, worker, await take(db, worker, 2, spans.Scope(batch_id=made["done"].id)))

    for batch in made.values():
        status = (await read(db, batch)).status.value
        assert await ids(db, BatchFilters((status,))) == [batch.id], status
    states = [(await read(db, batch)).status for batch in made.values()]
    assert states == [
        BatchStatus.IN_PROGRESS,
        BatchStatus.PAUSED,
        BatchStatus.CANCELLING,
        BatchStatus.CANCELLED,
        BatchStatus.FINALIZING,
    ]
    await finalize(db, worker, made["done"])
    assert await ids(db, BatchFilters(("completed", "paused"))) == [made["done"].id, made["paused"].id]
    assert await listing.count(db, DEFAULT, BatchFilters(("completed", "paused"))) == 2
    assert await listing.count(db, DEFAULT, NOTHING) == 5


async def test_filters_find_models_names_metadata_and_times(db: Session) -> None:
    small, several = await a_batch(db, {"small": 1}), await a_batch(db, {"small": 1, "large": 1})
    await sql(
        db,
        "UPDATE batchline.files SET filename = 'Invoices.jsonl' WHERE id = %(file)s",
        file=small.file_id,
    )
    await sql(
        db,
        """UPDATE batchline.batches SET metadata = '{"team": "Payments"}' WHERE id = %(batch)s""",
        batch=several.id,
    )
    await sql(db, "UPDATE batchline.batches SET model = 'small' WHERE id = %(batch)s", batch=small.id)

    assert await ids(db, BatchFilters(model="small")) == [several.id, small.id]
    assert await ids(db, BatchFilters(model="large")) == [several.id]
    assert await ids(db, BatchFilters(words="voices")) == [small.id]
    assert await ids(db, BatchFilters(words="payments")) == [several.id]
    assert await ids(db, BatchFilters(words="nowhere")) == []
    assert await ids(db, BatchFilters(created_after=several.created_at)) == [several.id]
    assert await ids(db, BatchFilters(created_before=several.created_at)) == [small.id]


async def test_a_page_looks_at_a_bounded_number_of_batches_and_says_where_to_continue(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_CHUNK_FOR_WORDS", 4)
    made = [await a_batch(db, 1) for _ in range(6)]
    await sql(
        db,
        "UPDATE batchline.files SET filename = 'wanted.jsonl' WHERE id = %(file)s",
        file=made[0].file_id,
    )

    first = await listing.page(db, DEFAULT, BatchFilters(words="wanted"), limit=2)
    assert first.rows == []
    assert first.more.id == made[2].id
    then = await listing.page(db, DEFAULT, BatchFilters(words="wanted"), after=first.more, limit=2)
    assert [each.id for each in then.rows] == [made[0].id]
    assert then.more is None


async def governed(db: Session, batch: Batch, user: str) -> None:
    await sql(
        db,
        "UPDATE batchline.batches SET submitted_by = %(user)s WHERE id = %(batch)s",
        user=user,
        batch=batch.id,
    )


async def test_nobody_sees_another_tenants_batches_or_anothers_operations(db: Session) -> None:
    mine, others = await a_batch(db, 1), await a_batch(db, 1, tenant="other")
    annas, berts = await a_batch(db, 1), await a_batch(db, 1)
    await governed(db, annas, "anna")
    await governed(db, berts, "bert")
    anna = BatchViewer("default", "anna")
    every = [each.id for each in (mine, others, annas, berts)]

    async def summaries(viewer: BatchViewer) -> Sequence[UUID]:
        return [each.batch.id for each in await listing.summaries(db, viewer, every)]

    sorts: tuple[Sort, ...] = ("created", "deadline")
    for sort in sorts:
        assert set(await ids(db, viewer=anna, sort=sort)) == {mine.id, annas.id}
        assert set(await ids(db, viewer=DEFAULT, sort=sort)) == {mine.id, annas.id, berts.id}
        assert await ids(db, viewer=BatchViewer("other"), sort=sort) == [others.id]
    assert await summaries(anna) == [mine.id, annas.id]
    assert await summaries(DEFAULT) == [mine.id, annas.id, berts.id]
    assert await summaries(BatchViewer("other")) == [others.id]
    assert await ids(db, BatchFilters(kind="operation"), viewer=anna) == [annas.id]
    assert await ids(db, BatchFilters(kind="batch"), viewer=anna) == [mine.id]


async def test_summaries_have_the_counts_of_now(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 5)
    items = await take(db, worker, 3)
    await spans.settle(db, worker.id, [failed(items[0])])

    (summary,) = await listing.summaries(db, DEFAULT, [batch.id])
    counts = summary.batch.counts
    assert (counts.failed, counts.in_progress, counts.pending) == (1, 2, 2)
    assert summary.filename == "input.jsonl"
