"""Changes of a governed batch: cancel, pause, resume, append, release, retry.

Each holds the lock on the batch's row from before its first check until it commits.
"""

from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

from batchline.batches.creation import window_seconds
from batchline.governance import limits, preparation
from batchline.governance.access import Actor, changing, check_submitter, reload, visible
from batchline.governance.errors import Conflict, InvalidSubmission
from batchline.governance.preparation import Prepared, too_many
from batchline.governance.rules import Rules
from batchline.model import BatchChange, GovernedBatch
from batchline.store import batches, steps
from batchline.store.session import Session


async def cancel(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    """Finish the children in flight and run no others. Repeating it changes nothing."""
    await close(session, actor, batch_id)
    await batches.conclude(session, batch_id)
    return await reload(session, actor, batch_id)


async def close(session: Session, actor: Actor, batch_id: UUID) -> None:
    """The first part of a cancel. The caller must run `conclude` once this is committed."""
    async with changing(session, actor, batch_id) as held:
        if held.batch.cancelling_at is None:
            if not await held.close("cancel", actor.user):
                raise _cannot("cancel", held.batch)
            await held.audit(actor.event("batch.cancelled", held.batch))


async def change(
    session: Session, actor: Actor, batch_id: UUID, wanted: BatchChange, **detail: Any
) -> GovernedBatch:
    """Another priority, concurrency or deadline."""
    async with changing(session, actor, batch_id) as held:
        if is_closing(held.batch):
            raise Conflict(f"The batch cannot be changed: it {state(held.batch)}.", code="CANNOT_CHANGE")
        if wanted.deadline is None:
            raise InvalidSubmission("A governed batch must have a deadline.", param="deadline")
        if not await held.change(wanted):
            raise InvalidSubmission("The deadline must be in the future.", param="deadline")
        await held.audit(actor.event("batch.changed", held.batch, **detail))
    return await reload(session, actor, batch_id)


async def pause(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    async with changing(session, actor, batch_id) as held:
        if not await held.close("pause", actor.user):
            raise _cannot("pause", held.batch)
        await held.audit(actor.event("batch.paused", held.batch))
    return await reload(session, actor, batch_id)


async def resume(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    """End a pause. The batch runs unless it also waits for an approval or a release."""
    await end_pause(session, actor, batch_id)
    await steps.begin_part(session, batch_id)
    return await reload(session, actor, batch_id)


async def end_pause(session: Session, actor: Actor, batch_id: UUID) -> None:
    """The first part of a resume. The caller must begin the next step once this is committed."""
    async with changing(session, actor, batch_id) as held:
        if not await held.resume():
            raise Conflict("The batch is not paused.", code="CANNOT_RESUME")
        await held.audit(actor.event("batch.resumed", held.batch))


async def permit_append(rules: Rules, session: Session, actor: Actor, batch: GovernedBatch) -> None:
    """Refuse new children of an actor who may not submit the operation, before they are looked at."""
    await check_submitter(session, actor, rules.operation(batch.operation), "append", batch)


async def prepare_append(
    rules: Rules,
    actor: Actor,
    batch: GovernedBatch,
    items: Sequence[Any],
    custom_ids: Sequence[str] | None = None,
) -> Prepared:
    """Check and encode new children. This may take long and needs no session. Before it: `permit_append`."""
    operation = rules.operation(batch.operation)
    return await rules.preparing.run(
        actor.tenant, lambda schema_faults: preparation.prepare(operation, items, custom_ids, schema_faults)
    )


async def append(
    rules: Rules, session: Session, actor: Actor, batch: GovernedBatch, prepared: Prepared
) -> GovernedBatch:
    """Add children to a held batch. If one needs approval, the batch waits for approval. An approval that was
    given before is void: it was for less."""
    operation = rules.operation(batch.operation)
    added = len(prepared.bodies)
    async with changing(session, actor, batch.id, pending_for=batch.user_id) as held:
        now = held.batch
        if not now.held or is_closing(now):
            raise Conflict(
                "Only a held batch takes more items, and this one is not held.", code="CANNOT_APPEND"
            )
        if now.total + added > operation.largest_batch:
            raise too_many(operation, now.total + added)
        limits.check(rules.limits, held.measured, children=added, held=now.total, parents=0)
        children = prepared.children(first=now.total + 1)
        if taken := await held.taken(children.custom_ids):
            raise InvalidSubmission(
                f"The batch already has a child with custom_id {taken[0][:64]!r}.", param="custom_ids"
            )
        await held.append(children, prepared.needs_approval)
        await held.audit(
            actor.event(
                "batch.appended",
                now,
                child_count=added,
                items=prepared.displayed,
                needs_approval=prepared.needs_approval,
            )
        )
    return await reload(session, actor, batch.id)


async def release(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    """End the hold: the batch runs when it is approved or needs no approval. Repeating it changes nothing."""
    async with changing(session, actor, batch_id) as held:
        now = held.batch
        if now.held:
            if is_closing(now):
                raise _cannot("release", now)
            await held.release()
            await held.open()
            await held.audit(actor.event("batch.released", now, child_count=now.total))
        elif now.released_at is None:
            raise Conflict("The batch was not submitted with hold.", code="CANNOT_RELEASE")
    await steps.begin_part(session, batch_id)
    return await reload(session, actor, batch_id)


async def retry(rules: Rules, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    """Run failed children again if they have attempts left. Only submitters of the operation may do this."""
    batch = await visible(session, actor, batch_id)
    operation = rules.operation(batch.operation)
    await check_submitter(session, actor, operation, "retry", batch)
    async with changing(session, actor, batch_id, pending_for=batch.user_id) as held:
        now = held.batch
        _check_retry(now)
        children = await held.retry(operation.max_attempts, window_seconds(rules.window))
        if children == 0:
            raise Conflict(
                f"All {now.failed} failed children have used their {operation.max_attempts} attempts.",
                code="RETRY_LIMIT_REACHED",
            )
        limits.check_retried(rules.limits, held.measured, children)
        await held.audit(actor.event("batch.retried", now, child_count=children))
    return await reload(session, actor, batch_id)


def _check_retry(now: GovernedBatch) -> None:
    if now.counts.pending:
        if now.retries:
            raise Conflict("A retry is already running.", code="RETRY_IN_PROGRESS")
        raise Conflict("The batch is still in progress.", code="BATCH_IN_PROGRESS")
    if now.cancelling_at is not None or now.expiring_at is not None:
        raise Conflict(f"The batch cannot be retried: it {state(now)}.", code="BATCH_CANCELLED")
    if now.purging_at is not None:
        raise Conflict(
            f"The batch cannot be retried: its children were deleted on {now.purging_at:%Y-%m-%d},"
            " when its retention time ended.",
            code="BATCH_CLEARED",
        )
    if now.failed == 0:
        raise Conflict("No child has failed.", code="NOTHING_TO_RETRY")
    if now.ended_at is None:
        raise Conflict(
            "The batch is still writing its files. Try again in a second.", code="BATCH_FINALIZING"
        )


def is_closing(batch: GovernedBatch) -> bool:
    return any((batch.finalizing_at, batch.cancelling_at, batch.expiring_at))


def state(batch: GovernedBatch) -> str:
    """Why the batch cannot be changed, as the end of a sentence about it."""
    if batch.cancelling_at is not None:
        return "was cancelled"
    if batch.expiring_at is not None:
        return "is past its deadline"
    if batch.finalizing_at is not None:
        return "has ended"
    return "is already paused" if batch.paused_at is not None else "is in progress"


def _cannot(act: Literal["cancel", "pause", "release"], batch: GovernedBatch) -> Conflict:
    done = {"cancel": "cancelled", "pause": "paused", "release": "released"}[act]
    return Conflict(f"The batch cannot be {done}: it {state(batch)}.", code=f"CANNOT_{act.upper()}")
