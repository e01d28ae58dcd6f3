"""Approvals and holds: nobody claims from a batch that waits, one approver wins, appends are exact."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from batchline.governance import changes, decisions
from batchline.governance.access import Actor
from batchline.governance.errors import Conflict, InvalidSubmission, NotAllowed, NotFound, TooLarge
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.model import Approval, ChildCounts, ParentStatus
from batchline.store import batches, doctor, operations
from batchline.store.session import Session
from tests.support.builders import on, sql
from tests.support.governance import (
    ANNA,
    BERT,
    CARLA,
    DORA,
    EMIL,
    FRITZ,
    GENEROUS,
    RESIZE,
    append,
    approve_seen,
    audited,
    count,
    end_all,
    is_sound,
    items,
    now,
    production,
    some_rules,
    somebody_waits,
    submit,
    work,
)

# Approvals


async def test_one_child_that_needs_approval_holds_the_batch(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, items(2) + production())
    assert batch.status is ParentStatus.PENDING_APPROVAL
    assert await work(db) == []
    await is_sound(db)
    approved = await decisions.approve(rules, db, CARLA, batch.id, "looks right")
    assert approved.status is ParentStatus.IN_PROGRESS
    assert (approved.decided_by, approved.decision_reason) == ("carla", "looks right")
    assert await work(db) == [1, 2, 3]
    assert (await now(db, batch)).status is ParentStatus.COMPLETED
    await is_sound(db)


async def test_an_operation_may_always_need_approval(db: Session) -> None:
    batch = await submit(db, some_rules(), EMIL, 1, operation="wipe")
    assert batch.status is ParentStatus.PENDING_APPROVAL


async def test_a_rejection_ends_all_children(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, production(3))
    rejected = await decisions.reject(db, CARLA, batch.id, "not on a Friday")
    assert (rejected.approval, rejected.status) == (Approval.REJECTED, ParentStatus.CANCELLED)
    assert rejected.counts == ChildCounts(cancelled=3)
    assert (rejected.decided_by, rejected.decision_reason) == ("carla", "not on a Friday")
    assert await work(db) == []
    await end_all(db)
    await is_sound(db)
    assert await audited(db, batch) == [
        ("batch.submitted", "anna", None),
        ("batch.rejected", "carla", None),
        ("child.ended", "system", 1),
        ("child.ended", "system", 2),
        ("child.ended", "system", 3),
    ]


@pytest.mark.parametrize("second", ["approve", "reject"])
async def test_of_two_approvers_at_once_one_wins(database_url: str, second: str) -> None:
    """Both have seen it pending: the second waits for the first's commit, and is told."""
    rules = some_rules()
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        batch = await submit(one, rules, ANNA, production())
        async with operations.changing(one, "acme", batch.id) as changing:
            decide = decisions.reject if second == "reject" else partial(decisions.approve, rules)
            late = asyncio.create_task(decide(two, DORA, batch.id))
            async with Session(database_url, "watch") as watch:
                await somebody_waits(watch)
            await changing.decide(Approval.APPROVED, "carla", None, await changing.digest())
            await changing.open()
        with pytest.raises(Conflict, match="approved by carla") as refused:
            await late
        assert refused.value.code == "APPROVAL_NOT_PENDING"
        assert (await now(one, batch)).decided_by == "carla"
        assert await work(one) == [1]


async def test_an_approval_of_what_was_seen_is_none_of_what_was_added_meanwhile(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, production(), hold=True)
    await append(rules, db, ANNA, batch.id, production(2), ["late-1", "late-2"])
    with pytest.raises(Conflict, match="now has 3 children, not 1") as refused:
        await decisions.approve(rules, db, CARLA, batch.id, "as seen", batch.total)
    assert refused.value.code == "BATCH_CHANGED"
    assert (await now(db, batch)).approval is Approval.PENDING
    assert (await decisions.approve(rules, db, CARLA, batch.id, "as seen", 3)).approval is Approval.APPROVED


async def test_many_approvers_at_once_make_one_approval(database_url: str) -> None:
    rules = some_rules()
    sessions = [Session(database_url, f"approver {n}") for n in range(8)]
    batch = await submit(sessions[0], rules, ANNA, production())
    answers = await asyncio.gather(
        *(decisions.approve(rules, session, CARLA, batch.id) for session in sessions),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, Conflict) for answer in answers) == 7
    assert await count(sessions[0], "audit_log", "action = 'batch.approved'") == 1
    for session in sessions:
        await session.close()


@pytest.mark.parametrize("actor", [ANNA, CARLA, EMIL], ids=lambda actor: str(actor.role))
async def test_users_cannot_approve_their_own_submissions(db: Session, actor: Actor) -> None:
    rules = some_rules()
    batch = await submit(db, rules, actor, production())
    with pytest.raises(NotAllowed) as refused:
        await decisions.approve(rules, db, actor, batch.id)
    assert refused.value.code == "PERMISSION_DENIED"
    assert (await now(db, batch)).approval is Approval.PENDING
    assert (await decisions.approve(rules, db, DORA, batch.id)).approval is Approval.APPROVED


async def test_users_cannot_approve_what_they_added_to_anothers_batch(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 1, hold=True)
    await append(rules, db, EMIL, batch.id, production(), ["mine"])
    with pytest.raises(NotAllowed):
        await decisions.approve(rules, db, EMIL, batch.id)
    assert (await approve_seen(rules, db, CARLA, batch.id)).approval is Approval.APPROVED


async def test_an_operation_may_let_approvers_approve_their_own(db: Session) -> None:
    rules = Rules(Registry([replace(RESIZE, self_approval=True)]), GENEROUS)
    for actor in (CARLA, EMIL):
        batch = await submit(db, rules, actor, production())
        assert (await decisions.approve(rules, db, actor, batch.id)).approval is Approval.APPROVED
    batch = await submit(db, rules, ANNA, production())
    with pytest.raises(NotAllowed):
        await decisions.approve(rules, db, ANNA, batch.id)


async def test_there_is_nothing_to_decide_about_what_needs_no_approval_or_is_over(db: Session) -> None:
    rules = some_rules()
    plain = await submit(db, rules, ANNA, 1)
    gone = await submit(db, rules, ANNA, production())
    await changes.cancel(db, ANNA, gone.id)
    for batch in (plain, gone):
        for decide in (partial(decisions.approve, rules), decisions.reject):
            with pytest.raises(Conflict) as refused:
                await decide(db, CARLA, batch.id)
            assert refused.value.code == "APPROVAL_NOT_PENDING"


async def test_neither_resume_nor_release_opens_what_is_not_approved(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, production(), hold=True)
    await changes.pause(db, ANNA, batch.id)
    await changes.resume(db, ANNA, batch.id)
    assert await work(db) == []
    assert not await batches.resume(db, batch.id), "nor does the ordinary resume"
    await changes.release(db, ANNA, batch.id)
    assert await work(db) == []
    await is_sound(db)
    await approve_seen(rules, db, CARLA, batch.id)
    assert await work(db) == [1]


async def test_an_approval_does_not_open_what_is_paused_or_held(db: Session) -> None:
    rules = some_rules()
    paused = await submit(db, rules, ANNA, production())
    await changes.pause(db, ANNA, paused.id)
    held = await submit(db, rules, ANNA, production(2), hold=True)
    for batch in (paused, held):
        await approve_seen(rules, db, CARLA, batch.id)
    assert await work(db) == []
    await is_sound(db)
    await changes.resume(db, ANNA, paused.id)
    assert await work(db) == [1]
    await changes.release(db, ANNA, held.id)
    assert await work(db) == [1, 2]
    await is_sound(db)


# Who may


async def test_other_users_get_404_and_approvers_cannot_change(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, production(), hold=True)
    before = await now(db, batch)

    def acts(actor: Any) -> list[Any]:
        return [
            changes.cancel(db, actor, batch.id),
            changes.pause(db, actor, batch.id),
            changes.resume(db, actor, batch.id),
            changes.release(db, actor, batch.id),
            append(rules, db, actor, batch.id, items(1)),
            changes.retry(rules, db, actor, batch.id),
        ]

    for actor in (BERT, FRITZ):
        for act in [
            *acts(actor),
            approve_seen(rules, db, actor, batch.id),
            decisions.reject(db, actor, batch.id),
        ]:
            with pytest.raises(NotFound):
                await act
    for act in acts(CARLA):
        with pytest.raises(NotAllowed):
            await act
    for decide in (partial(decisions.approve, rules), decisions.reject):
        with pytest.raises(NotAllowed):
            await decide(db, ANNA, batch.id)
    assert await now(db, batch) == before


async def test_an_admin_may_change_every_batch_of_the_tenant(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, production(), hold=True)
    await append(rules, db, EMIL, batch.id, items(1))
    await changes.release(db, EMIL, batch.id)
    await approve_seen(rules, db, DORA, batch.id)
    await changes.pause(db, EMIL, batch.id)
    await changes.resume(db, EMIL, batch.id)
    assert await work(db, failures={1}) == [1, 2]
    await changes.retry(rules, db, EMIL, batch.id)
    assert (await changes.cancel(db, EMIL, batch.id)).user_id == "anna"


# Held batches


async def test_lines_are_appended_to_a_held_batch_until_it_is_released(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 2, hold=True)
    assert await work(db) == []
    assert (await append(rules, db, ANNA, batch.id, items(3))).total == 5
    await is_sound(db)
    released = await changes.release(db, ANNA, batch.id)
    assert not released.held
    again = await changes.release(db, ANNA, batch.id)
    assert again.released_at == released.released_at, "twice is fine, and changes nothing"
    with pytest.raises(Conflict) as refused:
        await append(rules, db, ANNA, batch.id, items(1))
    assert refused.value.code == "CANNOT_APPEND"
    assert await work(db) == [1, 2, 3, 4, 5]
    assert (await now(db, batch)).counts == ChildCounts(succeeded=5)
    await is_sound(db)


async def test_what_is_appended_is_checked_as_what_is_submitted(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 48, hold=True)
    with pytest.raises(InvalidSubmission):
        await append(rules, db, ANNA, batch.id, [{"vm": 7}])
    with pytest.raises(InvalidSubmission, match="'48'"):
        await append(rules, db, ANNA, batch.id, items(1), ["48"])
    with pytest.raises(TooLarge, match="51 items"):
        await append(rules, db, ANNA, batch.id, items(3))
    assert (await append(rules, db, ANNA, batch.id, items(2))).total == 50


@pytest.mark.parametrize("approved", [False, True])
async def test_an_appended_child_that_needs_approval_holds_the_batch(db: Session, approved: bool) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, production() if approved else items(1), hold=True)
    if approved:
        await approve_seen(rules, db, CARLA, batch.id)
    assert (await append(rules, db, ANNA, batch.id, production())).approval is Approval.PENDING
    await changes.release(db, ANNA, batch.id)
    assert await work(db) == []
    await approve_seen(rules, db, CARLA, batch.id)
    assert await work(db) == [1, 2]
    await is_sound(db)


async def test_only_what_was_held_is_released(db: Session) -> None:
    rules = some_rules()
    plain = await submit(db, rules, ANNA, 1)
    gone = await submit(db, rules, ANNA, 1, hold=True)
    await changes.cancel(db, ANNA, gone.id)
    for batch in (plain, gone):
        with pytest.raises(Conflict) as refused:
            await changes.release(db, ANNA, batch.id)
        assert refused.value.code == "CANNOT_RELEASE"


@pytest.mark.parametrize("first", ["append", "release"])
async def test_an_append_that_meets_a_release_is_in_or_is_refused(database_url: str, first: str) -> None:
    """The one is done and not yet committed when the other comes."""
    rules = some_rules()
    async with (
        Session(database_url, "one") as one,
        Session(database_url, "two") as two,
        Session(database_url, "watch") as watch,
    ):
        batch = await submit(one, rules, ANNA, 2, hold=True)
        async with operations.changing(one, "acme", batch.id) as changing:
            if first == "append":
                late: asyncio.Task[Any] = asyncio.create_task(changes.release(two, ANNA, batch.id))
                await somebody_waits(watch)
                await changing.append(operations.Children(("3",), ('{"vm":"c"}',)), False)
            else:
                late = asyncio.create_task(append(rules, two, ANNA, batch.id, items(1)))
                await somebody_waits(watch)
                await changing.release()
                await changing.open()
        if first == "append":
            assert (await late).total == 3
            assert await work(watch) == [1, 2, 3]
        else:
            with pytest.raises(Conflict):
                await late
            assert await work(watch) == [1, 2]
        await is_sound(watch)


async def test_appends_that_race_with_a_release_and_workers_lose_nothing(database_url: str) -> None:
    """Whoever is told that his lines are in has them run, and nobody else's are."""
    rules = some_rules()
    sessions = [Session(database_url, f"appender {n}") for n in range(8)]
    batch = await submit(sessions[0], rules, ANNA, 1, hold=True)
    acts: list[Any] = [append(rules, session, ANNA, batch.id, items(2)) for session in sessions[:4]]
    acts += [changes.release(session, ANNA, batch.id) for session in sessions[4:6]]
    acts += [append(rules, session, ANNA, batch.id, items(3)) for session in sessions[6:]]
    answers = await asyncio.gather(*acts, return_exceptions=True)
    sizes = [2, 2, 2, 2, 0, 0, 3, 3]
    refused = [isinstance(answer, Conflict) for answer in answers]
    accepted = sum(size for size, no in zip(sizes, refused, strict=True) if not no)
    assert not any(refused[4:6])
    done = await work(sessions[0])
    assert sorted(done) == list(range(1, accepted + 2))
    ended = await now(sessions[0], batch)
    assert (ended.total, ended.status) == (accepted + 1, ParentStatus.COMPLETED)
    await is_sound(sessions[0])
    for session in sessions:
        await session.close()


def test_a_downgrade_leaves_held_batches_paused(database_url: str) -> None:
    from batchline.store import migrate

    async def hold(db: Session) -> None:
        await submit(db, some_rules(), ANNA, 2, hold=True)

    async def paused(db: Session) -> list[Any]:
        return await sql(db, "SELECT paused_at IS NOT NULL FROM batchline.batches")

    on(database_url, hold)
    migrate.down(database_url, "0004")
    assert on(database_url, paused) == [(True,)]
    migrate.up(database_url)


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        ("UPDATE batchline.batches SET held_at = NULL; UPDATE batchline.lanes SET open = true", "held"),
        ("UPDATE batchline.operation_batches SET approval = 'not_required'", "held"),
        ("UPDATE batchline.operation_batches SET user_id = 'nobody'", "governed"),
        ("DELETE FROM batchline.operation_batches", "governed"),
        ("UPDATE batchline.operation_batches SET approval = 'rejected', decided_by = 'x'", "rejected"),
    ],
)
async def test_the_doctor_finds_batches_that_run_past_their_rules(
    db: Session, damage: str, check: str
) -> None:
    await submit(db, some_rules(), ANNA, production())
    await is_sound(db)
    await sql(db, damage)
    report = await doctor.examine(db)
    assert check in {finding.check for finding in report.findings}
