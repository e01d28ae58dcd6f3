"""A batch without a deadline never expires, and runs after those that have one."""

import pytest

from batchline.batches import creation
from batchline.batches.creation import InvalidWindow
from batchline.model import DEFAULT_TENANT, Batch, BatchStatus, RunSettings
from batchline.store import doctor, maintenance, spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support.builders import (
    a_batch,
    a_file,
    a_worker,
    completed,
    finalize,
    read,
    retry,
    run_to_the_end,
    take,
)


async def without_deadline(db: Session, lines: int = 4) -> Batch:
    file_id = await a_file(db, {"model": lines})
    return await creation.create(
        db, tenant=DEFAULT_TENANT, file_id=file_id, window="none", settings=RunSettings()
    )


async def test_it_has_no_deadline_and_is_never_overdue(db: Session) -> None:
    batch = await without_deadline(db)
    assert (batch.completion_window, batch.expires_at) == ("none", None)
    assert await maintenance.overdue(db) == []
    result = await spans.poll(db, a_worker().id, Scope())
    assert result.claimable
    assert result.next_due is not None, "of maintenance tasks; the batch has none"


async def test_it_runs_to_its_end(db: Session) -> None:
    """Claims, new and ordinary ones, and retries compute how much time is left."""
    batch, worker = await without_deadline(db), a_worker()
    claims, items = await spans.claim_new(db, worker, Scope(), batch.id, 1)
    assert claims[0].seconds_left > 10**9
    assert items is not None
    await spans.settle(db, worker.id, [retry(items[0])])
    assert (await take(db, worker, 1))[0].claim.attempt == 2
    await spans.release(db, worker.id)
    await run_to_the_end(db, worker)
    ended = await finalize(db, worker, await read(db, batch))
    assert (ended.status, ended.completed, ended.expires_at) == (BatchStatus.COMPLETED, 4, None)
    assert (await doctor.examine(db)).clean


async def test_batches_with_a_deadline_come_first(db: Session) -> None:
    patient, urgent = await without_deadline(db), await a_batch(db, 4, window=10**8)
    worker = a_worker()
    assert {item.claim.batch_id for item in await take(db, worker, 4)} == {urgent.id}
    assert {item.claim.batch_id for item in await take(db, worker, 4)} == {patient.id}


async def test_the_first_of_several_without_a_deadline_comes_first(db: Session) -> None:
    batches = [await without_deadline(db, 2) for _ in range(3)]
    worker = a_worker()
    for batch in batches:
        items = await take(db, worker, 2)
        assert {item.claim.batch_id for item in items} == {batch.id}
        await spans.settle(db, worker.id, [completed(item) for item in items])


@pytest.mark.parametrize("window", ["", "24", "None", "0h", "-1h", "infinity"])
def test_other_windows_are_refused_with_what_to_write(window: str) -> None:
    with pytest.raises(InvalidWindow, match=r"24h.*none"):
        creation.window_or_none(window)
