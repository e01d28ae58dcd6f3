"""What the statements of an adoption take and return."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

Phase = Literal["prepare", "prepared", "adopted", "finished"]
Event = Literal["prepared", "cutover", "rollback", "finish"]


class AdoptionRefused(Exception):
    """A phase cannot run now. The message says why, and what to do; the details list what is in the way."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = list(details)


class Adoption(msgspec.Struct, frozen=True):
    """The state of the adoption, and what its steps took so far."""

    source: str
    shape: str
    phase: Phase
    next_page: int
    lines: int
    lines_seconds: float
    results: int
    results_seconds: float
    cutover_seconds: float | None
    prepared_at: datetime | None
    cutover_at: datetime | None
    rolled_back_at: datetime | None
    finished_at: datetime | None


class Size(msgspec.Struct, frozen=True):
    """How much the old tables hold, and how much of it is copied."""

    files: int
    templates: int
    batches: int
    copied_lines: int
    copied_results: int
    pending: int
    in_flight: int
    completed: int
    failed: int
    canceled: int

    @property
    def requests(self) -> int:
        return self.pending + self.in_flight + self.completed + self.failed + self.canceled


class FinishedRequest(msgspec.Struct, frozen=True):
    """An old request with an end, and the item that it is here."""

    batch_id: UUID
    lane_id: int
    line_no: int
    ordinal: int
    custom_id: str
    request_id: str
    state: str
    retry_attempt: int
    response_status: int | None
    response_body: str | None
    error: str | None
    finished_at: datetime


class AdoptedResult(msgspec.Struct, frozen=True):
    """A result that was composed from an old request."""

    request: FinishedRequest
    outcome: Literal["completed", "failed"]
    status_code: int | None
    output: bytes
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class StoredResult(msgspec.Struct, frozen=True):
    """A result here whose old request is unfinished."""

    request_id: UUID
    outcome: str
    status_code: int | None
    attempt: int
    finished_at: datetime
    output: str


class WrittenBack(msgspec.Struct, frozen=True):
    """What an old request says when its result is written back."""

    request_id: UUID
    state: str
    retry_attempt: int
    response_status: int | None
    response_body: bytes | None
    error: bytes | None
    finished_at: datetime


class LeftOut(msgspec.Struct, frozen=True):
    """A batch that stays in the old tables; without an id: requests without a batch."""

    batch_id: UUID | None
    reason: str
    unfinished: int


class PossiblySent(msgspec.Struct, frozen=True):
    """An item that a dead program had claimed: it may have been sent, and may be sent again."""

    batch_id: UUID
    line_no: int
    found_by: Literal["cutover", "rollback"]
    custom_id: str
    state: str
    claimed_at: datetime | None


class BatchCounts(msgspec.Struct, frozen=True):
    """A batch in the old tables and here. Without a total it does not exist here."""

    batch_id: UUID
    completed: int
    failed: int
    canceled: int
    unfinished: int
    total: int | None
    completed_here: int | None
    failed_here: int | None
    missing: int
    adopted: int
    since: int


class Copied(msgspec.Struct, frozen=True):
    """A range of lines of one file to copy next."""

    file_no: int
    copied: int
    line_count: int


class CutoverSettings(msgspec.Struct, frozen=True):
    """What the old tables do not say about the adopted batches."""

    tenant: str
    by_owner: bool
    upstream: str | None
    # Seconds that unfinished batches have from the cutover on, at least.
    grace: float
