"""Governed batches: the transaction that creates one, the transactions that change one, and queries.

Every change locks the batch's row before its first check and holds the lock until it commits, so no
concurrent change can invalidate a check. The lock order is: the limits (if more may become pending), the
batch row, its lanes.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal
from uuid import UUID

import msgspec

from batchline.model import (
    ANYBODY,
    DEFAULT_TENANT,
    Approval,
    BatchChange,
    Child,
    ChildStatus,
    GovernedBatch,
    ParentStatus,
    Role,
    RunSettings,
)
from batchline.model.ids import new_id
from batchline.store import audit, batches, limits, retry, steps
from batchline.store.arrays import TextArray
from batchline.store.audit import AuditEvent
from batchline.store.limits import Measured
from batchline.store.retry import PutBack
from batchline.store.session import Row, Session, StoreConnection, run
from batchline.store.statements import statement

_CHILD_STATUS = {
    "pending": ChildStatus.PENDING,
    "retrying": ChildStatus.PENDING,
    "claimed": ChildStatus.RUNNING,
    "processing": ChildStatus.RUNNING,
    "completed": ChildStatus.SUCCEEDED,
    "failed": ChildStatus.FAILED,
    "canceled": ChildStatus.CANCELLED,
    "expired": ChildStatus.CANCELLED,
}
# In these states the current attempt has not begun.
_NOT_RUNNING = frozenset({"pending", "retrying", "canceled", "expired"})


class OperationBatchNotFound(Exception):
    """The tenant has no such governed batch."""


class Children(msgspec.Struct, frozen=True):
    """Items as stored: a custom_id and a JSON body each."""

    custom_ids: tuple[str, ...]
    bodies: tuple[str, ...]

    def params(self) -> dict[str, Any]:
        bodies = [body.encode() for body in self.bodies]
        return {
            # psycopg's own arrays escape each quotation mark separately: 0.1 s for a large item.
            "custom_ids": TextArray([custom_id.encode() for custom_id in self.custom_ids]),
            "bodies": TextArray(bodies),
            "bytes": sum(map(len, bodies)),
        }


class NewOperationBatch(msgspec.Struct, frozen=True):
    id: UUID
    file_id: UUID
    tenant: str
    user_id: str
    operation: str
    # The URL of its lines. It names the operation; it is not an endpoint of a model server.
    url: str
    request_id: UUID | None
    fingerprint: bytes
    reason: str | None
    approval: Approval
    hold: bool
    window: str
    window_seconds: float
    settings: RunSettings
    children: Children


class Submitting:
    """A submission in progress, with the limits locked. If the transaction fails, nothing of it remains."""

    def __init__(self, connection: StoreConnection, measured: Measured) -> None:
        self._connection = connection
        self.measured = measured

    async def made_before(
        self, tenant: str, user: str, operation: str, request_id: UUID
    ) -> tuple[UUID, bytes] | None:
        """Find the batch that already uses this request_id, with the hash of its request."""
        params = {"tenant": tenant, "user": user, "operation": operation, "request_id": request_id}
        rows = await run(self._connection, statement("find_request"), params)
        return (rows[0][0], rows[0][1]) if rows else None

    async def create(self, new: NewOperationBatch) -> None:
        params = {
            "batch": new.id,
            "file": new.file_id,
            "tenant": new.tenant,
            "user": new.user_id,
            "operation": new.operation,
            "url": new.url,
            "request_id": new.request_id,
            "fingerprint": new.fingerprint,
            "reason": new.reason,
            "approval": new.approval.value,
            "hold": new.hold,
            "window": new.window,
            "window_seconds": new.window_seconds,
            "settings": batches.submitted(new.id, new.settings),
            **new.children.params(),
        }
        await run(self._connection, statement("submit_operation"), params)
        if new.settings.steps is not None:
            await steps.hold_back(self._connection, new.id)
        if new.approval is Approval.PENDING:
            await _announce(self._connection, new.id, "batch.approval_requested")

    async def audit(self, event: AuditEvent) -> None:
        await audit.add(self._connection, event)


@asynccontextmanager
async def submitting(session: Session, tenant: str, user: str) -> AsyncIterator[Submitting]:
    async with session.transaction() as connection:
        yield Submitting(connection, await limits.lock(connection, tenant, user))


class Changing:
    """A change in progress. The batch's row is locked, so `batch` stays true until the transaction ends."""

    def __init__(self, connection: StoreConnection, batch: GovernedBatch, measured: Measured | None) -> None:
        self._connection = connection
        self.batch = batch
        # None if the change cannot add pending work.
        self._measured = measured

    @property
    def measured(self) -> Measured:
        assert self._measured is not None
        return self._measured

    async def digest(self) -> str:
        """A digest of what there is to decide on."""
        ((digest,),) = await run(self._connection, statement("operation_digest"), {"batch": self.batch.id})
        return str(digest)

    async def decide(self, approval: Approval, actor: str, reason: str | None, digest: str) -> None:
        """Record the decision, and announce it."""
        params = {
            "batch": self.batch.id,
            "approval": approval.value,
            "actor": actor,
            "reason": reason,
            "digest": digest,
        }
        await run(self._connection, statement("decide_operation"), params)
        await _announce(self._connection, self.batch.id, f"batch.{approval.value}")

    async def release(self) -> None:
        await run(self._connection, statement("release_operation"), {"batch": self.batch.id})

    async def open(self) -> bool:
        """Open the lanes, unless the batch still waits for an approval or a release."""
        return bool(await run(self._connection, statement("open_operation"), {"batch": self.batch.id}))

    async def close(self, reason: Literal["cancel", "pause"], actor: str) -> bool:
        """Close the lanes. After a cancel, the caller must run `conclude` once this is committed."""
        params = {"batch": self.batch.id, "reason": reason, "actor": actor}
        if reason == "cancel":
            await run(self._connection, statement("cancelled_by"), params)
        return bool(await run(self._connection, statement("close"), params))

    async def resume(self) -> bool:
        return bool(await run(self._connection, statement("resume"), {"batch": self.batch.id}))

    async def change(self, wanted: BatchChange) -> bool:
        """Give the batch other values; False if the deadline has passed already."""
        return await batches.change(self._connection, self.batch.id, wanted)

    async def taken(self, custom_ids: Sequence[str]) -> list[str]:
        """Return those of the given custom_ids that children already have."""
        names = TextArray([custom_id.encode() for custom_id in custom_ids])
        params = {"batch": self.batch.id, "custom_ids": names}
        return [name for (name,) in await run(self._connection, statement("custom_ids_taken"), params)]

    async def appended_by(self, user: str) -> bool:
        """Whether this user appended children to the batch, no matter who owns it."""
        params = {"batch": self.batch.id, "user": user}
        return bool(await run(self._connection, statement("appended_by"), params))

    async def append(self, children: Children, needs_approval: bool) -> None:
        params = {"batch": self.batch.id, "needs_approval": needs_approval, **children.params()}
        await run(self._connection, statement("append_children"), params)
        pending = self.batch.approval is Approval.NOT_REQUIRED and needs_approval
        if pending or self.batch.approval is Approval.APPROVED:
            await _announce(self._connection, self.batch.id, "batch.approval_requested")

    async def retry(self, max_attempts: int, window_seconds: float) -> int:
        """Retry failed children with fewer than `max_attempts` attempts. Return their number."""
        wanted = PutBack(window_seconds, max_attempts=max_attempts)
        return await retry.put_back(self._connection, self.batch.id, wanted)

    async def audit(self, event: AuditEvent) -> None:
        await audit.add(self._connection, event)


@asynccontextmanager
async def changing(
    session: Session, tenant: str, batch_id: UUID, *, pending_for: str | None = None
) -> AsyncIterator[Changing]:
    """Lock a batch's row.

    If the change may add pending work for a user, pass `pending_for`: locks limits first.
    """
    async with session.transaction() as connection:
        measured = None if pending_for is None else await limits.lock(connection, tenant, pending_for)
        rows = await run(connection, statement("lock_operation"), {"tenant": tenant, "batch": batch_id})
        if not rows:
            raise OperationBatchNotFound(f"no governed batch {batch_id}")
        yield Changing(connection, _governed(rows[0]), measured)


async def _announce(connection: StoreConnection, batch_id: UUID, event: str) -> None:
    """Record an event for webhooks in this transaction."""
    await run(connection, statement("add_event"), {"event": new_id(), "batch": batch_id, "type": event})


async def appended_by(session: Session, batch_id: UUID, user: str) -> bool:
    """Whether this user appended children to the batch."""
    return bool(await session.rows(statement("appended_by"), {"batch": batch_id, "user": user}))


async def digest(session: Session, batch_id: UUID) -> str:
    """A digest of what there is to decide on. One pass over the children."""
    ((found,),) = await session.rows(statement("operation_digest"), {"batch": batch_id})
    return str(found)


async def get(session: Session, tenant: str, batch_id: UUID) -> GovernedBatch | None:
    rows = await session.rows(statement("get_operation"), {"tenant": tenant, "batch": batch_id})
    return _governed(rows[0]) if rows else None


async def find(
    session: Session, tenant: str, user: str, operation: str, request_id: UUID
) -> tuple[UUID, bytes] | None:
    params = {"tenant": tenant, "user": user, "operation": operation, "request_id": request_id}
    rows = await session.rows(statement("find_request"), params)
    return (rows[0][0], rows[0][1]) if rows else None


class Submitter(msgspec.Struct, frozen=True):
    """The submitter of a batch, with the highest role among their current keys."""

    tenant: str
    user: str
    role: Role
    # Submitted to a server that requires no keys.
    alone: bool


async def submitter(session: Session, batch_id: UUID) -> Submitter | None:
    """Find the submitter of a batch. Return None if all their keys are revoked."""
    params = {"batch": batch_id, "anybody": ANYBODY, "default_tenant": DEFAULT_TENANT}
    rows = await session.rows(statement("operation_submitter"), params)
    return Submitter(rows[0][0], rows[0][1], Role(rows[0][2]), rows[0][3]) if rows else None


async def page(
    session: Session,
    tenant: str,
    *,
    limit: int,
    user: str | None = None,
    operation: str | None = None,
    approval: Approval | None = None,
    status: ParentStatus | None = None,
    after: UUID | None = None,
) -> list[GovernedBatch]:
    """List governed batches of one user or of the whole tenant, newest first."""
    undecided = approval is Approval.PENDING, status is ParentStatus.PENDING_APPROVAL
    if approval is not None and status is not None and undecided[0] != undecided[1]:
        return []
    params = {
        "tenant": tenant,
        "user": user,
        "operation": operation,
        "approval": None if approval is None else approval.value,
        "status": None if status is None else status.value,
        "after": after,
        "limit": limit,
    }
    listing = "list_pending_operations" if any(undecided) else _listing(user, status)
    return [_governed(row) for row in await session.rows(statement(listing), params)]


def _listing(user: str | None, status: ParentStatus | None) -> str:
    """Choose the statement: each has its own index."""
    name = "list_operations" if user is None else "list_user_operations"
    return name if status is None else f"{name}_by_status"


async def children(
    session: Session,
    batch_id: UUID,
    *,
    status: ChildStatus | None = None,
    after: int = 0,
    limit: int = 100,
) -> list[Child]:
    """List children by number, at most 1001. `after` is the last number of the previous page."""
    params = {
        "batch": batch_id,
        "status": None if status is None else status.value,
        "after": after,
        "limit": limit,
    }
    return [_child(row) for row in await session.rows(statement("operation_children"), params)]


async def totals(session: Session) -> list[tuple[str, int, int, int]]:
    """Count (operation, succeeded, failed, cancelled) children over all workers."""
    return [(row[0], row[1], row[2], row[3]) for row in await session.rows(statement("operation_totals"), {})]


class Durations(msgspec.Struct, frozen=True):
    """Histogram of the time from a batch's creation until first no child was pending, per operation."""

    operation: str
    batches: int
    seconds: float
    bounds: Sequence[float]
    # For each bound, the batches that took at most that long, but longer than the previous bound.
    counts: Sequence[int]

    def within(self, bound: float) -> int:
        """Number of batches that took at most `bound` seconds."""
        return sum(count for each, count in zip(self.bounds, self.counts, strict=True) if each <= bound)


async def durations(session: Session) -> list[Durations]:
    return [Durations(*row) for row in await session.rows(statement("operation_durations"), {})]


def _governed(row: Row) -> GovernedBatch:
    fields = dict(zip(GovernedBatch.__struct_fields__, row, strict=True))
    settings = msgspec.convert(fields["settings"], RunSettings)
    return GovernedBatch(**{**fields, "approval": Approval(fields["approval"]), "settings": settings})


def _child(row: Row) -> Child:
    line_no, custom_id, state, attempt, *rest = row
    begun = attempt - 1 if state in _NOT_RUNNING else attempt
    return Child(line_no, custom_id, _CHILD_STATUS[state], begun, *rest)
