"""Actions on all batches that match a filter: preview, start, cancel, and the part that a worker does.

An action concerns the batches of its tenant that its user may see, and does with each what the user may do.
It needs no process to stay alive: any worker goes on after the last batch that was done. Batches are taken
from the newest to the oldest, so none is added that was created after the action. The start, the end and
each act are in the audit log.
"""

import time
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from msgspec.structs import replace

from batchline.governance import batch_acts
from batchline.governance.access import Actor
from batchline.governance.batch_acts import ActKind, BatchAct
from batchline.governance.errors import Conflict, InvalidSubmission, NotAllowed, NotFound, Refused
from batchline.governance.rules import Rules
from batchline.model import MAX_PRIORITY, MIN_PRIORITY, BatchChange, BatchStatus, Role, ids
from batchline.model.bulk_action import (
    BatchFilter,
    BulkAction,
    BulkKind,
    BulkPreview,
    NewBulkAction,
    filter_values,
)
from batchline.model.ids import new_id
from batchline.store import batch_names, batches, bulk_actions
from batchline.store.audit import AuditEvent
from batchline.store.session import Session

MAX_IDS = 100
_MAX_RUNNING = 20
_INVALID = "INVALID_REQUEST"
# An action gives way to others after so many batches, or seconds.
_CHUNK = 50
_MAX_SECONDS = 2.0
_ID_DIGITS, _HEX = 32, frozenset("0123456789abcdef")

_log = structlog.get_logger("batchline.bulk_actions")


async def preview(session: Session, actor: Actor, wanted: BatchFilter) -> BulkPreview:
    """What an action would concern now. Raises InvalidSubmission."""
    wanted = await _checked(session, actor, wanted)
    return await bulk_actions.preview(session, actor.tenant, _viewer(actor), wanted)


async def start(
    session: Session, actor: Actor, action: BulkKind, wanted: BatchFilter, value: int | None = None
) -> BulkAction:
    """Raises InvalidSubmission and Conflict."""
    _check_value(action, value)
    wanted = await _checked(session, actor, wanted)
    found = await bulk_actions.preview(session, actor.tenant, _viewer(actor), wanted)
    new = NewBulkAction(
        id=new_id(),
        tenant=actor.tenant,
        actor=actor.user,
        role=actor.role,
        alone=actor.alone,
        action=action,
        filter=wanted,
        matching=found.matching,
        value=value,
    )
    event = _event(actor.user, "action.started", new, filter=filter_values(wanted), matching=found.matching)
    made = await bulk_actions.create(session, new, _MAX_RUNNING, event)
    if made is None:
        message = f"{_MAX_RUNNING} actions are running. Wait until one has ended, or cancel one."
        raise Conflict(message, code="TOO_MANY_ACTIONS")
    return made


async def find(session: Session, actor: Actor, action_id: UUID) -> BulkAction:
    """Users see their own actions, others all of their tenant. Raises NotFound."""
    found = await bulk_actions.get(session, actor.tenant, action_id)
    if found is None or _viewer(actor) not in (None, found.actor):
        raise NotFound("Action not found.", code="ACTION_NOT_FOUND", param="action_id")
    return found


async def page(session: Session, actor: Actor, *, limit: int, after: UUID | None = None) -> list[BulkAction]:
    """Newest first."""
    return await bulk_actions.page(session, actor.tenant, limit=limit, actor=_viewer(actor), after=after)


async def cancel(session: Session, actor: Actor, action_id: UUID) -> BulkAction:
    """Do nothing with the batches that are left. Repeating it changes nothing. Raises Refused."""
    found = await find(session, actor, action_id)
    if found.actor != actor.user and not actor.role.administers:
        raise NotAllowed("Only the user who started the action and admins may do this.")
    event = _event(actor.user, "action.cancelled", found, started_by=found.actor)
    if not await bulk_actions.cancel(session, action_id, event):
        found = await find(session, actor, action_id)
        if found.cancelled_at is None:
            raise Conflict(f"The action is {found.state}.", code="CANNOT_CANCEL")
        return found
    return await find(session, actor, action_id)


async def continue_one(rules: Rules, session: Session) -> bool:
    """Take an action that is due, and do the next of its batches. False if none is due."""
    taken = await bulk_actions.take(session)
    if taken is None:
        return False
    action = taken.action
    if not taken.permitted:
        await _end(
            session, action, f"All API keys of {action.actor} with the role {action.role} are revoked."
        )
        return True
    actor = Actor(action.tenant, action.actor, action.role, action.alone)
    found = await bulk_actions.matching(session, action, _viewer(actor), _CHUNK)
    if not found:
        await _end(session, action, None)
        return True
    began = time.monotonic()
    for batch_id, created_at in found:
        if not await _step(rules, session, actor, action, batch_id, created_at):
            return True
        if time.monotonic() - began > _MAX_SECONDS:
            break
    await bulk_actions.give_way(session, action)
    return True


async def _step(
    rules: Rules, session: Session, actor: Actor, action: BulkAction, batch_id: UUID, created_at: datetime
) -> bool:
    """Do one batch; False if the action was cancelled, or another worker has taken it."""
    act, batch = _act(action), await batches.get(session, batch_id)
    extra_time = 0.0 if batch is None else batch_acts.time_for(batch, act)
    async with bulk_actions.step(session, action, extra_time) as step:
        if step is None:
            return False
        reason = None
        try:
            if batch is None:
                raise NotFound("Batch not found: it was deleted meanwhile.")
            await batch_acts.within(rules, step.connection, actor, batch, act)
        except Refused as refused:
            reason = refused.message
        except Exception:  # noqa: BLE001
            # One batch must not keep the action from the others. If the database is away, the next statement
            # says so, and nothing is counted.
            _log.exception("an act on a batch failed", action=str(action.id), batch=str(batch_id))
            reason = "An unexpected error. The log of the worker has it."
        await step.advance(batch_id, created_at, reason)
    if reason is None:
        await batch_acts.conclude(session, batch_id, act)
    return True


def _act(action: BulkAction) -> BatchAct:
    detail = {"action_id": ids.show(ids.ACTION, action.id)}
    if action.action is BulkKind.PRIORITY:
        assert action.value is not None
        return BatchAct(ActKind.CHANGE, change=BatchChange(priority=action.value), detail=detail)
    return BatchAct(ActKind(action.action.value), detail=detail)


async def _end(session: Session, action: BulkAction, error: str | None) -> None:
    now = await bulk_actions.get(session, action.tenant, action.id) or action
    detail = {"done": now.done, "refused": now.failed_count, "error": error}
    await bulk_actions.end(session, action, error, _event(action.actor, "action.ended", action, **detail))


def _event(user: str, name: str, action: NewBulkAction, **detail: Any) -> AuditEvent:
    about = {"action_id": ids.show(ids.ACTION, action.id), "action": action.action.value}
    if action.value is not None:
        about["value"] = str(action.value)
    return AuditEvent(action.tenant, user, name, detail={**about, **detail})


def _viewer(actor: Actor) -> str | None:
    """Users see only their own governed batches, and their own actions."""
    return actor.user if actor.role is Role.USER else None


async def _checked(session: Session, actor: Actor, wanted: BatchFilter) -> BatchFilter:
    """The filter. What looks like the beginning of an id, and is one, stands for the batches with it, as in
    lists."""
    _check_filter(wanted)
    digits = (wanted.q or "").lower().removeprefix(ids.BATCH).replace("-", "")
    if not batch_names.MIN_DIGITS <= len(digits) <= _ID_DIGITS or not set(digits) <= _HEX:
        return wanted
    named = await batch_names.matching(session, digits, MAX_IDS, tenant=actor.tenant)
    if not named:
        return wanted
    chosen = named if wanted.ids is None else [each for each in named if each in wanted.ids]
    return replace(wanted, q=None, ids=tuple(chosen))


def _check_filter(wanted: BatchFilter) -> None:
    known = {status.value for status in BatchStatus}
    for status in wanted.status or ():
        if status not in known:
            message = f"Invalid 'status': {status[:64]!r} is none of {', '.join(sorted(known))}."
            raise InvalidSubmission(message, code=_INVALID, param="filter.status")
    if wanted.ids is not None and not 0 < len(wanted.ids) <= MAX_IDS:
        raise InvalidSubmission(
            f"Invalid 'ids': give 1 to {MAX_IDS}; a filter can match more.", code=_INVALID, param="filter.ids"
        )


def _check_value(action: BulkKind, value: int | None) -> None:
    if (action is BulkKind.PRIORITY) != (value is not None):
        message = "'value' is the new priority: give it for the action priority, and for no other."
        raise InvalidSubmission(message, code=_INVALID, param="value")
    if value is not None and not MIN_PRIORITY <= value <= MAX_PRIORITY:
        message = f"Invalid 'value': give a priority from {MIN_PRIORITY} to {MAX_PRIORITY}."
        raise InvalidSubmission(message, code=_INVALID, param="value")
