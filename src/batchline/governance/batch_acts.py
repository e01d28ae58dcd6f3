"""Acts on any batch of a tenant, ordinary or governed: cancel, pause, resume, retry, delete, and changes of a
batch that runs.

Each act and its audit record are one transaction. An act that is within another transaction, as part of an
action on many batches, is all or nothing together with it (`within`).
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from batchline.batches.retry import BatchGone, InvalidSelection, NotRetryable
from batchline.batches.retry import retry as retry_lines
from batchline.governance import changes
from batchline.governance.access import Actor
from batchline.governance.errors import Conflict, InvalidSubmission, NotFound
from batchline.governance.rules import Rules
from batchline.model import (
    MAX_CONCURRENCY,
    MAX_PRIORITY,
    MIN_PRIORITY,
    Batch,
    BatchChange,
    RetrySelection,
)
from batchline.store import audit, batches, deletion, operations, steps
from batchline.store.audit import AuditEvent
from batchline.store.batches import OrdinaryChange
from batchline.store.session import InTransaction, Session, StoreConnection

_DONE = {"cancel": "cancelled", "pause": "paused", "resume": "resumed", "delete": "deleted"}
# Seconds that a retry takes at most for each line, with a margin.
_TIME_PER_LINE = 1e-3


class ActKind(StrEnum):
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    DELETE = "delete"
    CHANGE = "change"


class BatchAct(msgspec.Struct, frozen=True):
    """What to do with a batch."""

    kind: ActKind
    selection: RetrySelection = RetrySelection()
    change: BatchChange = BatchChange()
    # For the audit record.
    detail: Mapping[str, Any] = {}


async def perform(rules: Rules, session: Session, actor: Actor, batch_id: UUID, act: BatchAct) -> None:
    """Do it in a transaction of its own. Raises Refused."""
    check(act)
    batch = await find(session, actor, batch_id)
    async with session.transaction(extra_time=time_for(batch, act)) as connection:
        await within(rules, connection, actor, batch, act)
    await conclude(session, batch_id, act)


async def find(session: Session, actor: Actor, batch_id: UUID) -> Batch:
    """A batch of the actor's tenant. Raises NotFound."""
    batch = await batches.get(session, batch_id)
    if batch is None or batch.tenant != actor.tenant:
        raise NotFound("Batch not found.", param="batch_id")
    return batch


def time_for(batch: Batch, act: BatchAct) -> float:
    """Seconds beyond those of any transaction."""
    return batch.total * _TIME_PER_LINE if act.kind is ActKind.RETRY else 0.0


async def within(
    rules: Rules, connection: StoreConnection, actor: Actor, batch: Batch, act: BatchAct
) -> None:
    """Do it in the transaction of the caller, who runs `conclude` after the commit. Raises Refused, and has
    changed nothing then."""
    session = InTransaction(connection)
    async with session.transaction():
        if await operations.get(session, actor.tenant, batch.id) is not None:
            await _governed(rules, session, actor, batch.id, act)
        elif act.kind is ActKind.RETRY:
            await _retry(session, connection, actor, batch, act)
        elif act.kind is ActKind.DELETE:
            await _delete(session, connection, actor, batch, act)
        else:
            await _ordinary(session, actor, batch.id, act)


async def conclude(session: Session, batch_id: UUID, act: BatchAct) -> None:
    """Not in the transaction of the act: it waits for spans, and their holders wait for the batch's row."""
    match act.kind:
        case ActKind.CANCEL:
            await batches.conclude(session, batch_id)
        case ActKind.RESUME:
            await steps.begin_part(session, batch_id)


def check(act: BatchAct) -> None:
    """Raises InvalidSubmission."""
    change = act.change
    if act.kind is ActKind.CHANGE and change == BatchChange():
        raise InvalidSubmission("Name at least one of priority, concurrency and deadline.", code=_INVALID)
    if change.priority is not UNSET and not MIN_PRIORITY <= change.priority <= MAX_PRIORITY:
        message = f"Invalid 'priority': give a number from {MIN_PRIORITY} to {MAX_PRIORITY}."
        raise InvalidSubmission(message, code=_INVALID, param="priority")
    concurrency = 1 if change.concurrency in (UNSET, None) else change.concurrency
    if not (isinstance(concurrency, int) and 1 <= concurrency <= MAX_CONCURRENCY):
        message = f"Invalid 'concurrency': give a number from 1 to {MAX_CONCURRENCY:,}, or none for no limit."
        raise InvalidSubmission(message, code=_INVALID, param="concurrency")


_INVALID = "INVALID_REQUEST"


def _displayed(change: BatchChange) -> dict[str, Any]:
    """The new values, for the audit log."""
    values = msgspec.structs.asdict(change).items()
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in values
        if value is not UNSET
    }


async def _governed(rules: Rules, session: Session, actor: Actor, batch_id: UUID, act: BatchAct) -> None:
    match act.kind:
        case ActKind.CANCEL:
            await changes.close(session, actor, batch_id)
        case ActKind.PAUSE:
            await changes.pause(session, actor, batch_id)
        case ActKind.RESUME:
            await changes.end_pause(session, actor, batch_id)
        case ActKind.RETRY if act.selection != RetrySelection():
            raise Conflict(
                "All failed children of a governed batch are retried, or none.", code="CANNOT_RETRY"
            )
        case ActKind.RETRY:
            await changes.retry(rules, session, actor, batch_id)
        case ActKind.CHANGE:
            detail = {**act.detail, **_displayed(act.change)}
            await changes.change(session, actor, batch_id, act.change, **detail)
        case ActKind.DELETE:
            raise Conflict("The batch is governed: its history is kept.", code="CANNOT_DELETE")


async def _ordinary(session: Session, actor: Actor, batch_id: UUID, act: BatchAct) -> None:
    async with batches.changing(session, actor.tenant, batch_id) as held:
        if held is None:
            raise NotFound("Batch not found.", param="batch_id")
        if act.kind is ActKind.CANCEL and held.batch.cancelling_at is not None:
            return
        if not await _change(held, act):
            raise _refusal(held.batch, act)
        name = "batch." + _DONE.get(act.kind.value, "changed")
        detail = {**act.detail, **_displayed(act.change)}
        await held.audit(AuditEvent(actor.tenant, actor.user, name, batch_id, detail=detail))


async def _change(held: OrdinaryChange, act: BatchAct) -> bool:
    match act.kind:
        case ActKind.RESUME:
            return await held.resume()
        case ActKind.CHANGE:
            return await held.change(act.change)
        case ActKind.CANCEL:
            return await held.close("cancel")
        case _:
            return await held.close("pause")


def _refusal(batch: Batch, act: BatchAct) -> Conflict | InvalidSubmission:
    past = batch.finalizing_at or batch.ended_at or batch.cancelling_at or batch.expiring_at
    if act.kind is ActKind.CHANGE and past is None:
        return InvalidSubmission("The deadline must be in the future.", code=_INVALID, param="deadline")
    why = "its completion window has ended" if batch.expiring_at else f"it is {batch.status.value}"
    done = _DONE.get(act.kind.value, "changed")
    return Conflict(f"The batch cannot be {done}: {why}.", code=f"CANNOT_{act.kind.upper()}")


async def _retry(
    session: Session, connection: StoreConnection, actor: Actor, batch: Batch, act: BatchAct
) -> None:
    try:
        lines = await retry_lines(session, batch, act.selection, tenant=actor.tenant)
    except InvalidSelection as error:
        message = f"Invalid '{error.param}': {error}."
        raise InvalidSubmission(message, code=_INVALID, param=error.param) from None
    except NotRetryable as error:
        raise Conflict(f"The batch cannot be retried: {error}.", code=error.code.upper()) from None
    except BatchGone:
        raise NotFound("Batch not found.", param="batch_id") from None
    detail = {**act.detail, "lines": lines}
    await audit.add(
        connection, AuditEvent(actor.tenant, actor.user, "batch.retried", batch.id, detail=detail)
    )


async def _delete(
    session: Session, connection: StoreConnection, actor: Actor, batch: Batch, act: BatchAct
) -> None:
    """Hide it. Maintenance deletes its rows and objects."""
    if await deletion.delete(session, batch.id, force=False) is None:
        message = f"The batch cannot be deleted: it is {batch.status.value}. Cancel it, and wait for its end."
        raise Conflict(message, code="CANNOT_DELETE")
    await audit.add(
        connection, AuditEvent(actor.tenant, actor.user, "batch.deleted", batch.id, detail=act.detail)
    )
