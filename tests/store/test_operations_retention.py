"""What governed batches leave behind goes when its time is over; what was done and decided stays."""

from pathlib import Path
from uuid import uuid4

import pytest

from batchline.batches import retention
from batchline.batches.finalize import finalize_one
from batchline.config.settings import DAY
from batchline.files.objects import Objects
from batchline.governance import changes, decisions
from batchline.governance.errors import Conflict
from batchline.model import GovernedBatch, ParentStatus
from batchline.store import audit, doctor, operations
from batchline.store import retention as chunks
from batchline.store.session import Session
from tests.support.builders import a_worker, sql
from tests.support.governance import ANNA, CARLA, count, now, production, some_rules, submit, work

KEPT = 90 * DAY


async def clear(db: Session, objects: Objects, keep: float | None = KEPT) -> None:
    assert await retention.enforce(db, objects, DAY, keep, seconds=600)
    report = await doctor.examine(db, object_exists=objects.exists)
    assert report.clean, report.findings


async def ended(db: Session, objects: Objects, days: float, **more: object) -> GovernedBatch:
    """One child has succeeded, one has failed, so many days ago."""
    batch = await submit(db, some_rules(), ANNA, 2, **more)  # type: ignore[arg-type]
    await work(db, failures={2}, end=False)
    assert await finalize_one(db, objects, a_worker(), batch.id) is not None
    await sql(
        db,
        "UPDATE batchline.batches SET completed_at = now() - make_interval(secs => %(ago)s)"
        " WHERE id = %(id)s",
        ago=days * DAY,
        id=batch.id,
    )
    return await now(db, batch)


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(tmp_path)


async def test_items_results_and_files_go_and_counts_and_the_audit_log_stay(
    db: Session, objects: Objects, tmp_path: Path
) -> None:
    def written() -> list[Path]:
        return list(tmp_path.rglob("*.jsonl"))

    request = uuid4()
    old = await ended(db, objects, 91, request_id=request)
    log = await audit.page(db)
    totals = await operations.totals(db)
    await clear(db, objects)
    assert await operations.children(db, old.id) == []
    for table in ("lines", "results", "retry_attempts", "file_lanes"):
        assert await count(db, table) == 0, table
    assert await count(db, "files", "purged_at IS NULL") == 0
    assert written() == []
    left = await now(db, old)
    assert left.purging_at is not None
    assert (left.status, left.counts) == (ParentStatus.PARTIAL_SUCCESS, old.counts)
    assert await audit.page(db) == log
    assert await operations.totals(db) == totals
    again = await submit(db, some_rules(), ANNA, 2, request_id=request)
    assert again.id == old.id, "a replay is one for ever"


async def test_nothing_goes_that_is_young_or_has_not_ended_or_is_to_be_kept(
    db: Session, objects: Objects
) -> None:
    await ended(db, objects, 89)
    waiting = await submit(db, some_rules(), ANNA, production(3))
    await sql(db, "UPDATE batchline.batches SET created_at = created_at - interval '1 year'")
    await clear(db, objects)
    assert (await count(db, "results"), await count(db, "lines")) == (2, 5)
    assert len(await operations.children(db, waiting.id)) == 3
    await sql(db, "UPDATE batchline.batches SET completed_at = completed_at - interval '1 year'")
    await clear(db, objects, None)
    assert (await count(db, "results"), await count(db, "lines")) == (2, 5)


async def test_a_purged_batch_cannot_be_retried(db: Session, objects: Objects) -> None:
    old = await ended(db, objects, 91)
    await clear(db, objects)
    with pytest.raises(Conflict) as refused:
        await changes.retry(some_rules(), db, ANNA, old.id)
    assert refused.value.code == "BATCH_CLEARED"
    assert (await now(db, old)).failed == 1


async def test_a_batch_that_is_being_opened_again_is_passed_over(
    database_url: str, db: Session, objects: Objects
) -> None:
    old = await ended(db, objects, 91)
    async with Session(database_url, "clearing") as clearing:
        async with operations.changing(db, old.tenant, old.id) as changing:
            assert await changing.retry(3, 60.0) == 1
            assert await chunks.purge_old_operations(clearing, retention.FORGET_KEYS_AFTER) == 0
        assert await chunks.purge_old_operations(clearing, retention.FORGET_KEYS_AFTER) == 0
    assert await work(db) == [2]
    assert (await now(db, old)).status is ParentStatus.COMPLETED


async def test_a_batch_cancelled_before_a_decision_is_not_pending_approval(db: Session) -> None:
    rules = some_rules()
    cancelled, waiting = [await submit(db, rules, ANNA, production()) for _ in range(2)]
    await changes.cancel(db, ANNA, cancelled.id)
    for user in (None, ANNA.user):
        page = await operations.page(db, ANNA.tenant, limit=10, user=user, approval=waiting.approval)
        assert [batch.id for batch in page] == [waiting.id]
    await decisions.reject(db, CARLA, waiting.id)
    assert await operations.page(db, ANNA.tenant, limit=10, approval=waiting.approval) == []
    assert len(await operations.page(db, ANNA.tenant, limit=10)) == 2
