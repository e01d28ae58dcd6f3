"""Budgets per minute: a worker leases a part of one before it sends. Amounts are in seconds of the budget: 10
requests of 600 per minute are one second."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from batchline.store.arrays import Float8Array
from batchline.store.session import Session
from batchline.store.statements import statement

# Of one call. The function counts no more than five minutes.
_LONGEST = 86_400.0


class RateClaim(msgspec.Struct, frozen=True):
    """What a worker wants of one budget, and what it gives back of earlier leases; negative: it has used more
    than it had leased."""

    budget_id: UUID
    # For people who look at the table.
    name: str
    wanted: float
    returned: float = 0.0


async def lease(session: Session, claims: Sequence[RateClaim]) -> list[float]:
    """For each budget, the seconds until what was wanted may be used. Negative: nothing was leased, because
    too much is given away already; ask again after that many seconds. The budgets must be different.

    If the answer is lost, so is the lease. Then `returned` must not be repeated: it may have been counted.
    """
    params = {
        "ids": [each.budget_id for each in claims],
        "names": [each.name for each in claims],
        "wanted": Float8Array([min(each.wanted, _LONGEST) for each in claims]),
        "returned": Float8Array([max(-_LONGEST, min(each.returned, _LONGEST)) for each in claims]),
    }
    ((waits,),) = await session.rows(statement("lease_rates"), params)
    return list(waits)
