"""Submitting a governed batch: one transaction, all of it or nothing.

The limits' locks, the look whether the request was made before, the limits, the batch with all its children,
the audit row. Execution is the engine's, as of any other batch.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from batchline.batches.creation import window_seconds
from batchline.governance import limits, preparation
from batchline.governance.access import Actor, reload
from batchline.governance.errors import InvalidSubmission, NotAllowed, RequestIdReused
from batchline.governance.operations import APPROVALS, Operation, SchemaFaults, url_of
from batchline.governance.preparation import Prepared
from batchline.governance.rules import Rules
from batchline.model import Approval, GovernedBatch, Role, RunSettings
from batchline.model.ids import new_id
from batchline.secrets.masking import masked_text
from batchline.store import operations
from batchline.store.audit import AuditEvent
from batchline.store.operations import NewOperationBatch, Submitting
from batchline.store.session import Session

_MAX_REASON = 2000


class Submission(msgspec.Struct, frozen=True):
    operation: str
    items: Sequence[Any]
    request_id: UUID | None = None
    reason: str | None = None
    hold: bool = False
    # Names for the children, as many as there are items; None: their numbers.
    custom_ids: Sequence[str] | None = None

    def fingerprint(self) -> bytes:
        requested = [self.operation, self.items, self.reason, self.hold, self.custom_ids]
        return sha256(msgspec.json.encode(requested, order="sorted")).digest()


class Submitted(msgspec.Struct, frozen=True):
    batch: GovernedBatch
    # The request was made before, and this is its batch.
    replayed: bool


class ReadySubmission(msgspec.Struct, frozen=True):
    """A submission that only the limits can refuse now."""

    new: NewOperationBatch
    event: AuditEvent


async def fingerprint_of(rules: Rules, actor: Actor, requested: Submission) -> bytes:
    """What tells this submission from another one under the same request_id."""
    return await rules.preparing.run(actor.tenant, lambda _: _fingerprint(requested))


async def replay(
    session: Session, actor: Actor, requested: Submission, fingerprint: bytes
) -> Submitted | None:
    """The batch that the same request has made before; None: it has made none."""
    if requested.request_id is None:
        return None
    found = await operations.find(
        session, actor.tenant, actor.user, requested.operation, requested.request_id
    )
    return None if found is None else await _replayed(session, actor, found, fingerprint)


async def prepare(rules: Rules, actor: Actor, requested: Submission, fingerprint: bytes) -> ReadySubmission:
    """Check all that can be checked without the database."""
    operation = rules.operation(requested.operation)
    if operation.executor == APPROVALS and actor.role is Role.USER:
        raise NotAllowed("Only approvers and admins decide.")
    return await rules.preparing.run(
        actor.tenant,
        lambda schema_faults: _ready(rules, actor, operation, requested, fingerprint, schema_faults),
    )


async def create(rules: Rules, session: Session, actor: Actor, ready: ReadySubmission) -> Submitted:
    new = ready.new
    try:
        async with operations.submitting(session, actor.tenant, actor.user) as submitting:
            await _check_quicker(submitting, new)
            limits.check(rules.limits, submitting.measured, children=len(new.children.bodies))
            await submitting.create(new)
            await submitting.audit(ready.event)
    except _MadeMeanwhile as quicker:
        return await _replayed(session, actor, quicker.made, new.fingerprint)
    return Submitted(await reload(session, actor, new.id), replayed=False)


async def _check_quicker(submitting: Submitting, new: NewOperationBatch) -> None:
    """Again under the locks: of many that come at once, one makes the batch."""
    if new.request_id is None:
        return
    made = await submitting.made_before(new.tenant, new.user_id, new.operation, new.request_id)
    if made is not None:
        raise _MadeMeanwhile(made)


async def _replayed(
    session: Session, actor: Actor, made: tuple[UUID, bytes], fingerprint: bytes
) -> Submitted:
    batch_id, before = made
    if before != fingerprint:
        raise RequestIdReused("This request_id has been used before, for something else.", param="request_id")
    return Submitted(await reload(session, actor, batch_id), replayed=True)


def displayed_reason(text: str | None) -> str | None:
    if text is None:
        return None
    if len(text) > _MAX_REASON:
        raise InvalidSubmission(f"A reason has at most {_MAX_REASON} characters.", param="reason")
    return masked_text(text)


def _ready(
    rules: Rules,
    actor: Actor,
    operation: Operation,
    requested: Submission,
    fingerprint: bytes,
    schema_faults: SchemaFaults,
) -> ReadySubmission:
    prepared = preparation.prepare(operation, requested.items, requested.custom_ids, schema_faults)
    new = NewOperationBatch(
        id=new_id(),
        file_id=new_id(),
        tenant=actor.tenant,
        user_id=actor.user,
        operation=operation.name,
        url=url_of(operation.name),
        request_id=requested.request_id,
        fingerprint=fingerprint,
        reason=displayed_reason(requested.reason),
        approval=Approval.PENDING if prepared.needs_approval else Approval.NOT_REQUIRED,
        hold=requested.hold,
        window=rules.window,
        window_seconds=window_seconds(rules.window),
        settings=RunSettings(max_attempts=operation.max_attempts, timeout=operation.timeout),
        children=prepared.children(),
    )
    return ReadySubmission(new, _event(new, prepared))


def _event(new: NewOperationBatch, prepared: Prepared) -> AuditEvent:
    return AuditEvent(
        new.tenant,
        new.user_id,
        "batch.submitted",
        new.id,
        detail={
            "operation": new.operation,
            "child_count": len(prepared.bodies),
            "request_id": None if new.request_id is None else str(new.request_id),
            "reason": new.reason,
            "approval": new.approval.value,
            "hold": new.hold,
            "items": prepared.displayed,
        },
    )


class _MadeMeanwhile(Exception):
    """Another one was quicker with the same request_id."""

    def __init__(self, made: tuple[UUID, bytes]) -> None:
        super().__init__("made before")
        self.made = made


def _fingerprint(requested: Submission) -> bytes:
    try:
        return requested.fingerprint()
    except (RecursionError, UnicodeError):
        raise preparation.not_encodable() from None
