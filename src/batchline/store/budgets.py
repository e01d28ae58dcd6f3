"""Caps of batches: what is spent, reserved and unconfirmed, and the reservation before each request."""

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

import msgspec

from batchline.store.arrays import Int8Array
from batchline.store.session import Session
from batchline.store.statements import statement

# A bigint holds the sum of two. Larger than any cap, so that what is cut off makes no difference.
_LARGEST = 2**62 - 1


class Amount(msgspec.Struct, frozen=True):
    """Nano-dollars and tokens."""

    cost: int = 0
    tokens: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cost + other.cost, self.tokens + other.tokens)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.cost - other.cost, self.tokens - other.tokens)


class Holder(msgspec.Struct, frozen=True):
    """Who reserves: one worker process, under the name that it has now."""

    id: UUID
    worker_id: UUID


class Reservation(msgspec.Struct, frozen=True):
    """How many of the wanted requests may be sent, and whether the batch may send any."""

    granted: int
    state: Literal["open", "closed", "paused"]


class Holds(msgspec.Struct, frozen=True):
    """What is reserved for requests in flight, and what may have been charged though no answer says so."""

    reserved: Amount
    unconfirmed: Amount


async def reserve(
    session: Session,
    batch_id: UUID,
    holder: Holder,
    held: Amount,
    wanted: Sequence[Amount],
    *,
    in_flight: bool,
) -> Reservation:
    """Say what the holder needs of its reservations, and reserve more. Repeatable after a lost answer."""
    ((granted, state),) = await session.rows(
        statement("reserve_budget"),
        {
            "batch": batch_id,
            "holder": holder.id,
            "worker": holder.worker_id,
            "held_cost": min(held.cost, _LARGEST),
            "held_tokens": min(held.tokens, _LARGEST),
            "in_flight": in_flight,
            "wanted_costs": Int8Array([min(each.cost, _LARGEST) for each in wanted]),
            "wanted_tokens": Int8Array([min(each.tokens, _LARGEST) for each in wanted]),
        },
    )
    return Reservation(granted, state)


async def holds(session: Session, batch_id: UUID) -> Holds:
    ((cost, tokens, lost_cost, lost_tokens),) = await session.rows(
        statement("read_holds"), {"batch": batch_id}
    )
    return Holds(Amount(cost, tokens), Amount(lost_cost, lost_tokens))
