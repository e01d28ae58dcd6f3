"""Governed batches in steps: samples that are approved, approvals that name what they are for, dry runs."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from batchline.batches.staging import StagingRequest
from batchline.governance import access, changes, decisions, submissions
from batchline.governance.access import Actor
from batchline.governance.errors import Conflict, InvalidSubmission, LimitReached
from batchline.governance.rules import Rules
from batchline.governance.submissions import Submission
from batchline.model import Approval, ChildStatus, GovernedBatch, ParentStatus
from batchline.store import operations, steps
from batchline.store.session import Session
from tests.support.builders import sql
from tests.support.governance import (
    ANNA,
    CARLA,
    DORA,
    EMIL,
    append,
    audited,
    count,
    is_sound,
    items,
    now,
    production,
    some_rules,
    somebody_waits,
    submit,
    work,
)


async def submit_staged(
    db: Session,
    rules: Rules,
    what: int | list[dict[str, Any]],
    *,
    actor: Actor = ANNA,
    hold: bool = False,
    request_id: UUID | None = None,
    **staging: Any,
) -> GovernedBatch:
    chosen = items(what) if isinstance(what, int) else what
    requested = Submission("resize", chosen, request_id, hold=hold, staging=StagingRequest(**staging))
    return (await submissions.submit(rules, db, actor, requested)).batch


async def events(db: Session, batch: GovernedBatch) -> list[str]:
    query = "SELECT type FROM batchline.outbox WHERE batch_id = %(id)s ORDER BY created_at, type"
    return [kind for (kind,) in await sql(db, query, id=batch.id)]


async def digest_of(db: Session, batch: GovernedBatch) -> str:
    """As an approver sees it."""
    found = await access.displayed(db, CARLA, batch.id)
    assert found.decided_digest is not None
    return found.decided_digest


async def step(db: Session, batch: GovernedBatch, failures: set[int] | None = None) -> list[int]:
    """Run what may run, and begin the next step, as a worker does."""
    ran = await work(db, failures=failures or set(), end=False)
    await steps.begin(db, batch.id)
    await is_sound(db)
    return ran


# Steps


async def test_children_run_in_steps(db: Session) -> None:
    batch = await submit_staged(db, some_rules(), 10, steps="1,2,4,...")
    assert [await step(db, batch) for _ in range(4)] == [[1], [2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert (await now(db, batch)).status is ParentStatus.COMPLETED


async def test_a_governed_batch_stops_at_max_failed_and_its_submitter_resumes_it(db: Session) -> None:
    batch = await submit_staged(db, some_rules(), 10, steps="1,2,4,...")
    assert await step(db, batch) == [1]
    assert await step(db, batch, failures={2}) == [2, 3]
    stopped = await now(db, batch)
    assert (stopped.paused_by, stopped.step, stopped.counts.pending) == ("max_failed", 2, 7)
    assert await events(db, batch) == ["batch.paused"]
    assert await work(db, end=False) == []
    resumed = await changes.resume(db, ANNA, batch.id)
    assert (resumed.paused_at, resumed.step) == (None, 3)
    assert await work(db, end=False) == [4, 5, 6, 7]


async def test_no_step_begins_before_the_batch_is_approved_and_released(db: Session) -> None:
    rules = some_rules()
    batch = await submit_staged(db, rules, production(2), hold=True, steps="2", max_failed=1)
    await append(rules, db, ANNA, batch.id, production(3), ["c", "d", "e"])
    await is_sound(db)
    assert await steps.due(db) == []
    assert await steps.begin(db, batch.id) == 0
    await decisions.approve(rules, db, CARLA, batch.id, child_count=5)
    assert await work(db, end=False) == []
    await changes.release(db, ANNA, batch.id)
    assert [await step(db, batch) for _ in range(3)] == [[1, 2], [3, 4], [5]]


async def test_an_approval_begins_the_first_step(db: Session) -> None:
    rules = some_rules()
    batch = await submit_staged(db, rules, production(5), steps="2")
    assert await work(db, end=False) == []
    assert (await decisions.approve(rules, db, CARLA, batch.id)).step == 1
    assert await work(db, end=False) == [1, 2]


@pytest.mark.parametrize(
    ("staging", "param"),
    [
        ({"steps": "1,x"}, "steps"),
        ({"steps": "0"}, "steps"),
        ({"steps": "101%"}, "steps"),
        ({"steps": "4,2,..."}, "steps"),
        ({"steps": "1,10%,..."}, "steps"),
        ({"steps": ","}, "steps"),
        ({"step_pause_seconds": 5.0}, "step_pause_seconds"),
        ({"steps": "1", "max_failed": "many"}, "max_failed"),
        ({"max_failed": "101%"}, "max_failed"),
        ({"sample": 3}, "sample"),
    ],
)
async def test_staging_that_makes_no_sense_is_refused(
    db: Session, staging: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidSubmission) as refused:
        await submit_staged(db, some_rules(), 3, **staging)
    assert refused.value.param == param
    assert await count(db, "batches") == 0


# Samples


async def test_a_sample_waits_for_the_approval_of_its_results(db: Session) -> None:
    rules = some_rules()
    batch = await submit_staged(db, rules, 20, sample=3)
    assert batch.status is ParentStatus.IN_PROGRESS
    ran = await work(db, end=False)
    assert len(ran) == 3
    waiting = await now(db, batch)
    assert (waiting.status, waiting.approval) == (ParentStatus.PENDING_APPROVAL, Approval.PENDING)
    assert (await events(db, batch))[-1] == "batch.approval_requested"
    assert ("batch.sample_ended", "system", None) in await audited(db, batch)
    await is_sound(db)
    # Nobody else can let it go on.
    with pytest.raises(Conflict):
        await changes.resume(db, ANNA, batch.id)
    await changes.pause(db, ANNA, batch.id)
    await changes.resume(db, ANNA, batch.id)
    assert await steps.begin(db, batch.id) == 0
    assert await work(db, end=False) == []

    approved = await decisions.approve(rules, db, CARLA, batch.id, content_digest=await digest_of(db, batch))
    assert (approved.approval, approved.decided_by) == (Approval.APPROVED, "carla")
    rest = await work(db)
    assert sorted([*ran, *rest]) == list(range(1, 21))
    assert (await now(db, batch)).status is ParentStatus.COMPLETED
    assert await events(db, batch) == ["batch.approval_requested", "batch.approved", "batch.completed"]
    await is_sound(db)


async def test_an_approved_batch_waits_again_after_its_sample(db: Session) -> None:
    """The first approval is for what will be done, the second for what came of it."""
    rules = some_rules()
    batch = await submit_staged(db, rules, production(20), sample=3, steps="5", max_failed=3)
    first = await digest_of(db, batch)
    await decisions.approve(rules, db, CARLA, batch.id, content_digest=first)
    assert len(await work(db, end=False)) == 3
    second = await digest_of(db, batch)
    assert first != second, "results have come"
    with pytest.raises(Conflict, match="not what you reviewed"):
        await decisions.approve(rules, db, CARLA, batch.id, content_digest=first)
    await decisions.approve(rules, db, DORA, batch.id, content_digest=second)
    assert [len(await step(db, batch)) for _ in range(4)] == [5, 5, 5, 2]


async def test_a_sample_needs_a_digest_to_be_approved(db: Session) -> None:
    rules = some_rules()
    batch = await submit_staged(db, rules, 20, sample=3)
    await work(db, end=False)
    for seen in (None, 20):
        with pytest.raises(InvalidSubmission, match="content_digest") as refused:
            await decisions.approve(rules, db, CARLA, batch.id, child_count=seen)
        assert refused.value.code == "CONTENT_DIGEST_REQUIRED"
    assert await work(db, end=False) == []


async def test_a_rejected_sample_keeps_its_results_and_nothing_else_runs(db: Session) -> None:
    batch = await submit_staged(db, some_rules(), 20, sample=3)
    await work(db, end=False)
    await decisions.reject(db, CARLA, batch.id, "wrong")
    await is_sound(db)
    ended = await now(db, batch)
    assert (ended.counts.succeeded, ended.counts.cancelled) == (3, 17)
    assert (await events(db, batch))[-1] == "batch.rejected"


async def test_a_sample_that_fails_too_often_is_paused_and_still_needs_its_approval(db: Session) -> None:
    rules = some_rules()
    batch = await submit_staged(db, rules, 20, sample=3, max_failed=0)
    await work(db, failures=set(range(1, 21)), end=False)
    stopped = await now(db, batch)
    assert (stopped.paused_by, stopped.approval) == ("max_failed", Approval.PENDING)
    assert (await changes.resume(db, ANNA, batch.id)).paused_at is None
    assert await work(db, end=False) == [], "it waits for the approval"
    await is_sound(db)
    await decisions.approve(rules, db, CARLA, batch.id, content_digest=await digest_of(db, batch))
    assert len(await work(db, end=False)) == 17


# Digests


async def test_the_digest_names_all_that_will_run(db: Session) -> None:
    rules = some_rules()
    one = await submit_staged(db, rules, production(2))
    same = await submit_staged(db, rules, production(2))
    assert await digest_of(db, one) == await digest_of(db, same)
    others = [
        await submit_staged(db, rules, production(3)),
        await submit_staged(db, rules, [*production(1), {"vm": "vm-2", "env": "production", "cpu": 2}]),
        await submit_staged(db, rules, production(2)[::-1]),
        await submit_staged(db, rules, production(2), steps="1"),
        await submit_staged(db, rules, production(2), max_failed=1),
    ]
    digests = {await digest_of(db, batch) for batch in (one, *others)}
    assert len(digests) == 6


async def test_an_approval_is_void_when_anything_is_added(db: Session) -> None:
    rules = some_rules()
    batch = await submit_staged(db, rules, production(1), hold=True)
    with pytest.raises(InvalidSubmission, match="content_digest"):
        await decisions.approve(rules, db, CARLA, batch.id)
    seen = await digest_of(db, batch)
    approved = await decisions.approve(rules, db, CARLA, batch.id, content_digest=seen)
    assert approved.decided_digest == seen
    # One that needs no approval.
    changed = await append(rules, db, ANNA, batch.id, [{"vm": "another"}], ["late"])
    assert (changed.approval, changed.decided_by, changed.decided_digest) == (Approval.PENDING, None, None)
    await changes.release(db, ANNA, batch.id)
    assert await work(db, end=False) == []
    with pytest.raises(Conflict, match="not what you reviewed"):
        await decisions.approve(rules, db, CARLA, batch.id, content_digest=seen)
    await decisions.approve(rules, db, CARLA, batch.id, content_digest=await digest_of(db, batch))
    assert await work(db) == [1, 2]
    assert (await events(db, batch)).count("batch.approval_requested") == 2
    digests = await sql(
        db,
        "SELECT detail ->> 'content_digest' FROM batchline.audit_log WHERE action = 'batch.approved'"
        " ORDER BY id",
    )
    assert digests[0] == (seen,)
    assert digests[1] != (seen,)


async def test_an_approval_that_waits_for_an_append_is_refused(database_url: str) -> None:
    rules = some_rules()
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        batch = await submit_staged(one, rules, production(1), hold=True)
        seen = await digest_of(one, batch)
        async with operations.changing(one, "acme", batch.id, pending_for="anna") as changing:
            late = asyncio.create_task(decisions.approve(rules, two, CARLA, batch.id, content_digest=seen))
            async with Session(database_url, "watch") as watch:
                await somebody_waits(watch)
            await changing.append(operations.Children(("late",), ('{"vm": "late"}',)), needs_approval=False)
        with pytest.raises(Conflict, match="not what you reviewed"):
            await late
        assert (await now(one, batch)).approval is Approval.PENDING


async def test_an_append_that_waits_for_an_approval_makes_it_void(database_url: str) -> None:
    rules = some_rules()
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        batch = await submit_staged(one, rules, production(1), hold=True)
        async with operations.changing(one, "acme", batch.id) as changing:
            late = asyncio.create_task(append(rules, two, ANNA, batch.id, [{"vm": "late"}], ["late"]))
            async with Session(database_url, "watch") as watch:
                await somebody_waits(watch)
            await changing.decide(Approval.APPROVED, "carla", None, await changing.digest())
            await changing.open()
        assert (await late).approval is Approval.PENDING
        await changes.release(one, ANNA, batch.id)
        assert await work(one, end=False) == []


# Dry runs


async def validate(
    db: Session, rules: Rules, what: list[dict[str, Any]], actor: Actor = ANNA, **more: Any
) -> submissions.Validated:
    return await submissions.validate(rules, db, actor, Submission("resize", what, **more))


async def everything(db: Session) -> dict[str, int]:
    tables = ("files", "lines", "batches", "lanes", "spans", "operation_batches", "outbox", "audit_log")
    return {table: await count(db, table) for table in tables}


async def test_a_dry_run_creates_nothing_and_says_what_would_happen(db: Session) -> None:
    rules = some_rules(cooldown_seconds=3600)
    before = await everything(db)
    staging = StagingRequest(steps="1,2,...", sample=1)
    found = await validate(db, rules, production(3), staging=staging)
    assert (found.child_count, found.approval, found.made) == (3, Approval.PENDING, None)
    assert (await validate(db, rules, items(2))).approval is Approval.NOT_REQUIRED
    assert await everything(db) == before
    await submit(db, rules, ANNA, 3), "no cooldown has begun"


async def test_a_dry_run_is_refused_for_whatever_a_submission_would_be(db: Session) -> None:
    rules = some_rules(user_pending_parents=1)
    with pytest.raises(InvalidSubmission, match="cpu"):
        await validate(db, rules, [{"vm": "a", "cpu": 0}])
    with pytest.raises(InvalidSubmission):
        await validate(db, rules, [])
    await submit(db, rules, ANNA, 1)
    before = await everything(db)
    with pytest.raises(LimitReached):
        await validate(db, rules, items(1))
    assert await everything(db) == before


async def test_a_dry_run_with_the_id_of_a_request_does_not_use_it_up(db: Session) -> None:
    rules, request_id = some_rules(), uuid4()
    assert (await validate(db, rules, items(2), request_id=request_id)).made is None
    batch = await submit(db, rules, ANNA, 2, request_id=request_id)
    replayed = (await validate(db, rules, items(2), request_id=request_id)).made
    assert replayed is not None
    assert replayed.id == batch.id


async def test_children_that_never_started_are_pending_without_an_attempt(db: Session) -> None:
    batch = await submit_staged(db, some_rules(), 10, steps="4", actor=EMIL)
    await step(db, batch, failures={2})
    failed = await operations.children(db, batch.id, status=ChildStatus.FAILED)
    waiting = await operations.children(db, batch.id, status=ChildStatus.PENDING)
    assert [child.sequence_no for child in failed] == [2]
    assert [(child.sequence_no, child.attempt_count) for child in waiting] == [(n, 0) for n in range(5, 11)]
