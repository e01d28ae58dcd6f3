"""An action on all batches of a tenant that match a filter."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

import msgspec

from batchline.model.tenant import Role


class BulkKind(StrEnum):
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    DELETE = "delete"
    PRIORITY = "priority"


class BatchFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which batches. Each field that is given narrows the selection."""

    # The first digits of an id; or else part of a file's name, a model, an operation or the metadata.
    q: str | None = None
    status: tuple[str, ...] | None = None
    # Ordinary batches, or governed ones.
    kind: Literal["batch", "operation"] | None = None
    model: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    ids: tuple[UUID, ...] | None = None


class NewBulkAction(msgspec.Struct, frozen=True):
    id: UUID
    tenant: str
    actor: str
    role: Role
    # The server had no API keys.
    alone: bool
    action: BulkKind
    filter: BatchFilter
    matching: int
    # The new priority, for `priority`.
    value: int | None = None


class BulkAction(NewBulkAction, frozen=True, kw_only=True):
    # Batches that were done, and that were refused; the first of the latter, with the reasons.
    done: int
    failed_count: int
    failed: tuple[tuple[UUID, str], ...]
    created_at: datetime
    cancelled_at: datetime | None
    # Why it ended early.
    error: str | None
    ended_at: datetime | None
    # The last batch that was looked at.
    position_at: datetime
    position_id: UUID
    turns: int

    @property
    def state(self) -> Literal["running", "completed", "cancelled", "failed"]:
        if self.cancelled_at is not None:
            return "cancelled"
        if self.ended_at is None:
            return "running"
        return "completed" if self.error is None else "failed"


class BulkPreview(msgspec.Struct, frozen=True):
    """What an action would concern now."""

    matching: int
    # False: there are more.
    exact: bool
    sample: tuple[UUID, ...]
    # Lines of the matching batches that have not been sent yet, and that are in flight.
    not_started: int
    in_flight: int


def filter_values(wanted: BatchFilter) -> dict[str, Any]:
    """As it is stored."""
    return {name: value for name, value in msgspec.to_builtins(wanted).items() if value is not None}
