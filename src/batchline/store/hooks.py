"""Completion hooks and their deliveries. The database knows hooks by name only, never what they run."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from batchline.model import END_EVENTS
from batchline.store.session import Session
from batchline.store.statements import statement

_CHUNK = 5_000


class HookDelivery(msgspec.Struct, frozen=True):
    """One event for one hook."""

    hook: str
    event_id: UUID
    batch_id: UUID
    type: str
    occurred_at: datetime
    attempts: int
    available_at: datetime
    running_until: datetime | None
    delivered_at: datetime | None
    failed_at: datetime | None
    last_error: str | None
    last_output: str | None
    created_at: datetime

    @property
    def state(self) -> str:
        if self.delivered_at is not None:
            return "delivered"
        if self.failed_at is not None:
            return "abandoned"
        return "waiting" if self.running_until is None else "running"


class TakenHook(msgspec.Struct, frozen=True):
    """A delivery leased to this process."""

    hook: str
    event_id: UUID
    batch_id: UUID
    type: str
    occurred_at: datetime
    attempt: int


class HookOutcome(msgspec.Struct, frozen=True):
    """How one attempt ended. `output` is the end of what the hook wrote."""

    delivered: bool
    error: str | None = None
    output: str = ""


async def register(session: Session, names: Sequence[str]) -> None:
    """From now on, each event becomes a delivery for each of these hooks."""
    await session.rows(statement("register_hooks"), {"hooks": list(names)})


async def fan_out(session: Session, event_id: UUID) -> int:
    """Create the deliveries of an event. Return how many are new."""
    rows = await session.rows(statement("fan_out_hooks"), {"event": event_id, "ends": list(END_EVENTS)})
    return sum(int(created) for created, _ in rows)


async def request(session: Session, names: Sequence[str], batch_id: UUID) -> None:
    """Make the deliveries of a batch that has ended due now, unless they are delivered or being delivered."""
    params = {"hooks": list(names), "batch": batch_id, "ends": list(END_EVENTS)}
    await session.rows(statement("request_hooks"), params)


async def take(
    session: Session, names: Sequence[str], *, lease: float, batch_id: UUID | None = None
) -> TakenHook | None:
    """Lease a delivery to one of these hooks. Return None if none is due."""
    params = {"hooks": list(names), "lease": lease, "batch": batch_id}
    rows = await session.rows(statement("take_hook_delivery"), params)
    return TakenHook(*rows[0]) if rows else None


async def settle(
    session: Session, taken: TakenHook, outcome: HookOutcome, *, delay: float, max_attempts: int
) -> bool | None:
    """Record the outcome. Return whether the delivery is abandoned; None if another process has taken it."""
    params = {
        "hook": taken.hook,
        "event": taken.event_id,
        "attempt": taken.attempt,
        "delivered": outcome.delivered,
        "error": outcome.error,
        "output": outcome.output,
        "delay": delay,
        "max_attempts": max_attempts,
    }
    rows = await session.rows(statement("settle_hook_delivery"), params)
    return bool(rows[0][0]) if rows else None


async def deliveries(session: Session, *, limit: int, batch_id: UUID | None = None) -> list[HookDelivery]:
    params = {"batch": batch_id, "limit": limit}
    rows = await session.records(statement("list_hook_deliveries"), params)
    return [HookDelivery(**row) for row in rows]


async def forget(session: Session, seconds: float) -> int:
    """Forget hooks that no worker has had for so long. Return the number of abandoned deliveries."""
    ((abandoned,),) = await session.rows(statement("forget_hooks"), {"seconds": seconds})
    return int(abandoned)


async def drop_old(session: Session, seconds: float) -> int:
    """Delete one chunk of old deliveries. Return 0 when none is left."""
    params = {"seconds": seconds, "chunk": _CHUNK}
    ((gone,),) = await session.rows(statement("drop_old_hook_deliveries"), params)
    return int(gone)
