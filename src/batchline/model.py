"""The nouns of the design as frozen types, and the states that are derived from them.

What passes through a worker thousands of times a second (items and verdicts) are msgspec structs, which
cost a tenth of a frozen dataclass to make.
"""

from datetime import datetime
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

import msgspec

DEFAULT_TENANT = "default"
# Who calls a server that asks for no keys.
ANYBODY = "local"


# Seconds in which governed batches end, as they are counted: what took longer than the last is counted too.
DURATION_BOUNDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class RunSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the lines of a batch are run; stored with the batch, so that any worker can go on with it."""

    upstream: str | None = None
    api_key_env: str | None = None
    max_attempts: int = 5
    timeout: float = 600.0


class Usage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


NO_USAGE = Usage()


class ContentError(msgspec.Struct, frozen=True):
    """Why no batch can run over a file, or why one failed while validating."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class File(msgspec.Struct, frozen=True):
    id: UUID
    tenant: str
    purpose: str
    filename: str
    bytes: int
    line_count: int
    object_key: str | None
    created_at: datetime
    expires_at: datetime | None
    # None: nothing is wrong with it.
    errors: tuple[ContentError, ...] | None = None
    deleted_at: datetime | None = None


class Batch(msgspec.Struct, frozen=True):
    id: UUID
    tenant: str
    file_id: UUID
    endpoint: str | None
    completion_window: str
    settings: RunSettings
    metadata: dict[str, str] | None
    resume_key: str | None
    total: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    created_at: datetime
    in_progress_at: datetime | None
    expires_at: datetime
    paused_at: datetime | None
    cancelling_at: datetime | None
    expiring_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    cancelled_at: datetime | None
    expired_at: datetime | None
    failed_at: datetime | None
    ended_at: datetime | None
    output_file_id: UUID | None
    error_file_id: UUID | None
    summary: dict[str, object] | None
    planned_output_id: UUID | None = None
    # From here on its results are not to be relied on: they are being cleared away, or are gone.
    purging_at: datetime | None = None
    output_expires_after: int | None = None
    # The model of all its lines, where they have one.
    model: str | None = None
    # Why it failed while validating.
    errors: tuple[ContentError, ...] | None = None
    # It waits for an approval, or to be released.
    held_at: datetime | None = None
    # How often finalizing has failed, when it is tried again, and why it failed last: for operators only.
    finalize_failures: int = 0
    finalize_after: datetime | None = None
    finalize_error: str | None = None

    @property
    def status(self) -> BatchStatus:
        """First match wins: an end, then what leads to it, then what is under way."""
        facts = (
            (self.cancelled_at, BatchStatus.CANCELLED),
            (self.expired_at, BatchStatus.EXPIRED),
            (self.failed_at, BatchStatus.FAILED),
            (self.completed_at, BatchStatus.COMPLETED),
            (self.cancelling_at, BatchStatus.CANCELLING),
            (self.finalizing_at, BatchStatus.FINALIZING),
            (self.paused_at or self.held_at, BatchStatus.PAUSED),
            (self.in_progress_at, BatchStatus.IN_PROGRESS),
        )
        return next((status for at, status in facts if at is not None), BatchStatus.VALIDATING)

    @property
    def finished(self) -> int:
        return self.completed + self.failed


class Role(StrEnum):
    USER = "user"
    APPROVER = "approver"
    ADMIN = "admin"


class RequestKind(StrEnum):
    """What requests are counted as, by the minute; none of them counts against another."""

    READ = "read"
    WRITE = "write"
    # Decisions on batches and admins' calls: limited per user, whatever others do.
    DECISION = "decision"


class ApiKey(msgspec.Struct, frozen=True):
    """Who may call the server, and for which tenant. The secret itself is kept nowhere."""

    id: UUID
    name: str
    tenant: str
    role: Role
    # The first characters of the secret, to tell keys apart.
    hint: str
    created_at: datetime
    revoked_at: datetime | None


class ParentStatus(StrEnum):
    """What a governed batch is to its user."""

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
    """Every child of a governed batch is in one of these."""

    pending: int = 0
    succeeded: int = 0
    failed: int = 0
    # Never ran: the batch was cancelled or rejected, or its time was over.
    cancelled: int = 0

    @property
    def total(self) -> int:
        return self.pending + self.succeeded + self.failed + self.cancelled

    def status(self, approval: Approval) -> ParentStatus:
        """First match wins. Children that were cancelled count for neither side, unless all were."""
        if self.pending:
            return ParentStatus.PENDING_APPROVAL if approval is Approval.PENDING else ParentStatus.IN_PROGRESS
        if self.cancelled and self.cancelled == self.total:
            return ParentStatus.CANCELLED
        if not self.failed:
            return ParentStatus.COMPLETED
        return ParentStatus.PARTIAL_SUCCESS if self.succeeded else ParentStatus.FAILED


class GovernedBatch(msgspec.Struct, frozen=True):
    """A batch of one operation, the parent, with whose it is and what was decided about it."""

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
    # From here on its children are not to be had any more; its counts are.
    purging_at: datetime | None

    @property
    def counts(self) -> ChildCounts:
        """From the batch's own counters. What has no outcome is pending until the batch is frozen."""
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
    """One item of a governed batch; `output` is its finished line, if it has one."""

    sequence_no: int
    custom_id: str
    status: ChildStatus
    # Attempts that were begun, the present one too; 0: none yet.
    attempt_count: int
    status_code: int | None
    finished_at: datetime | None
    output: str | None


class Claim(msgspec.Struct, frozen=True):
    """A span in a worker's hands, with what its lane and batch say about running it."""

    span_id: int
    lane_id: int
    batch_id: UUID
    attempt: int
    task_id: str | None
    size: int
    url: str
    model: str
    key: str
    seconds_left: float
    settings: RunSettings
    # Part of the name of each item: made once a claim, because it is asked for twice an item.
    batch_hex: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "batch_hex", self.batch_id.hex)


class Item(msgspec.Struct, frozen=True):
    """One line to run. `custom_id` and `body` are UTF-8, as they were read."""

    claim: Claim
    ordinal: int
    line_no: int
    custom_id: bytes
    body: bytes
    # How long the body is, where it was too long to be read along with others; 0: it is here.
    left_out: int = 0

    @property
    def request_id(self) -> str:
        """Names the item for ever: the same after any crash and retry."""
        return f"batch_req_{self.claim.batch_hex}_{self.line_no}"

    @property
    def idempotency_key(self) -> str:
        """Names one attempt: what was sent before a crash carries the same key when it is sent again."""
        return f"{self.claim.batch_hex}-{self.line_no}-{self.claim.attempt}"


class Completed(msgspec.Struct, frozen=True):
    """The item is done; `output` is its finished output line."""

    item: Item
    status_code: int
    output: bytes
    usage: Usage = NO_USAGE


class Failed(msgspec.Struct, frozen=True):
    """The item has failed for good; `output` is its finished error line."""

    item: Item
    output: bytes
    status_code: int | None = None


class Retry(msgspec.Struct, frozen=True):
    """The attempt failed; another one may start `delay` seconds from now, on the database's clock."""

    item: Item
    error_code: str
    message: str
    delay: float


class Deferred(msgspec.Struct, frozen=True):
    """This was no attempt: the request never left, or its time-out does not count (worker/slots.py). Try it
    again `delay` seconds from now, under the same idempotency key."""

    item: Item
    delay: float = 0.0


Verdict: TypeAlias = Completed | Failed | Retry | Deferred


class TimedOut(msgspec.Struct, frozen=True):
    """No complete answer came in time. Not a verdict yet: the executor cannot know whether too much was in
    flight. The worker makes it a Retry or a Failed if it counts as an attempt, a Deferred if not."""

    item: Item
    error_code: str
    message: str
    delay: float


Ran: TypeAlias = Verdict | TimedOut
"""What it comes to that an item was run."""


class Settled(msgspec.Struct, frozen=True):
    """What a settle did to one batch."""

    batch_id: UUID
    ended: int
    finished: bool
    closing: bool


class Horizon(msgspec.Struct, frozen=True):
    """What an idle worker learns from one poll."""

    claimable: bool
    finalizable: bool
    duty_due: bool
    next_due: float | None
    # Seconds until something that was handed out before may be claimed again; None: there is no such thing.
    next_free: float | None
    # An event to tell of, or a message for a webhook to send.
    news: bool
