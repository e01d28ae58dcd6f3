"""A governed batch and its children."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from batchline.model.batch import RunSettings

# Bounds of the histogram of durations of governed batches, in seconds.
DURATION_BOUNDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)


class ParentStatus(StrEnum):
    """The status of a governed batch."""

    PENDING_APPROVAL = "PENDING_APPROVAL"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    PARTIAL_SUCCESS = "PARTIAL_SUCCESS"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Approval(StrEnum):
    NOT_REQUIRED = "not_required"
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"


class ChildCounts(msgspec.Struct, frozen=True):
    """Numbers of children by status. Every child is in one of them."""

    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    # Never ran: the batch was cancelled or rejected, or it expired.
    cancelled: int = 0

    @property
    def total(self) -> int:
        return self.pending + self.succeeded + self.failed + self.cancelled

    def status(self, approval: Approval) -> ParentStatus:
        """The first match wins. Cancelled children do not count, unless all were cancelled."""
        if self.pending:
            return ParentStatus.PENDING_APPROVAL if approval is Approval.PENDING else ParentStatus.IN_PROGRESS
        if self.cancelled and self.cancelled == self.total:
            return ParentStatus.CANCELLED
        if not self.failed:
            return ParentStatus.COMPLETED
        return ParentStatus.PARTIAL_SUCCESS if self.succeeded else ParentStatus.FAILED


class GovernedBatch(msgspec.Struct, frozen=True):
    """A batch of one operation (the parent), with its owner and the decision about it."""

    id: UUID
    tenant: str
    user_id: str
    operation: str
    request_id: UUID | None
    reason: str | None
    approval: Approval
    decided_by: str | None
    decided_at: datetime | None
    decision_reason: str | None
    held: bool
    released_at: datetime | None
    retries: int
    retried_at: datetime | None
    total: int
    completed: int
    failed: int
    created_at: datetime
    expires_at: datetime
    paused_at: datetime | None
    cancelling_at: datetime | None
    expiring_at: datetime | None
    finalizing_at: datetime | None
    ended_at: datetime | None
    # From then on, its children are being deleted; its counts stay.
    purging_at: datetime | None
    # The last change of the batch or of its counts. Never goes back.
    updated_at: datetime
    # The rule that paused it; None: a user did, or it is not paused.
    paused_by: str | None
    # As of other batches.
    step: int
    step_total: int | None
    next_step_at: datetime | None
    settings: RunSettings
    # A digest of what was decided on.
    decided_digest: str | None

    @property
    def may_have_changed(self) -> bool:
        """Whether it may not be what an approver has seen: children were added, or results have come."""
        return self.held or self.released_at is not None or self.completed + self.failed > 0

    @property
    def counts(self) -> ChildCounts:
        """From the batch's counters. Children without a result are pending until the batch is frozen."""
        rest = self.total - self.completed - self.failed
        frozen = self.finalizing_at is not None
        return ChildCounts(
            pending=0 if frozen else rest,
            succeeded=self.completed,
            failed=self.failed,
            cancelled=rest if frozen else 0,
        )

    @property
    def status(self) -> ParentStatus:
        return self.counts.status(self.approval)


class ChildStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Child(msgspec.Struct, frozen=True):
    """One item of a governed batch, as stored, with its outcome."""

    sequence_no: int
    custom_id: str
    status: ChildStatus
    # Attempts that have begun, including the current one.
    attempt_count: int
    status_code: int | None
    finished_at: datetime | None
    # When the last attempt that is over ended.
    last_attempt_at: datetime | None
    # The item, as JSON.
    body: str
    # The output line, if the child has finished.
    output: str | None
