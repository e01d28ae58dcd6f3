"""Submission: all or nothing, once for each request_id, and what its parent says of its children."""

import asyncio
import itertools
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from msgspec.structs import replace

from batchline.governance import changes, decisions, submissions
from batchline.governance.access import page
from batchline.governance.errors import InvalidSubmission, LimitReached, NotFound, RequestIdReused, TooLarge
from batchline.governance.submissions import Submission
from batchline.model import Approval, Child, ChildCounts, ChildStatus, GovernedBatch, ParentStatus
from batchline.store import batches, files, operations, spans
from batchline.store.pool import Sessions
from batchline.store.session import Session
from tests.support.builders import a_worker, complete, kill, overrun, sql, take
from tests.support.governance import (
    ANNA,
    BERT,
    CARLA,
    EMIL,
    audited,
    count,
    end_all,
    is_sound,
    items,
    now,
    production,
    some_rules,
    submit,
    work,
)

TABLES = ("files", "file_lanes", "lines", "batches", "lanes", "operation_batches", "audit_log")

# A submission


async def test_a_submission_is_an_ordinary_batch_that_any_worker_runs(db: Session) -> None:
    batch = await submit(db, some_rules(), ANNA, items(3), reason="more room")
    assert (batch.user_id, batch.operation, batch.reason) == ("anna", "resize", "more room")
    assert batch.status is ParentStatus.IN_PROGRESS
    assert batch.approval is Approval.NOT_REQUIRED
    taken = await take(db, a_worker())
    assert [(item.custom_id, item.body) for item in taken] == [
        (b"%d" % n, b'{"vm":"vm-%d"}' % n) for n in (1, 2, 3)
    ]
    assert {(item.claim.model, item.claim.url) for item in taken} == {("resize", "/operations/resize")}
    assert taken[0].claim.settings.max_attempts == 3
    await is_sound(db)


async def test_several_workers_share_one_batch_and_each_child_ends_once(db: Session) -> None:
    batch = await submit(db, some_rules(), ANNA, 10)
    anna, bert = a_worker("one"), a_worker("two")
    first, second = await take(db, anna, 5), await take(db, bert, 5)
    assert {item.line_no for item in first} | {item.line_no for item in second} == set(range(1, 11))
    await kill(db, anna)
    again = await take(db, bert, 5)
    assert {item.line_no for item in again} == {item.line_no for item in first}
    await complete(db, bert, again + second)
    late = await spans.settle(db, anna.id, [])
    assert late == []
    assert (await now(db, batch)).counts == ChildCounts(succeeded=10)
    await end_all(db)
    await is_sound(db)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("what", ["plain", "approval", "hold"])
async def test_a_failure_at_any_step_leaves_nothing(db: Session, table: str, what: str) -> None:
    rules = some_rules(user_pending_parents=1, cooldown_seconds=120)
    before = [await count(db, each) for each in TABLES]
    await sql(
        db,
        f"""
            CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
            CREATE TRIGGER fail AFTER INSERT ON batchline.{table} FOR EACH ROW EXECUTE FUNCTION fail();
            """,
    )
    requested: Any = production(2) if what == "approval" else items(2)
    request_id = uuid4()
    with pytest.raises(psycopg.errors.RaiseException):
        await submit(db, rules, ANNA, requested, request_id=request_id, hold=what == "hold")
    assert [await count(db, each) for each in TABLES] == before
    await sql(db, f"DROP TRIGGER fail ON batchline.{table}")
    batch = await submit(db, rules, ANNA, requested, request_id=request_id, hold=what == "hold")
    assert batch.total == 2, "neither a limit nor the request_id was used up"
    await is_sound(db)


async def test_one_wrong_item_refuses_all(db: Session) -> None:
    rules = some_rules()
    for wrong in ({}, {"vm": 7}, {"vm": "a", "cpu": 0}, {"vm": "a", "colour": "red"}, "vm", None):
        with pytest.raises(InvalidSubmission, match=r"items\[1\]"):
            await submit(db, rules, ANNA, [{"vm": "ok"}, wrong, {"vm": "ok"}])  # type: ignore[list-item]
    assert await count(db, "batches") == 0
    assert await count(db, "limit_subjects") == 1


async def test_a_refusal_shows_no_secret(db: Session) -> None:
    with pytest.raises(InvalidSubmission) as refused:
        await submit(db, some_rules(), ANNA, [{"vm": "a", "password": 1234567}, {"vm": "a", "pin": 99}])
    assert "1234567" not in refused.value.message
    assert "99" not in refused.value.message


async def test_an_empty_batch_a_too_large_one_and_an_unknown_operation_are_refused(db: Session) -> None:
    rules = some_rules()
    with pytest.raises(InvalidSubmission, match="at least one"):
        await submit(db, rules, ANNA, [])
    with pytest.raises(TooLarge, match="51 items; resize allows at most 50"):
        await submit(db, rules, ANNA, 51)
    with pytest.raises(NotFound, match="no operation 'paint'"):
        await submit(db, rules, ANNA, 1, operation="paint")


async def test_children_may_have_names_of_the_callers_choosing(db: Session) -> None:
    rules = some_rules()
    requested = Submission("resize", items(2), custom_ids=("web", "db"))
    batch = (await submissions.submit(rules, db, ANNA, requested)).batch
    found = await operations.children(db, batch.id, after=0, limit=10)
    assert [(child.sequence_no, child.custom_id) for child in found] == [(1, "web"), (2, "db")]
    for names in (("web",), ("web", "web"), ("web", "")):
        with pytest.raises(InvalidSubmission):
            await submissions.submit(rules, db, ANNA, Submission("resize", items(2), custom_ids=names))


# request_id


async def test_a_replay_returns_the_batch_of_the_first_and_its_status_now(db: Session) -> None:
    rules, request_id = some_rules(), uuid4()

    async def replay() -> GovernedBatch:
        requested = Submission("resize", production(2), request_id)
        submitted = await submissions.submit(rules, db, ANNA, requested)
        assert submitted.replayed is (await count(db, "audit_log", "action = 'batch.submitted'") == 1)
        return submitted.batch

    first = (await submissions.submit(rules, db, ANNA, Submission("resize", production(2), request_id))).batch
    assert (await replay()).status is ParentStatus.PENDING_APPROVAL
    await decisions.approve(rules, db, CARLA, first.id)
    assert (await replay()).status is ParentStatus.IN_PROGRESS
    worker = a_worker()
    (held,) = await take(db, worker, 1)
    await changes.cancel(db, ANNA, first.id)
    during = await replay()
    assert during.cancelling_at is not None
    assert during.status is ParentStatus.IN_PROGRESS, "one child is still in flight"
    await complete(db, worker, [held])
    await batches.conclude(db, first.id)
    assert (await replay()).counts == ChildCounts(succeeded=1, cancelled=1)
    await end_all(db)
    after = await replay()
    assert (after.id, after.status) == (first.id, ParentStatus.COMPLETED)
    assert await count(db, "operation_batches") == 1


async def test_a_replay_is_answered_also_when_over_the_limit_and_when_it_would_be_invalid_now(
    db: Session,
) -> None:
    rules, request_id = some_rules(user_pending_parents=1, cooldown_seconds=120), uuid4()
    batch = await submit(db, rules, ANNA, 3, request_id=request_id)
    strict = some_rules(user_pending_children=1, max_pending_parents=1)
    assert (await submit(db, strict, ANNA, 3, request_id=request_id)).id == batch.id
    with pytest.raises(LimitReached):
        await submit(db, rules, ANNA, 3)


async def test_the_same_request_id_with_another_payload_is_refused(db: Session) -> None:
    rules, request_id = some_rules(), uuid4()
    await submit(db, rules, ANNA, 3, request_id=request_id)
    for other in (items(2), items(3, cpu=2)):
        with pytest.raises(RequestIdReused):
            await submit(db, rules, ANNA, other, request_id=request_id)
    with pytest.raises(RequestIdReused):
        await submit(db, rules, ANNA, 3, request_id=request_id, hold=True)


async def test_a_request_id_is_one_users_and_one_operations(db: Session) -> None:
    rules, request_id = some_rules(), uuid4()
    made = [
        await submit(db, rules, ANNA, 3, request_id=request_id),
        await submit(db, rules, BERT, 2, request_id=request_id),
        await submit(db, rules, ANNA, 1, request_id=request_id, operation="wipe"),
    ]
    assert len({batch.id for batch in made}) == 3


async def test_two_tenants_can_use_the_same_request_id(db: Session) -> None:
    """Also when users of the same name send it again."""
    rules, request_id = some_rules(), uuid4()
    namesakes = [ANNA, replace(ANNA, tenant="other")]
    made = [await submit(db, rules, anna, 3, request_id=request_id) for anna in namesakes]
    again = [await submit(db, rules, anna, 3, request_id=request_id) for anna in namesakes]
    assert [batch.id for batch in again] == [batch.id for batch in made]
    assert [batch.tenant for batch in again] == ["acme", "other"]
    assert made[0].id != made[1].id


@pytest.mark.parametrize("limit", [1, 1000])
async def test_one_request_id_from_fifty_connections_makes_one_batch(
    database_url: str, db: Session, limit: int
) -> None:
    """Also where the first of them takes the last place."""

    async def run() -> list[tuple[UUID, bool]]:
        rules = some_rules(user_pending_parents=limit, cooldown_seconds=120 if limit == 1 else 0)
        sessions = Sessions(database_url, maximum=50, patience=60)
        requested = Submission("resize", items(4), uuid4())

        async def one() -> tuple[UUID, bool]:
            async with sessions.one() as session:
                submitted = await submissions.submit(rules, session, ANNA, requested)
                return submitted.batch.id, submitted.replayed

        try:
            return await asyncio.gather(*(one() for _ in range(50)))
        finally:
            await sessions.close()

    answers = await run()
    assert len({batch_id for batch_id, _ in answers}) == 1
    assert [replayed for _, replayed in answers].count(False) == 1
    assert await count(db, "batches") == 1
    assert await count(db, "lines") == 4
    assert await count(db, "audit_log") == 1


# The parent's status


def test_every_combination_of_children_has_one_answer_and_adds_up() -> None:
    for pending, succeeded, failed, cancelled in itertools.product(range(3), repeat=4):
        counts = ChildCounts(pending, succeeded, failed, cancelled)
        if counts.total == 0:
            continue
        assert counts.total == pending + succeeded + failed + cancelled
        for approval in Approval:
            status = counts.status(approval)
            if pending:
                waits = approval is Approval.PENDING
                assert status is (ParentStatus.PENDING_APPROVAL if waits else ParentStatus.IN_PROGRESS)
            elif not succeeded and not failed:
                assert status is ParentStatus.CANCELLED
            elif not failed:
                assert status is ParentStatus.COMPLETED
            elif not succeeded:
                assert status is ParentStatus.FAILED
            else:
                assert status is ParentStatus.PARTIAL_SUCCESS


async def test_children_end_one_by_one_and_the_parent_follows(db: Session) -> None:
    batch = await submit(db, some_rules(), ANNA, 4)
    seen = []
    for _ in range(4):
        await work(db, failures={2}, limit=1)
        current = await now(db, batch)
        assert current.counts.total == 4
        seen.append((current.status, current.counts.pending))
    assert seen == [
        (ParentStatus.IN_PROGRESS, 3),
        (ParentStatus.IN_PROGRESS, 2),
        (ParentStatus.IN_PROGRESS, 1),
        (ParentStatus.PARTIAL_SUCCESS, 0),
    ]
    found = await operations.children(db, batch.id, after=0, limit=10)
    assert [child.status for child in found] == [
        ChildStatus.SUCCEEDED,
        ChildStatus.FAILED,
        ChildStatus.SUCCEEDED,
        ChildStatus.SUCCEEDED,
    ]
    assert [child.attempt_count for child in found] == [1] * 4
    await is_sound(db)


async def test_one_failed_child_of_one_is_a_failed_parent(db: Session) -> None:
    batch = await submit(db, some_rules(), ANNA, 1)
    await work(db, failures={1})
    assert (await now(db, batch)).status is ParentStatus.FAILED


async def test_children_that_ran_into_the_deadline_are_cancelled(db: Session) -> None:
    batch = await submit(db, some_rules(), ANNA, 2)
    await overrun(db, batch.id)
    await batches.close(db, batch.id, "expire")
    current = await now(db, batch)
    assert (current.counts, current.status) == (ChildCounts(cancelled=2), ParentStatus.CANCELLED)


async def test_children_come_in_pages(db: Session) -> None:
    batch = await submit(db, some_rules(), ANNA, 7)
    await work(db, limit=2)
    await take(db, a_worker(), 2)
    found: list[Child] = []
    while more := await operations.children(
        db, batch.id, after=found[-1].sequence_no if found else 0, limit=3
    ):
        found += more
    assert [child.sequence_no for child in found] == list(range(1, 8))
    states = [child.status.value for child in found]
    assert states == ["SUCCEEDED"] * 2 + ["RUNNING"] * 2 + ["PENDING"] * 3
    assert [child.attempt_count for child in found] == [1, 1, 1, 1, 0, 0, 0]


# Cancel, pause, resume


async def test_a_paused_batch_is_not_claimed_from_until_it_is_resumed(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 2)
    await changes.pause(db, ANNA, batch.id)
    assert await work(db) == []
    await is_sound(db)
    await changes.resume(db, ANNA, batch.id)
    assert await work(db) == [1, 2]
    assert [action for action, _, _ in await audited(db, batch)] == [
        "batch.submitted",
        "batch.paused",
        "batch.resumed",
        "child.ended",
        "child.ended",
    ]


async def test_a_cancelled_batch_keeps_what_is_finished(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 5)
    await work(db, limit=2, failures={2})
    first = await changes.cancel(db, ANNA, batch.id)
    assert first.counts == ChildCounts(succeeded=1, failed=1, cancelled=3)
    assert first.status is ParentStatus.PARTIAL_SUCCESS
    assert (await changes.cancel(db, ANNA, batch.id)).counts == first.counts, "again: the same"
    await end_all(db)
    await is_sound(db)


# Who sees it


async def test_ordinary_routes_do_not_show_governed_batches_and_their_files(db: Session) -> None:
    """They show a tenant's things to all its keys; these are one user's."""
    batch = await submit(db, some_rules(), ANNA, 2)
    await work(db, failures={1})
    assert await batches.of_tenant(db, "acme", batch.id) is None
    assert await batches.list_newest(db, "acme", limit=10) == []
    assert await files.page(db, "acme", limit=10) == []
    for (file_id,) in await sql(db, "SELECT id FROM batchline.files"):
        assert await files.visible(db, "acme", file_id) is None
        assert not await files.delete(db, "acme", file_id)
    assert await count(db, "files", "purpose = 'operation_output'") == 2


async def test_users_list_their_own_batches_and_approvers_all_of_their_tenant(db: Session) -> None:
    rules = some_rules()
    made = [await submit(db, rules, actor, 1) for actor in (ANNA, BERT, ANNA)]
    newest = [batch.id for batch in reversed(made)]
    assert [batch.id for batch in await page(db, ANNA, limit=10)] == [newest[0], newest[2]]
    for actor in (CARLA, EMIL):
        assert [batch.id for batch in await page(db, actor, limit=10)] == newest
    first = await page(db, CARLA, limit=2)
    rest = await page(db, CARLA, limit=2, after=first[-1].id)
    assert [batch.id for batch in (*first, *rest)] == newest
    assert await operations.page(db, "other", limit=10) == []


async def test_a_status_waits_for_no_lock(database_url: str, db: Session) -> None:
    """Neither for who changes the batch right now nor for who submits."""
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 2)
    async with operations.changing(db, "acme", batch.id, pending_for="anna") as changing:
        await changing.close("pause", "anna")
        # Otherwise the database ends a transaction that is idle for 10 s, and a waiting reader gets its lock.
        await changing._connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        async with Session(database_url, "reader", timeout=20) as reader:
            assert (await now(reader, batch)).paused_at is None
            assert len(await operations.children(reader, batch.id, after=0, limit=10)) == 2
            assert len(await page(reader, ANNA, limit=10)) == 1
