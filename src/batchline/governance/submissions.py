"""Submits governed batches. One transaction takes the limit locks, looks for an earlier batch of the same
request, checks the limits, and writes the batch with its children and the audit record.

Workers run the batch like any other.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from batchline.batches.creation import window_seconds
from batchline.batches.staging import AT_ONCE, InvalidStaging, StagingRequest
from batchline.governance import limits, preparation
from batchline.governance.access import Actor, check_submitter, reload
from batchline.governance.errors import InvalidSubmission, RequestIdReused
from batchline.governance.operations import APPROVALS, Operation, SchemaFaults
from batchline.governance.preparation import Prepared
from batchline.governance.rules import Rules
from batchline.model import Approval, GovernedBatch, RunSettings
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
    # One per item; None: children are numbered.
    custom_ids: Sequence[str] | None = None
    staging: StagingRequest = AT_ONCE

    def fingerprint(self) -> bytes:
        requested: list[Any] = [self.operation, self.items, self.reason, self.hold, self.custom_ids]
        if self.staging != AT_ONCE:
            # Without it, a request has the same fingerprint as before there was one.
            requested.append(self.staging)
        return sha256(msgspec.json.encode(requested, order="sorted")).digest()


class Submitted(msgspec.Struct, frozen=True):
    batch: GovernedBatch
    # An earlier request with the same request_id created the batch.
    replayed: bool


class Validated(msgspec.Struct, frozen=True):
    """What a submission would be."""

    child_count: int
    approval: Approval
    # An earlier request with the same request_id has created this batch, so that nothing would be created.
    made: GovernedBatch | None = None


class ReadySubmission(msgspec.Struct, frozen=True):
    """A valid submission. Only the limits, or an earlier batch of the same request, can still refuse it."""

    new: NewOperationBatch
    event: AuditEvent


async def submit(rules: Rules, session: Session, actor: Actor, requested: Submission) -> Submitted:
    """All steps with one session. A server uses one session per step, because `prepare` may take long."""
    fingerprint = await fingerprint_of(rules, actor, requested)
    # First of all: a replay succeeds even if the same submission would be refused now.
    if (before := await replay(session, actor, requested, fingerprint)) is not None:
        return before
    await permit(rules, session, actor, requested)
    return await create(rules, session, actor, await prepare(rules, actor, requested, fingerprint))


async def fingerprint_of(rules: Rules, actor: Actor, requested: Submission) -> bytes:
    """A hash of the submission. It reveals whether a request_id is used again for something else."""
    return await rules.preparing.run(actor.tenant, lambda _: _fingerprint(requested))


async def replay(
    session: Session, actor: Actor, requested: Submission, fingerprint: bytes
) -> Submitted | None:
    """The batch that an earlier request with the same request_id created; None: there is none."""
    if requested.request_id is None:
        return None
    found = await operations.find(
        session, actor.tenant, actor.user, requested.operation, requested.request_id
    )
    return None if found is None else await _replayed(session, actor, found, fingerprint)


async def permit(rules: Rules, session: Session, actor: Actor, requested: Submission) -> None:
    """Refuse what the actor may not submit, before its items are looked at."""
    await check_submitter(session, actor, rules.operation(requested.operation), "submit")


async def prepare(rules: Rules, actor: Actor, requested: Submission, fingerprint: bytes) -> ReadySubmission:
    """Check what needs no database. The actor may submit the operation: `permit`."""
    operation = rules.operation(requested.operation)
    return await rules.preparing.run(
        actor.tenant,
        lambda schema_faults: _ready(rules, actor, operation, requested, fingerprint, schema_faults),
    )


async def create(rules: Rules, session: Session, actor: Actor, ready: ReadySubmission) -> Submitted:
    """Check the limits and write the batch and its audit record, in one transaction."""
    new = ready.new
    try:
        async with _creating(rules, session, actor, ready):
            pass
    except _CreatedMeanwhile as other:
        return await _replayed(session, actor, other.made, new.fingerprint)
    return Submitted(await reload(session, actor, new.id), replayed=False)


async def validate(rules: Rules, session: Session, actor: Actor, requested: Submission) -> Validated:
    """Check all that `submit` checks, limits included, and create nothing."""
    fingerprint = await fingerprint_of(rules, actor, requested)
    if (before := await replay(session, actor, requested, fingerprint)) is not None:
        return Validated(before.batch.total, before.batch.approval, before.batch)
    await permit(rules, session, actor, requested)
    return await try_out(rules, session, actor, await prepare(rules, actor, requested, fingerprint))


async def try_out(rules: Rules, session: Session, actor: Actor, ready: ReadySubmission) -> Validated:
    """Do all that `create` does, and roll it back: so the database has checked it, too."""
    new = ready.new
    try:
        async with _creating(rules, session, actor, ready):
            raise _RolledBack
    except _RolledBack:
        return Validated(len(new.children.bodies), new.approval)
    except _CreatedMeanwhile as other:
        made = (await _replayed(session, actor, other.made, new.fingerprint)).batch
        return Validated(made.total, made.approval, made)


@asynccontextmanager
async def _creating(
    rules: Rules, session: Session, actor: Actor, ready: ReadySubmission
) -> AsyncIterator[None]:
    """The transaction that creates the batch. Raises LimitReached and _CreatedMeanwhile."""
    new = ready.new
    decisions = rules.operation(new.operation).executor == APPROVALS
    async with operations.submitting(session, actor.tenant, actor.user) as submitting:
        await _check_not_created(submitting, new)
        children = len(new.children.bodies)
        limits.check(rules.limits, submitting.measured, children=children, decisions=decisions)
        await submitting.create(new)
        await submitting.audit(ready.event)
        yield


async def _check_not_created(submitting: Submitting, new: NewOperationBatch) -> None:
    """Look again under the locks: of many concurrent requests, one creates the batch."""
    if new.request_id is None:
        return
    made = await submitting.made_before(new.tenant, new.user_id, new.operation, new.request_id)
    if made is not None:
        raise _CreatedMeanwhile(made)


async def _replayed(
    session: Session, actor: Actor, made: tuple[UUID, bytes], fingerprint: bytes
) -> Submitted:
    batch_id, before = made
    if before != fingerprint:
        raise RequestIdReused(
            "This request_id was used for a different submission. Use a new one.", param="request_id"
        )
    return Submitted(await reload(session, actor, batch_id), replayed=True)


def displayed_reason(text: str | None) -> str | None:
    if text is None:
        return None
    if len(text) > _MAX_REASON:
        raise InvalidSubmission(f"reason must have at most {_MAX_REASON} characters.", param="reason")
    return masked_text(text)


def _ready(
    rules: Rules,
    actor: Actor,
    operation: Operation,
    requested: Submission,
    fingerprint: bytes,
    schema_faults: SchemaFaults,
) -> ReadySubmission:
    settings = _settings(operation, requested)
    prepared = preparation.prepare(operation, requested.items, requested.custom_ids, schema_faults)
    new = NewOperationBatch(
        id=new_id(),
        file_id=new_id(),
        tenant=actor.tenant,
        user_id=actor.user,
        operation=operation.name,
        url=operation.url,
        request_id=requested.request_id,
        fingerprint=fingerprint,
        reason=displayed_reason(requested.reason),
        approval=Approval.PENDING if prepared.needs_approval else Approval.NOT_REQUIRED,
        hold=requested.hold,
        window=rules.window,
        window_seconds=window_seconds(rules.window),
        settings=settings,
        children=prepared.children(),
    )
    return ReadySubmission(new, _event(new, prepared))


def _settings(operation: Operation, requested: Submission) -> RunSettings:
    sample = requested.staging.sample
    if sample is not None and sample >= len(requested.items) and not requested.hold:
        raise InvalidSubmission(
            f"sample must be smaller than the number of items, {len(requested.items)}: the rest is decided on"
            " after it.",
            param="sample",
        )
    try:
        return requested.staging.applied(
            RunSettings(max_attempts=operation.max_attempts, timeout=operation.timeout)
        )
    except InvalidStaging as error:
        raise InvalidSubmission(f"{error.param}: {error}.", param=error.param) from None


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
            "steps": None if new.settings.steps is None else msgspec.to_builtins(new.settings.steps),
            "items": prepared.displayed,
        },
    )


class _RolledBack(Exception):
    """Rolls a submission back that was only to be checked."""


class _CreatedMeanwhile(Exception):
    """A concurrent request with the same request_id has created the batch."""

    def __init__(self, made: tuple[UUID, bytes]) -> None:
        super().__init__("created by a concurrent request")
        self.made = made


def _fingerprint(requested: Submission) -> bytes:
    try:
        return requested.fingerprint()
    except (RecursionError, UnicodeError):
        raise preparation.not_encodable() from None
