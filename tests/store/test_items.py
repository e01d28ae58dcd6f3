"""Items of a batch: every state, pages, words, causes, and one line in full."""

from typing import Any

import pytest

from batchline.model import Batch, Verdict
from batchline.store import attempts, batches, items, spans
from batchline.store.items import ItemRow
from batchline.store.session import Session
from tests.support.builders import (
    LATER,
    a_batch,
    a_worker,
    completed,
    failed,
    finalize,
    read,
    retry,
    sql,
    take,
)


async def all_items(db: Session, batch: Batch, limit: int, **more: Any) -> list[ItemRow]:
    found, after = list[ItemRow](), None
    while True:
        page = await items.page(db, batch.id, after=after, limit=limit, **more)
        found += page.rows
        if page.more is None:
            return found
        after = page.more


async def a_busy_batch(db: Session) -> Batch:
    """12 items of two models: 2 completed, 2 failed, 2 retrying, 2 in flight, 4 pending."""
    worker, batch = a_worker(), await a_batch(db, {"small": 6, "large": 6})
    taken = await take(db, worker, 8)
    verdicts: list[Verdict] = [
        *(completed(each) for each in taken[:2]),
        *(failed(each) for each in taken[2:4]),
        *(retry(each, LATER) for each in taken[4:6]),
    ]
    await spans.settle(db, worker.id, verdicts)
    return batch


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
async def test_items_of_each_state_are_listed_once_and_add_up_to_the_counts(db: Session, limit: int) -> None:
    batch = await a_busy_batch(db)
    counts = (await read(db, batch)).counts
    expected = {
        "completed": counts.completed,
        "failed": counts.failed,
        "retrying": counts.retrying,
        "in_flight": counts.in_progress,
        "pending": counts.pending,
    }
    everything = await all_items(db, batch, limit)
    assert len({each.line for each in everything}) == len(everything) == 12
    for state, number in expected.items():
        found = await all_items(db, batch, limit, state=state)
        assert len(found) == number, state
        assert {each.state for each in found} == {state}
        assert {each.line for each in found} == {each.line for each in everything if each.state == state}


async def test_items_of_a_cancelled_batch_are_cancelled(db: Session) -> None:
    batch = await a_busy_batch(db)
    await sql(db, "UPDATE batchline.workers SET lease_until = now() - interval '1 second'")
    await batches.close(db, batch.id, "cancel")
    await finalize(db, a_worker(), batch)

    found = await all_items(db, batch, 5)
    assert sorted(each.state for each in found) == ["cancelled"] * 8 + ["completed"] * 2 + ["failed"] * 2
    assert len(await all_items(db, batch, 5, state="cancelled")) == 8
    assert await all_items(db, batch, 5, state="in_flight") == []


async def test_words_and_causes_select_items(db: Session) -> None:
    batch = await a_busy_batch(db)
    ((key,),) = await sql(db, "SELECT DISTINCT cause FROM batchline.results WHERE outcome = 'failed'")
    lost = await all_items(db, batch, 5, state="failed")

    assert await all_items(db, batch, 5, cause=key) == lost
    assert await all_items(db, batch, 5, cause="unknown") == []
    assert [each.custom_id for each in await all_items(db, batch, 5, words="line-12")] == ["line-12"]
    for state in ("failed", "retrying", "in_flight", "pending", "completed"):
        (wanted, *_) = await all_items(db, batch, 5, state=state)
        found = await all_items(db, batch, 5, state=state, words=wanted.custom_id)
        assert wanted in found
        assert len(found) <= len(await all_items(db, batch, 5, state=state))


async def test_failed_items_have_the_code_and_message_of_their_cause(db: Session) -> None:
    batch = await a_busy_batch(db)
    (first, *_) = await all_items(db, batch, 5, state="failed")
    (waiting, *_) = await all_items(db, batch, 5, state="retrying")

    assert first.code == "http_400"
    assert (waiting.code, waiting.message, waiting.attempts) == ("rate_limit", "slow down", 2)


async def test_a_page_looks_at_a_bounded_number_of_lines_and_says_where_to_continue(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "_CHUNK_FOR_WORDS", 4)
    batch = await a_batch(db, {"small": 5, "large": 5})

    first = await items.page(db, batch.id, words="line-10", limit=1)
    assert first.rows == []
    assert first.more is not None
    assert [each.custom_id for each in await all_items(db, batch, 1, words="line-10")] == ["line-10"]


async def test_every_line_is_found_by_its_number_in_any_lane(db: Session) -> None:
    batch = await a_batch(db, {"small": 7, "large": 3, "tiny": 1})
    # Blank lines and gaps: line numbers grow, and that is all.
    await sql(db, "UPDATE batchline.lines SET line_no = line_no * 3")

    for number in range(1, 12):
        found = await items.line(db, batch.id, number * 3, 1000)
        assert found is not None
        assert (found.custom_id, found.body) == (f"line-{number}", f'{{"line": {number}}}')
        assert await items.line(db, batch.id, number * 3 + 1, 1000) is None
        history = await attempts.at(db, batch.id, found.lane, found.ordinal)
        assert history is not None
        assert history.custom_id == found.custom_id


async def test_a_large_line_is_cut_and_its_size_is_told(db: Session) -> None:
    batch = await a_batch(db, 1)
    found = await items.line(db, batch.id, 1, 4)

    assert found is not None
    assert (found.body, found.body_bytes) == ('{"li', 11)


async def test_nothing_is_listed_of_a_batch_whose_results_are_being_deleted(db: Session) -> None:
    batch = await a_busy_batch(db)
    await sql(db, "UPDATE batchline.batches SET purging_at = now()")

    assert await all_items(db, batch, 5) == []
    assert await all_items(db, batch, 5, state="failed") == []
    assert await items.line(db, batch.id, 1, 100) is None
