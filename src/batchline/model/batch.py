"""A batch, and its status, which follows from its timestamps."""

from datetime import datetime
from enum import StrEnum
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from batchline.model.answer_rules import AnswerRules
from batchline.model.file import ContentError
from batchline.model.spending import Spending
from batchline.model.steps import StepPlan


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


# How the routing keys of a reserved batch begin, before the upstream's URL. create_batch.sql writes it.
RESERVED = "run:"
# How those of a batch begin whose lines go through a batch API.
RELAYED = RESERVED + "batch:"

PROVIDER_NAMES = ("openai-background",)


class ProviderSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an upstream that is an asynchronous provider is used."""

    name: str
    recovery: Recovery = Recovery.HOLD
    # Tasks that the provider may have at once.
    max_tasks: int = 10_000
    # Seconds after which the provider knows what it has accepted.
    recheck: float = 60.0


class Via(StrEnum):
    """How lines reach an upstream."""

    # Each as one request.
    DIRECT = "direct"
    # In chunks, through the upstream's own batch API.
    BATCH = "batch"
    # As `batch` while the deadline leaves time for it, else as `direct`.
    AUTO = "auto"


BATCH_APIS = ("openai", "anthropic")


class RelaySettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the batch API of an upstream is used. Times are in seconds, sizes in bytes."""

    via: Via = Via.BATCH
    api: str = "openai"
    # What the provider promises: a chunk takes no longer.
    window: float = 86_400.0
    # With `auto`: so long before the deadline, lines that have no answer are sent directly.
    fallback: float = 3_600.0
    # HOLD or RESUBMIT: what becomes of a chunk that the provider may have accepted, if it cannot be searched.
    recovery: Recovery = Recovery.HOLD
    # After this time, the provider lists what it has accepted.
    recheck: float = 60.0
    # Limits of one chunk, and of all open chunks. None: as the provider's API has it, or no limit.
    max_lines: int | None = None
    max_bytes: int | None = None
    max_tokens: int | None = None
    max_chunks: int = 20
    # Delete the provider's files once a chunk is done.
    delete_files: bool = False


class Collecting(msgspec.Struct, frozen=True):
    """A stage that runs when all others have ended, over results of one of them: of all, or key by key."""

    url: str
    source: str
    by_key: bool = False


class RunCommand(msgspec.Struct, frozen=True):
    """A `run` command for display, without secrets, and the folder that it was given in."""

    text: str
    folder: str


class RunSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the lines of a batch run. Stored with the batch, so that any worker can continue it."""

    upstream: str | None = None
    api_key_env: str | None = None
    max_attempts: int = 5
    timeout: float = 600.0
    # None: the upstream answers a request with its result.
    provider: ProviderSettings | None = None
    # None: its lines are sent directly.
    relay: RelaySettings | None = None
    # Pause the batch when more lines than this have failed, or more than this part of all lines; in steps, of
    # the lines that may run so far.
    max_failed: int | None = None
    max_failed_percent: float | None = None
    # Run it in steps; None: all at once.
    steps: StepPlan | None = None
    # Send identical lines once, and give the answer to all of them.
    dedupe: bool = False
    # Send lines whose prompts begin alike together; None: in the order of the file.
    order: Literal["prefix"] | None = None
    # Pause it when the first so many lines all fail alike with 400, 401, 403 or 404.
    pause_alike: int | None = None
    # Only the `run` command that created the batch works on it, and workers that are asked to. Its lanes are
    # marked when it is created: see RESERVED.
    reserved: bool = False
    # What its answers must be like; None: anything.
    answers: AnswerRules | None = None
    # Of a batch of the server: the upstream of each model when it was created. Only the reuse of answers
    # reads it; workers route by their own settings. A model that is not here has a provider. None: unknown.
    served_by: dict[str, str] | None = None
    # None: its cost is unknown and has no cap.
    spending: Spending | None = None
    # Continues the batch.
    command: RunCommand | None = None
    # The trace in which it was submitted.
    traceparent: str | None = None
    # Of a Python operation: the urls of all its lanes, that of the submitted operation first.
    stages: tuple[str, ...] = ()
    # Those of its stages that collect results of others, in the order in which they run.
    collects: tuple[Collecting, ...] = ()


# Priorities of batches.
MIN_PRIORITY, MAX_PRIORITY = -100, 100
MAX_CONCURRENCY = 100_000


class BatchChange(msgspec.Struct, frozen=True):
    """New values for a batch that runs. UNSET: as before."""

    priority: int | UnsetType = UNSET
    # None: no limit.
    concurrency: int | UnsetType | None = UNSET
    # A time, or so many seconds from now on. None: no deadline.
    deadline: datetime | float | UnsetType | None = UNSET


class ItemCounts(msgspec.Struct, frozen=True):
    """Items of a batch by state. The other seven add up to `total`."""

    total: int
    completed: int
    failed: int
    pending: int
    in_progress: int
    retrying: int
    cancelled: int
    expired: int


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
    # None: no deadline.
    expires_at: datetime | None
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
    # Completed items whose answers were copied from earlier batches.
    reused: int = 0
    # Items that got the answer, or the failure, of an identical item.
    duplicates: int = 0
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
    # Lines that an earlier end left without a result, as `cancelled` or `expired`, and that the running retry
    # has left out.
    left_out: int = 0
    left_out_as: Literal["cancelled", "expired"] | None = None
    # Until it is frozen: items that were claimed at least once, and of these those that wait for another try,
    # and those that can be claimed again now.
    claimed: int = 0
    retrying: int = 0
    returned: int = 0
    # Nano-dollars, of all attempts whose usage is known.
    cost: int = 0
    # The rule that paused it: `max_failed`, `alike`, `max_cost`, `max_tokens`, `sample`; None: a user did.
    paused_by: str | None = None
    # How many steps have begun, and how many lines may run so far, with those that have ended. None: all.
    step: int = 0
    step_total: int | None = None
    step_began_at: datetime | None = None
    # All of these have ended; when the next step begins, unless the batch is paused or held.
    next_step_at: datetime | None = None
    # Of the tenant's batches, those with a higher priority run first.
    priority: int = 0
    # Requests that one worker may have in flight at one upstream; None: as many as the upstream may have.
    concurrency: int | None = None
    # More items can be added to it.
    accepting: bool = False

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
    def pause_rule(self) -> str | None:
        """The rule that has paused it; None: it is not paused, or a user has paused it."""
        return self.paused_by if self.status is BatchStatus.PAUSED else None

    @property
    def sampling(self) -> bool:
        """Whether only its sample may run, or has run, and the rest is to be decided on."""
        return self.step_total is not None and self.step == 0 and self.finalizing_at is None

    @property
    def finished(self) -> int:
        return self.completed + self.failed

    @property
    def counts(self) -> "ItemCounts":
        """How many items are in which state. An item that was never claimed is pending, or never runs if the
        batch is closed."""
        # The cursors have passed what a retry has left out.
        claimed = self.finished if self.finalizing_at is not None else self.claimed - self.left_out
        unclaimed = self.total - claimed - self.left_out
        cancelling, expiring = self.cancelling_at is not None, self.expiring_at is not None
        return ItemCounts(
            total=self.total,
            completed=self.completed,
            failed=self.failed,
            pending=self.returned + (0 if cancelling or expiring else unclaimed),
            in_progress=claimed - self.finished - self.retrying - self.returned,
            retrying=self.retrying,
            cancelled=(unclaimed if cancelling else 0) + self._left_out("cancelled"),
            expired=(unclaimed if expiring and not cancelling else 0) + self._left_out("expired"),
        )

    def _left_out(self, ending: Literal["cancelled", "expired"]) -> int:
        return self.left_out if self.left_out_as == ending else 0
