"""Actions on all batches that match a filter: each batch is done once, whatever happens to the workers."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from batchline.governance import batch_acts, bulk_actions, keys
from batchline.governance.access import Actor
from batchline.governance.batch_acts import ActKind, BatchAct
from batchline.governance.errors import Conflict, InvalidSubmission, NotAllowed, NotFound
from batchline.model import Batch, Role
from batchline.model.bulk_action import BatchFilter, BulkAction, BulkKind
from batchline.model.ids import new_id
from batchline.store import bulk_actions as store
from batchline.store import spans
from batchline.store.session import Session
from tests.support.builders import (
    ANYTHING,
    a_batch,
    a_worker,
    failed,
    finalize,
    read,
    run_to_the_end,
    sql,
    take,
)
from tests.support.governance import EMIL, FRITZ, is_sound, now, some_rules, submit

RULES = some_rules()
ALL = BatchFilter()


async def an_actor(db: Session, name: str, role: Role = Role.USER, tenant: str = "acme") -> Actor:
    await keys.create(db, name, tenant, role)
    return Actor(tenant, name, role)


async def work_off(db: Session) -> int:
    """As workers do; the number of turns."""
    turns = 0
    while await bulk_actions.continue_one(RULES, db):
        turns += 1
    return turns


async def batches_of(db: Session, count: int, tenant: str = "acme") -> list[Batch]:
    return [await a_batch(db, 2, tenant=tenant) for _ in range(count)]


async def statuses(db: Session, batches: list[Batch]) -> list[str]:
    return [(await read(db, batch)).status.value for batch in batches]


async def ended(db: Session, actor: Actor, action: BulkAction) -> BulkAction:
    return await bulk_actions.find(db, actor, action.id)


async def audited(db: Session) -> list[tuple[str, Any]]:
    rows = await sql(
        db, "SELECT action, detail FROM batchline.audit_log WHERE action LIKE 'action.%%' ORDER BY id"
    )
    return [(action, detail) for action, detail in rows]


async def test_all_batches_that_match_are_paused_and_no_other(db: Session) -> None:
    anna = await an_actor(db, "anna")
    mine, others = await batches_of(db, 3), await batches_of(db, 2, "other")
    action = await bulk_actions.start(db, anna, BulkKind.PAUSE, ALL)
    assert (action.state, action.matching, action.done) == ("running", 3, 0)
    later = await a_batch(db, tenant="acme")
    await work_off(db)
    action = await ended(db, anna, action)
    assert (action.state, action.done, action.failed_count) == ("completed", 3, 0)
    assert await statuses(db, mine) == ["paused"] * 3
    assert await statuses(db, [later, *others]) == ["in_progress"] * 3
    started, finished = await audited(db)
    assert started[0] == "action.started"
    assert started[1]["matching"] == 3
    assert finished[0] == "action.ended"
    assert (finished[1]["done"], finished[1]["refused"]) == (3, 0)
    ((recorded,),) = await sql(
        db, "SELECT count(*) FROM batchline.audit_log WHERE action = 'batch.paused' AND actor = 'anna'"
    )
    assert recorded == 3


async def an_end(db: Session, batch: Batch, fail: bool) -> None:
    worker = a_worker()
    scope = spans.Scope(batch_id=batch.id)
    if fail:
        items = await take(db, worker, scope=scope)
        await spans.settle(db, worker.id, [failed(item) for item in items])
    else:
        await run_to_the_end(db, worker, scope)
    await finalize(db, worker, batch)


async def test_each_action_does_what_it_says_with_open_and_ended_batches(db: Session) -> None:
    anna = await an_actor(db, "anna")
    bad, good, running = await batches_of(db, 3)
    await an_end(db, bad, fail=True)
    await an_end(db, good, fail=False)

    async def done(kind: BulkKind, value: int | None = None) -> tuple[int, list[str]]:
        action = await bulk_actions.start(db, anna, kind, ALL, value)
        await work_off(db)
        action = await ended(db, anna, action)
        return action.done, [reason for _, reason in action.failed]

    count, reasons = await done(BulkKind.PRIORITY, 5)
    assert (count, len(reasons)) == (1, 2)
    assert (await read(db, running)).priority == 5
    count, reasons = await done(BulkKind.RETRY)
    assert count == 1
    assert "The batch cannot be retried: every line is completed." in reasons
    assert await statuses(db, [bad]) == ["in_progress"]
    count, _ = await done(BulkKind.PAUSE)
    assert count == 2
    count, _ = await done(BulkKind.RESUME)
    assert count == 2
    count, _ = await done(BulkKind.CANCEL)
    assert count == 2
    for batch in (bad, running):
        await finalize(db, a_worker(), batch)
    assert (await done(BulkKind.DELETE))[0] == 3
    assert (await bulk_actions.preview(db, anna, ALL)).matching == 0
    await is_sound(db)


async def test_a_filter_matches_what_it_says(db: Session) -> None:
    anna = await an_actor(db, "anna")
    first, second, third = [
        await a_batch(db, {"small": 1}, tenant="acme"),
        await a_batch(db, {"small": 1, "tiny": 1}, tenant="acme"),
        await a_batch(db, {"large": 1}, tenant="acme"),
    ]
    await a_batch(db, {"large": 1}, tenant="other")
    await bulk_actions.start(db, anna, BulkKind.PAUSE, BatchFilter(ids=(third.id,)))
    await work_off(db)
    later = datetime.now(UTC) + timedelta(days=1)
    expected: list[tuple[BatchFilter, set[UUID]]] = [
        (ALL, {first.id, second.id, third.id}),
        (BatchFilter(status=("paused", "completed")), {third.id}),
        (BatchFilter(status=("in_progress",)), {first.id, second.id}),
        (BatchFilter(model="large"), {third.id}),
        (BatchFilter(model="tiny"), {second.id}),
        (BatchFilter(model="none"), set()),
        (BatchFilter(q="INPUT.json"), {first.id, second.id, third.id}),
        (BatchFilter(q="LARGE"), {third.id}),
        (BatchFilter(q="100%_"), set()),
        (BatchFilter(q=f"batch_{first.id.hex}"), {first.id}),
        (BatchFilter(ids=(first.id,)), {first.id}),
        (BatchFilter(ids=(first.id,), status=("cancelled",)), set()),
        (BatchFilter(ids=(new_id(),)), set()),
        (BatchFilter(created_after=second.created_at), {second.id, third.id}),
        (BatchFilter(created_before=second.created_at), {first.id}),
        (BatchFilter(created_after=later), set()),
        (BatchFilter(kind="batch"), {first.id, second.id, third.id}),
        (BatchFilter(kind="operation"), set()),
    ]
    for wanted, batches in expected:
        preview = await bulk_actions.preview(db, anna, wanted)
        assert (set(preview.sample), preview.matching, preview.exact) == (batches, len(batches), True), wanted


async def test_a_preview_tells_what_would_happen_and_changes_nothing(db: Session) -> None:
    anna = await an_actor(db, "anna")
    first, second = await batches_of(db, 2)
    worker = a_worker()
    await take(db, worker, 1, spans.Scope(batch_id=first.id))
    preview = await bulk_actions.preview(db, anna, ALL)
    assert (preview.matching, preview.not_started, preview.in_flight) == (2, 3, 1)
    assert preview.sample == (second.id, first.id)
    assert await statuses(db, [first, second]) == ["in_progress"] * 2
    assert await audited(db) == []


async def test_users_reach_only_their_own_governed_batches(db: Session) -> None:
    anna, bert = await an_actor(db, "anna"), await an_actor(db, "bert")
    carla = await an_actor(db, "carla", Role.APPROVER)
    hers, his = await submit(db, RULES, anna), await submit(db, RULES, bert)
    assert (await bulk_actions.preview(db, anna, ALL)).matching == 1
    assert (await bulk_actions.preview(db, FRITZ, ALL)).matching == 0
    action = await bulk_actions.start(db, carla, BulkKind.PAUSE, ALL)
    await work_off(db)
    action = await ended(db, carla, action)
    assert (action.done, action.failed_count) == (0, 2), "an approver sees them, and may not change them"
    assert {reason for _, reason in action.failed} == {
        "Only the submitter of the batch and admins may do this."
    }
    await bulk_actions.start(db, anna, BulkKind.CANCEL, ALL)
    await work_off(db)
    assert (await now(db, hers)).cancelling_at is not None
    assert (await now(db, his)).cancelling_at is None


async def test_an_action_of_a_user_whose_keys_are_revoked_ends(db: Session) -> None:
    anna = await an_actor(db, "anna")
    made = await batches_of(db, 1)
    action = await bulk_actions.start(db, anna, BulkKind.PAUSE, ALL)
    await sql(db, "UPDATE batchline.api_keys SET revoked_at = now()")
    await work_off(db)
    action = await ended(db, anna, action)
    assert (action.state, action.error) == ("failed", "All API keys of anna with the role user are revoked.")
    assert await statuses(db, made) == ["in_progress"]


async def test_a_cancelled_action_does_no_further_batch(db: Session) -> None:
    anna, bert = await an_actor(db, "anna"), await an_actor(db, "bert")
    made = await batches_of(db, 2)
    action = await bulk_actions.start(db, anna, BulkKind.PAUSE, ALL)
    taken = await store.take(db)
    assert taken is not None
    for other, error in ((bert, NotFound), (FRITZ, NotFound)):
        with pytest.raises(error):
            await bulk_actions.cancel(db, other, action.id)
    carla = await an_actor(db, "carla", Role.APPROVER)
    with pytest.raises(NotAllowed):
        await bulk_actions.cancel(db, carla, action.id)
    cancelled = await bulk_actions.cancel(db, EMIL, action.id)
    assert cancelled.state == "cancelled"
    async with store.step(db, taken.action, 0.0) as step:
        assert step is None, "the worker that has it may not go on"
    await work_off(db)
    assert await statuses(db, made) == ["in_progress"] * 2
    assert (await bulk_actions.cancel(db, anna, action.id)).state == "cancelled", "again changes nothing"
    assert [name for name, _ in await audited(db)] == ["action.started", "action.cancelled"]


async def test_an_action_that_has_ended_cannot_be_cancelled(db: Session) -> None:
    anna = await an_actor(db, "anna")
    action = await bulk_actions.start(db, anna, BulkKind.PAUSE, ALL)
    await work_off(db)
    with pytest.raises(Conflict, match="completed"):
        await bulk_actions.cancel(db, anna, action.id)


async def test_a_worker_that_lost_its_turn_does_nothing_more(db: Session) -> None:
    """Also what it has begun is undone: the other worker does it."""
    anna = await an_actor(db, "anna")
    await batches_of(db, 2)
    action = await bulk_actions.start(db, anna, BulkKind.PAUSE, ALL)
    lost = await store.take(db)
    assert lost is not None
    await sql(db, "UPDATE batchline.bulk_actions SET due_at = now()")
    await work_off(db)
    async with store.step(db, lost.action, 0.0) as step:
        assert step is None
    await store.give_way(db, lost.action)
    action = await ended(db, anna, action)
    assert (action.done, action.failed_count) == (2, 0)


async def test_an_act_that_is_not_committed_is_not_counted(db: Session) -> None:
    """As when the worker is killed between the act and its commit."""
    anna = await an_actor(db, "anna")
    made = await batches_of(db, 1)
    action = await bulk_actions.start(db, anna, BulkKind.PAUSE, ALL)
    taken = await store.take(db)
    assert taken is not None

    async def killed() -> None:
        async with store.step(db, taken.action, 0.0) as step:
            assert step is not None
            act = BatchAct(ActKind.PAUSE)
            await batch_acts.within(RULES, step.connection, anna, made[0], act)
            await step.advance(made[0].id, made[0].created_at, None)
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        await killed()
    assert await statuses(db, made) == ["in_progress"]
    assert not await work_off(db), "until its turn is over"
    await sql(db, "UPDATE batchline.bulk_actions SET due_at = now()")
    await work_off(db)
    action = await ended(db, anna, action)
    assert (action.state, action.done) == ("completed", 1)


async def test_two_workers_do_each_batch_once(db: Session, database_url: str) -> None:
    anna = await an_actor(db, "anna")
    made = await batches_of(db, 30)
    started = [await bulk_actions.start(db, anna, BulkKind.PRIORITY, ALL, value) for value in (1, 2, 3)]

    async def worker() -> None:
        async with Session(database_url, "worker") as session:
            await work_off(session)

    async with asyncio.timeout(120):
        await asyncio.gather(worker(), worker(), worker())
        await sql(db, "UPDATE batchline.bulk_actions SET due_at = now() WHERE ended_at IS NULL")
        await work_off(db)
    for action in started:
        now_ended = await ended(db, anna, action)
        assert (now_ended.state, now_ended.done, now_ended.failed_count) == ("completed", len(made), 0)
    ((changes,),) = await sql(db, "SELECT count(*) FROM batchline.audit_log WHERE action = 'batch.changed'")
    assert changes == 3 * len(made)


async def test_actions_take_turns(db: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_actions, "_CHUNK", 2)
    anna, fritz = await an_actor(db, "anna"), await an_actor(db, "fritz", tenant="other")
    await batches_of(db, 6)
    await batches_of(db, 1, "other")
    large = await bulk_actions.start(db, anna, BulkKind.PAUSE, ALL)
    small = await bulk_actions.start(db, fritz, BulkKind.PAUSE, ALL)
    for _ in range(2):
        assert await bulk_actions.continue_one(RULES, db)
    assert ((await ended(db, anna, large)).done, (await ended(db, fritz, small)).done) == (2, 1)


async def test_an_unexpected_error_of_one_batch_does_not_stop_the_others(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = await an_actor(db, "anna")
    bad, good = await batches_of(db, 2)
    true_within = batch_acts.within

    async def within(rules: Any, connection: Any, actor: Any, batch: Batch, act: Any) -> None:
        if batch.id == bad.id:
            async with connection.transaction():
                await connection.execute("SELECT 1 / 0")
        await true_within(rules, connection, actor, batch, act)

    monkeypatch.setattr(batch_acts, "within", within)
    action = await bulk_actions.start(db, anna, BulkKind.PAUSE, ALL)
    await work_off(db)
    action = await ended(db, anna, action)
    assert (action.done, action.failed_count) == (1, 1)
    assert await statuses(db, [bad, good]) == ["in_progress", "paused"]


async def test_an_action_that_makes_no_sense_is_refused(db: Session) -> None:
    refused: list[tuple[BulkKind, BatchFilter, int | None, str]] = [
        (BulkKind.PRIORITY, ALL, None, "value"),
        (BulkKind.PAUSE, ALL, 3, "value"),
        (BulkKind.PRIORITY, ALL, 101, "value"),
        (BulkKind.PAUSE, BatchFilter(status=("gone",)), None, "filter.status"),
        (BulkKind.PAUSE, BatchFilter(ids=()), None, "filter.ids"),
        (BulkKind.PAUSE, BatchFilter(ids=tuple(UUID(int=n) for n in range(101))), None, "filter.ids"),
    ]
    for kind, wanted, value, param in refused:
        with pytest.raises(InvalidSubmission) as error:
            await bulk_actions.start(db, EMIL, kind, wanted, value)
        assert error.value.param == param


async def test_a_tenant_has_a_bounded_number_of_running_actions(db: Session) -> None:
    for _ in range(20):
        await bulk_actions.start(db, EMIL, BulkKind.PAUSE, ALL)
    with pytest.raises(Conflict, match="20 actions are running"):
        await bulk_actions.start(db, EMIL, BulkKind.PAUSE, ALL)
    await bulk_actions.start(db, FRITZ, BulkKind.PAUSE, ALL)


async def test_users_list_their_own_actions_and_others_all_of_the_tenant(db: Session) -> None:
    anna, bert = await an_actor(db, "anna"), await an_actor(db, "bert")
    first = await bulk_actions.start(db, anna, BulkKind.PAUSE, ALL)
    second = await bulk_actions.start(db, bert, BulkKind.RESUME, BatchFilter(status=("paused",)))
    assert [each.id for each in await bulk_actions.page(db, anna, limit=10)] == [first.id]
    listed = await bulk_actions.page(db, EMIL, limit=10)
    assert [each.id for each in listed] == [second.id, first.id]
    assert listed[0].filter == BatchFilter(status=("paused",))
    assert [each.id for each in await bulk_actions.page(db, EMIL, limit=1, after=second.id)] == [first.id]
    assert await bulk_actions.page(db, FRITZ, limit=10) == []


async def test_actions_that_ended_long_ago_are_forgotten(db: Session) -> None:
    action = await bulk_actions.start(db, EMIL, BulkKind.PAUSE, ALL)
    await bulk_actions.cancel(db, EMIL, action.id)
    await store.forget(db, timedelta(days=30))
    assert len(await bulk_actions.page(db, EMIL, limit=10)) == 1
    await sql(db, "UPDATE batchline.bulk_actions SET ended_at = now() - interval '31 days'")
    await store.forget(db, timedelta(days=30))
    assert await bulk_actions.page(db, EMIL, limit=10) == []


async def test_a_poll_sees_an_action_only_while_there_is_one(db: Session) -> None:
    worker = a_worker()
    assert not (await spans.poll(db, worker.id, ANYTHING)).actions_due
    action = await bulk_actions.start(db, EMIL, BulkKind.PAUSE, ALL)
    assert (await spans.poll(db, worker.id, ANYTHING)).actions_due
    await store.take(db)
    result = await spans.poll(db, worker.id, ANYTHING)
    assert not result.actions_due, "another worker has it"
    assert result.next_due is not None
    assert result.next_due <= store.LEASE.total_seconds()
    await bulk_actions.cancel(db, EMIL, action.id)
    assert not (await spans.poll(db, worker.id, ANYTHING)).actions_due
