"""An item with the history of its attempts, and how long each part of its life took."""

from datetime import datetime

import msgspec


class Attempt(msgspec.Struct, frozen=True):
    """An attempt that failed and was followed by another, which may start at `not_before`."""

    attempt: int
    error_code: str
    message: str
    not_before: datetime
    created_at: datetime
    times: "AttemptTimes | None" = None


class AttemptTimes(msgspec.Struct, frozen=True):
    """Seconds of one attempt: held by the worker that brought the verdict; of these, from sending the request
    to its answer, and from then until the verdict was stored."""

    held: float
    upstream: float
    settling: float


class ItemHistory(msgspec.Struct, frozen=True):
    """An item, its state, and its failed attempts, oldest first."""

    custom_id: str
    line_no: int
    model: str
    # As in docs/reference/states.md.
    state: str
    # The current one, or the one that ended it.
    attempt: int
    # Since when a worker holds it.
    claimed_at: datetime | None
    # If it waits: until then.
    not_before: datetime | None
    status_code: int | None
    finished_at: datetime | None
    attempts: tuple[Attempt, ...]
    # Since when it could run: the start of its batch.
    started_at: datetime | None = None
    # Its end; or that of its batch, if it never ran; or now.
    until: datetime | None = None
    # Of the attempt that ended it.
    times: AttemptTimes | None = None
    error_code: str | None = None
    message: str | None = None
    # A provider's task.
    task_id: str | None = None


class Phases(msgspec.Struct, frozen=True):
    """Milliseconds of an attempt, or of a whole life. They add up to the wall time.

    In this order: `backoff`, the delay after the attempt before; `waiting` for a worker to claim it; `limit`,
    in the worker, until the limits on requests let it be sent; `upstream`, until the answer; `settling`,
    until the result was stored. `held`: in the hands of a worker now, which has not yet told what of it was
    limit and what upstream.
    """

    backoff: int = 0
    waiting: int = 0
    limit: int = 0
    upstream: int = 0
    settling: int = 0
    held: int = 0

    @property
    def total(self) -> int:
        return sum(msgspec.structs.astuple(self))

    def __add__(self, other: "Phases") -> "Phases":
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Phases(*(mine + others for mine, others in pairs))


def phases(item: ItemHistory) -> list[Phases]:
    """How long each part of each attempt took, the last one included, in whatever state it is."""
    if item.started_at is None or item.until is None:
        return []
    found, began, due = list[Phases](), item.started_at, item.started_at
    for each in item.attempts:
        found.append(_phases(began, due, each.created_at, each.times))
        began, due = each.created_at, each.not_before
    if item.finished_at is None and item.claimed_at is not None:
        since = max(item.claimed_at, began)
        held = _phases(began, due, since, None)
        found.append(msgspec.structs.replace(held, held=_milliseconds(since, item.until)))
    else:
        found.append(_phases(began, due, item.until, item.times))
    return found


def _phases(began: datetime, due: datetime, ended: datetime, times: AttemptTimes | None) -> Phases:
    """What is not known to be something else is waiting, or, in a worker, limit."""
    total = _milliseconds(began, ended)
    held = 0 if times is None else min(round(1000 * times.held), total)
    upstream = 0 if times is None else min(round(1000 * times.upstream), held)
    settling = 0 if times is None else min(round(1000 * times.settling), held - upstream)
    backoff = min(_milliseconds(began, due), total - held)
    waiting = total - held - backoff
    return Phases(backoff, waiting, held - upstream - settling, upstream, settling)


def _milliseconds(since: datetime, until: datetime) -> int:
    return max(round(1000 * (until - since).total_seconds()), 0)
