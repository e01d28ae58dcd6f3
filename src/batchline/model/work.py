"""The result of a poll, and what a worker reports of its work."""

from collections.abc import Sequence
from uuid import UUID

import msgspec


class PollResult(msgspec.Struct, frozen=True):
    """What an idle worker learns from one poll."""

    claimable: bool
    finalizable: bool
    maintenance_due: bool
    next_due: float | None
    # Seconds until a span that was claimed before may be claimed again; None: there is none.
    next_free: float | None
    # An event to deliver, or a message to send to a webhook.
    news: bool
    # A hook of this worker to run.
    hooks_due: bool = False
    # An action on many batches to continue.
    actions_due: bool = False
    # A schedule of this worker to run.
    schedules_due: bool = False
    # Batches that the worker holds lines of, whose concurrency has changed, and the new values.
    changed: Sequence[UUID] = ()
    limits: Sequence[int | None] = ()


class KeyLoad(msgspec.Struct, frozen=True):
    """What one worker does for one routing key and model."""

    key: str
    model: str
    # Items that are sent, or wait for a slot of their upstream.
    in_flight: int
    # Items finished per second, while there were any.
    rate: float
    # The upstream slows it down: it refuses requests, cannot be reached, or answers too late.
    limited: bool
    # Why no connection to it can be made; None: it can, or nobody has tried.
    unreachable: str | None = None
    # The name of the upstream, if several serve the key.
    upstream: str | None = None
    # How many requests the worker may have in flight there now, and at most; the name of what this follows.
    # One limit may hold for several models. None: of a worker that does not report it.
    limit: int | None = None
    ceiling: int | None = None
    auto: bool = False
    signal: str | None = None
