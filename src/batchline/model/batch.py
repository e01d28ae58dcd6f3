"""A batch, and its status, which follows from its timestamps."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from batchline.model.file import ContentError


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


class Recovery(StrEnum):
    """What to do with an item that a provider may have accepted without an answer."""

    # The provider offers nothing to find out: hold it until an operator decides, or its batch ends.
    HOLD = "hold"
    # The provider answers a repeated Idempotency-Key with the same task: submit it again under its key.
    KEY = "key"
    # The provider can be searched by metadata: look for the task before it is submitted again.
    METADATA = "metadata"
    # Submit it again, even if that makes a second task.
    RESUBMIT = "resubmit"


PROVIDER_NAMES = ("openai-background",)


class ProviderSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an upstream that is an asynchronous provider is used."""

    name: str
    recovery: Recovery = Recovery.HOLD
    # Tasks that the provider may have at once.
    max_tasks: int = 10_000
    # Seconds after which the provider knows what it has accepted.
    recheck: float = 60.0


class RunSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the lines of a batch run. Stored with the batch, so that any worker can continue it."""

    upstream: str | None = None
    api_key_env: str | None = None
    max_attempts: int = 5
    timeout: float = 600.0
    # None: the upstream answers a request with its result.
    provider: ProviderSettings | None = None


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
    # From then on, its results may be incomplete: they are being deleted.
    purging_at: datetime | None = None
    output_expires_after: int | None = None
    # The model, if all lines have the same.
    model: str | None = None
    # Why it failed while validating.
    errors: tuple[ContentError, ...] | None = None
    # It waits for an approval or a release.
    held_at: datetime | None = None
    # For operators: failures of finalizing, the time of the next try, and the last error.
    finalize_failures: int = 0
    finalize_after: datetime | None = None
    finalize_error: str | None = None

    @property
    def status(self) -> BatchStatus:
        """The first match wins: ends first, then transitions, then progress."""
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
