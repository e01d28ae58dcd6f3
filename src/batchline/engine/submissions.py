"""Submitting a governed batch: one transaction, all of it or nothing.

The limits' locks, the look whether the request was made before, the limits, the batch with all its children,
the audit row. Execution is the engine's, as of any other batch.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from batchline.engine import limits
from batchline.engine.access import Actor, there
from batchline.engine.batches import window_seconds
from batchline.engine.masking import masked_text
from batchline.engine.operations import APPROVALS, Operation, url_of
from batchline.engine.refusals import InvalidSubmission, NotAllowed, RequestIdReused, TooLarge
from batchline.engine.rules import Rules
from batchline.ids import new_id
from batchline.model import Approval, GovernedBatch, Role, RunSettings
from batchline.store import operations
from batchline.store.audit import Event
from batchline.store.operations import Children, NewOperationBatch, Submitting
from batchline.store.session import Session

# An audit row tells what was asked for, within reason.
MOST_AUDITED_ITEMS = 100

_MOST_REASON = 2000
_LONGEST_CUSTOM_ID = 512


class Submission(msgspec.Struct, frozen=True):
    operation: str
    items: Sequence[Any]
    request_id: UUID | None = None
    reason: str | None = None
    hold: bool = False
    # Names for the children, as many as there are items; None: their numbers.
    custom_ids: Sequence[str] | None = None

    def fingerprint(self) -> bytes:
        asked = [self.operation, self.items, self.reason, self.hold, self.custom_ids]
        return sha256(msgspec.json.encode(asked, order="sorted")).digest()


class Submitted(msgspec.Struct, frozen=True):
    batch: GovernedBatch
    # The request was made before, and this is its batch.
    replayed: bool


async def replay(session: Session, actor: Actor, asked: Submission) -> Submitted | None:
    """The batch that the same request has made before; None: it has made none."""
    if asked.request_id is None:
        return None
    found = await operations.find(session, actor.tenant, actor.user, asked.operation, asked.request_id)
    return None if found is None else await _replayed(session, actor, found, _fingerprint(asked))


async def submit(rules: Rules, session: Session, actor: Actor, asked: Submission) -> Submitted:
    fingerprint = _fingerprint(asked)
    # Before anything else: a replay is answered also when it would be refused by now.
    if (before := await replay(session, actor, asked)) is not None:
        return before
    operation = rules.operation(asked.operation)
    if operation.executor == APPROVALS and actor.role is Role.USER:
        raise NotAllowed("Only approvers and admins decide.")
    new = _new(rules, actor, operation, asked, fingerprint)
    try:
        async with operations.submitting(session, actor.tenant, actor.user) as submitting:
            await _check_quicker(submitting, actor, asked)
            limits.check(rules.limits, submitting.measured, children=len(asked.items))
            await submitting.create(new)
            await submitting.audit(_event(actor, operation, asked, new))
    except _MadeMeanwhile as quicker:
        return await _replayed(session, actor, quicker.made, fingerprint)
    return Submitted(await there(session, actor, new.id), replayed=False)


async def _check_quicker(submitting: Submitting, actor: Actor, asked: Submission) -> None:
    """Again under the locks: of many that come at once, one makes the batch."""
    if asked.request_id is None:
        return
    made = await submitting.made_before(actor.tenant, actor.user, asked.operation, asked.request_id)
    if made is not None:
        raise _MadeMeanwhile(made)


async def _replayed(
    session: Session, actor: Actor, made: tuple[UUID, bytes], fingerprint: bytes
) -> Submitted:
    batch_id, before = made
    if before != fingerprint:
        raise RequestIdReused("This request_id has been used before, for something else.", param="request_id")
    return Submitted(await there(session, actor, batch_id), replayed=True)


def children_of(
    operation: Operation, items: Sequence[Any], custom_ids: Sequence[str] | None, first: int = 1
) -> Children:
    if not items:
        raise InvalidSubmission("A batch has at least one item.", param="items")
    if len(items) > operation.largest_batch:
        raise too_many(operation, len(items))
    try:
        faults = operation.faults(items)
        bodies = tuple(msgspec.json.encode(item).decode() for item in items)
    except (RecursionError, UnicodeError):
        raise InvalidSubmission("An item is nested too deeply or is no Unicode.", param="items") from None
    if faults:
        told = "; ".join(f"{fault.place}: {fault.message}" for fault in faults)
        raise InvalidSubmission(f"Invalid items: {told}", param=faults[0].place)
    names = tuple(custom_ids or (str(n) for n in range(first, first + len(items))))
    if len(names) != len(items):
        raise InvalidSubmission("There are as many custom_ids as items, or none.", param="custom_ids")
    if len(set(names)) != len(names):
        raise InvalidSubmission("Every custom_id is there once.", param="custom_ids")
    if not all(0 < len(name) <= _LONGEST_CUSTOM_ID for name in names):
        raise InvalidSubmission(f"A custom_id has 1 to {_LONGEST_CUSTOM_ID} characters.", param="custom_ids")
    return Children(names, bodies)


def too_many(operation: Operation, items: int) -> TooLarge:
    return TooLarge(
        f"The batch would have {items} items; {operation.name} takes at most {operation.largest_batch}.",
        param="items",
    )


def shown_reason(text: str | None) -> str | None:
    if text is None:
        return None
    if len(text) > _MOST_REASON:
        raise InvalidSubmission(f"A reason has at most {_MOST_REASON} characters.", param="reason")
    return masked_text(text)


def _new(
    rules: Rules, actor: Actor, operation: Operation, asked: Submission, fingerprint: bytes
) -> NewOperationBatch:
    children = children_of(operation, asked.items, asked.custom_ids)
    needs = any(operation.needs_approval(item) for item in asked.items)
    return NewOperationBatch(
        id=new_id(),
        file_id=new_id(),
        tenant=actor.tenant,
        user_id=actor.user,
        operation=operation.name,
        url=url_of(operation.name),
        request_id=asked.request_id,
        fingerprint=fingerprint,
        reason=shown_reason(asked.reason),
        approval=Approval.PENDING if needs else Approval.NOT_REQUIRED,
        hold=asked.hold,
        window=rules.window,
        window_seconds=window_seconds(rules.window),
        settings=RunSettings(max_attempts=operation.max_attempts, timeout=operation.timeout),
        children=children,
    )


def _event(actor: Actor, operation: Operation, asked: Submission, new: NewOperationBatch) -> Event:
    return Event(
        actor.tenant,
        actor.user,
        "batch.submitted",
        new.id,
        detail={
            "operation": operation.name,
            "child_count": len(asked.items),
            "request_id": None if asked.request_id is None else str(asked.request_id),
            "reason": new.reason,
            "approval": new.approval.value,
            "hold": asked.hold,
            "items": operation.masked(list(asked.items[:MOST_AUDITED_ITEMS])),
        },
    )


class _MadeMeanwhile(Exception):
    """Another one was quicker with the same request_id."""

    def __init__(self, made: tuple[UUID, bytes]) -> None:
        super().__init__("made before")
        self.made = made


def _fingerprint(asked: Submission) -> bytes:
    try:
        return asked.fingerprint()
    except (RecursionError, UnicodeError):
        raise InvalidSubmission("An item is nested too deeply or is no Unicode.", param="items") from None
