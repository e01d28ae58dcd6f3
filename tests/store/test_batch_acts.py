"""Acts on ordinary and governed batches: each commits with its audit record, or changes nothing."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from batchline.governance import batch_acts
from batchline.governance.access import Actor
from batchline.governance.batch_acts import ActKind, BatchAct
from batchline.governance.errors import Conflict, InvalidSubmission, NotAllowed, NotFound, Refused
from batchline.model import BatchChange, BatchStatus, RetrySelection, Unfinished
from batchline.store import spans as store_spans
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, failed, finalize, read, run_to_the_end, sql, take
from tests.support.governance import (
    ANNA,
    BERT,
    CARLA,
    EMIL,
    FRITZ,
    end_all,
    is_sound,
    now,
    some_rules,
    submit,
)

RULES = some_rules()
CANCEL, PAUSE, RESUME = BatchAct(ActKind.CANCEL), BatchAct(ActKind.PAUSE), BatchAct(ActKind.RESUME)
RETRY, DELETE = BatchAct(ActKind.RETRY), BatchAct(ActKind.DELETE)


async def perform(db: Session, batch_id: UUID, act: BatchAct, actor: Actor = ANNA) -> None:
    await batch_acts.perform(RULES, db, actor, batch_id, act)


def change(**values: object) -> BatchAct:
    return BatchAct(ActKind.CHANGE, change=BatchChange(**values))  # type: ignore[arg-type]


async def audit(db: Session, batch_id: UUID) -> list[tuple[str, str]]:
    """Of an ordinary batch: the actions and their actors."""
    rows = await sql(
        db, "SELECT action, actor FROM batchline.audit_log WHERE batch_id = %(id)s ORDER BY id", id=batch_id
    )
    return [(action, actor) for action, actor in rows]


async def test_an_ordinary_batch_is_paused_resumed_and_cancelled_with_audit_records(db: Session) -> None:
    batch = await a_batch(db, tenant="acme")
    await perform(db, batch.id, PAUSE)
    assert (await read(db, batch)).status is BatchStatus.PAUSED
    await perform(db, batch.id, RESUME, BERT)
    assert (await read(db, batch)).status is BatchStatus.IN_PROGRESS
    await perform(db, batch.id, CANCEL)
    assert (await read(db, batch)).finalizing_at is not None, "it is concluded at once"
    await perform(db, batch.id, CANCEL)
    assert await audit(db, batch.id) == [
        ("batch.paused", "anna"),
        ("batch.resumed", "bert"),
        ("batch.cancelled", "anna"),
    ]
    await is_sound(db)


async def test_an_act_that_does_not_fit_is_refused_and_not_recorded(db: Session) -> None:
    batch = await a_batch(db, tenant="acme")
    for act, code, message in (
        (RESUME, "CANNOT_RESUME", "The batch cannot be resumed: it is in_progress."),
        (RETRY, "BATCH_IN_PROGRESS", "The batch cannot be retried: it is in_progress; wait until"),
        (DELETE, "CANNOT_DELETE", "The batch cannot be deleted: it is in_progress. Cancel it, and wait"),
    ):
        with pytest.raises(Conflict) as refused:
            await perform(db, batch.id, act)
        assert refused.value.code == code
        assert refused.value.message.startswith(message)
    assert await audit(db, batch.id) == []


async def test_batches_of_other_tenants_are_not_found(db: Session) -> None:
    ordinary, governed = await a_batch(db, tenant="acme"), await submit(db, RULES, ANNA)
    for act in (CANCEL, PAUSE, RESUME, RETRY, DELETE, change(priority=1)):
        for batch_id in (ordinary.id, governed.id):
            with pytest.raises(NotFound):
                await perform(db, batch_id, act, FRITZ)
    assert await audit(db, ordinary.id) == []


async def test_a_governed_batch_is_its_submitters_and_the_admins(db: Session) -> None:
    batch = await submit(db, RULES, ANNA)
    for act in (change(priority=1), PAUSE, CANCEL):
        with pytest.raises(NotFound):
            await perform(db, batch.id, act, BERT)
        with pytest.raises(NotAllowed):
            await perform(db, batch.id, act, CARLA)
        await perform(db, batch.id, act, EMIL)
    acts = [action for action, actor in await audit(db, batch.id) if actor == "emil"]
    assert acts == ["batch.changed", "batch.paused", "batch.cancelled"]


async def test_a_governed_batch_is_cancelled_and_retried_by_its_own_rules(db: Session) -> None:
    batch = await submit(db, RULES, ANNA, 2)
    with pytest.raises(Conflict, match="its history is kept"):
        await perform(db, batch.id, DELETE)
    await perform(db, batch.id, CANCEL)
    await end_all(db)
    assert (await now(db, batch)).cancelling_at is not None
    with pytest.raises(Conflict, match="was cancelled"):
        await perform(db, batch.id, RETRY)
    with pytest.raises(Conflict, match="All failed children"):
        await perform(db, batch.id, BatchAct(ActKind.RETRY, RetrySelection(codes=("http_400",))))


async def test_selected_lines_of_an_ended_batch_run_again_with_an_audit_record(db: Session) -> None:
    batch, worker = await a_batch(db, 3, tenant="acme"), a_worker()
    await store_spans.settle(db, worker.id, [failed(item) for item in await take(db, worker)])
    await finalize(db, worker, batch)
    with pytest.raises(InvalidSubmission, match="causes"):
        await perform(db, batch.id, BatchAct(ActKind.RETRY, RetrySelection(causes=("no key",))))
    with pytest.raises(Conflict, match="no line matches"):
        await perform(db, batch.id, BatchAct(ActKind.RETRY, RetrySelection(frozenset({Unfinished.EXPIRED}))))
    await perform(db, batch.id, RETRY)
    assert (await read(db, batch)).counts.pending == 3
    assert await audit(db, batch.id) == [("batch.retried", "anna")]
    await is_sound(db)


async def test_an_ended_batch_is_deleted(db: Session) -> None:
    batch, worker = await a_batch(db, 3, tenant="acme"), a_worker()
    await run_to_the_end(db, worker)
    await finalize(db, worker, batch)
    await perform(db, batch.id, DELETE)
    with pytest.raises(NotFound):
        await perform(db, batch.id, DELETE)
    assert await audit(db, batch.id) == [("batch.deleted", "anna")]


async def test_a_change_names_the_new_values_in_the_audit_log(db: Session) -> None:
    batch = await a_batch(db, tenant="acme")
    deadline = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=5)
    await perform(db, batch.id, change(priority=7, concurrency=3, deadline=deadline))
    changed = await read(db, batch)
    assert (changed.priority, changed.concurrency, changed.expires_at) == (7, 3, deadline)
    await perform(db, batch.id, change(concurrency=None, deadline=None))
    changed = await read(db, batch)
    assert (changed.priority, changed.concurrency, changed.expires_at) == (7, None, None)
    rows = await sql(db, "SELECT detail FROM batchline.audit_log ORDER BY id")
    assert [detail for (detail,) in rows] == [
        {"priority": 7, "concurrency": 3, "deadline": deadline.isoformat()},
        {"concurrency": None, "deadline": None},
    ]


async def test_a_deadline_can_be_given_as_a_time_from_now_on(db: Session) -> None:
    batch = await a_batch(db, tenant="acme", window=None)
    await perform(db, batch.id, change(deadline=3600.0))
    expires_at = (await read(db, batch)).expires_at
    assert expires_at is not None
    assert timedelta(minutes=55) < expires_at - datetime.now(UTC) < timedelta(minutes=65)


async def test_a_change_that_makes_no_sense_is_refused(db: Session) -> None:
    batch = await a_batch(db, tenant="acme")
    for wanted, param in (
        (change(), None),
        (change(priority=101), "priority"),
        (change(concurrency=0), "concurrency"),
        (change(priority=5, deadline=datetime(2020, 1, 1, tzinfo=UTC)), "deadline"),
    ):
        with pytest.raises(InvalidSubmission) as refused:
            await perform(db, batch.id, wanted)
        assert refused.value.param == param
    assert (await read(db, batch)).priority == 0


async def test_a_governed_batch_changes_but_keeps_a_deadline(db: Session) -> None:
    batch = await submit(db, RULES, ANNA)
    await perform(db, batch.id, change(priority=-3, concurrency=1))
    assert (await read(db, batch.id)).priority == -3
    with pytest.raises(InvalidSubmission, match="must have a deadline"):
        await perform(db, batch.id, change(deadline=None))
    await perform(db, batch.id, CANCEL)
    with pytest.raises(Refused, match="was cancelled"):
        await perform(db, batch.id, change(priority=1))
