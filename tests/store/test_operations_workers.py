"""Which worker runs which operation: those that know it, and nobody else touches it."""

from pathlib import Path

from batchline.batches import maintenance
from batchline.files.objects import Objects
from batchline.governance.children import reported
from batchline.governance.operations import BELOW, url_of
from batchline.model import ChildStatus, ParentStatus
from batchline.store import operations, spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from tests.support.builders import a_batch, a_worker, on, read, sql, take
from tests.support.governance import ANNA, end_all, now, some_rules, submit
from tests.support.processes import batchline

NO_OPERATIONS = Scope(excluded_prefixes=(BELOW,))


async def test_a_worker_without_operations_leaves_them_alone_and_sees_no_work_in_them(db: Session) -> None:
    batch = await submit(db, some_rules(), ANNA, 3)
    worker = a_worker()
    assert await spans.claim(db, worker, NO_OPERATIONS, 10) == []
    assert await spans.claim_new(db, worker, NO_OPERATIONS, batch.id, 10) == ([], [])
    assert not (await spans.poll(db, worker.id, NO_OPERATIONS)).claimable
    # Nor what somebody else had and gave back, or died with.
    knowing = a_worker()
    assert len(await take(db, knowing, 2, Scope(keys=(url_of("resize"),)))) == 2
    await spans.release(db, knowing.id)
    await take(db, a_worker("dead", lease=-1.0), 1)
    poll_result = await spans.poll(db, worker.id, NO_OPERATIONS)
    assert (poll_result.claimable, poll_result.next_free) == (False, None)
    assert await spans.claim(db, worker, NO_OPERATIONS, 10) == []
    assert (await spans.poll(db, worker.id, Scope())).claimable


async def test_a_model_may_be_called_as_an_operation_is(db: Session) -> None:
    governed = await submit(db, some_rules(), ANNA, 3)
    ordinary = await a_batch(db, {"resize": 2})
    taken = await take(db, a_worker(), 10, NO_OPERATIONS)
    assert {item.claim.batch_id for item in taken} == {ordinary.id}
    taken = await take(db, a_worker(), 10, Scope(keys=(url_of("resize"),)))
    assert {item.claim.batch_id for item in taken} == {governed.id}


def test_the_command_without_operations_drains_past_them(database_url: str, tmp_path: Path) -> None:
    """It would wait for ever for what it can never run."""
    batch = on(database_url, lambda db: submit(db, some_rules(), ANNA, 3))
    location = ("--database", database_url, "--data-dir", str(tmp_path))
    done = batchline("worker", "--drain", "--max-seconds", "100", *location)
    assert done.returncode == 0, done.stderr
    assert "time is up" not in done.stderr

    async def untouched(db: Session) -> None:
        assert await sql(db, "SELECT next FROM batchline.current_lanes") == [(0,)]
        assert (await now(db, batch)).status is ParentStatus.IN_PROGRESS

    on(database_url, untouched)


async def test_a_batch_whose_operation_no_worker_knows_expires_with_a_code(
    db: Session, tmp_path: Path
) -> None:
    """No worker may judge what another one might know; the deadline does."""
    batch = await submit(db, some_rules(), ANNA, 2)
    await sql(db, "UPDATE batchline.batches SET expires_at = now()")
    await sql(db, "UPDATE batchline.lanes SET deadline = now()")
    await maintenance.run_due(db, Objects.at(tmp_path))
    await end_all(db)
    assert (await read(db, batch.id)).ended_at is not None
    over = await now(db, batch)
    assert over.status is ParentStatus.CANCELLED
    for child, displayed in [
        (child, reported(child, over, None)) for child in await operations.children(db, batch.id)
    ]:
        assert child.status is ChildStatus.CANCELLED
        assert displayed.error is not None
        assert displayed.error.code == "BATCH_EXPIRED"
