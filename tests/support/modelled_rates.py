"""Workers under budgets per minute, over modelled time. The leases are those of the real function.

Each worker has requests that wait all the time, as many as it has slots, and an upstream that answers after a
while. Time passes from event to event, so a minute takes less than a second.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg

from batchline.model.rate_budget import RateBudget
from batchline.store import arrays
from batchline.store.rate_budgets import RateClaim
from batchline.upstreams.budget import Budget, BudgetLease, RequestCost, granted

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
# Seconds that the database needs for an answer.
_ANSWER = 0.005


def lease_at(
    connection: psycopg.Connection[Any], claims: Sequence[RateClaim], seconds: float
) -> Sequence[float]:
    """Lease at a time after noon."""
    cursor = connection.execute(
        "SELECT batchline.lease_rates_v1(%s, %s, %b, %b, %s)",
        [
            [each.budget_id for each in claims],
            [each.name for each in claims],
            arrays.Float8Array([each.wanted for each in claims]),
            arrays.Float8Array([each.returned for each in claims]),
            NOON + timedelta(seconds=seconds),
        ],
    )
    row = cursor.fetchone()
    assert row is not None
    waits: Sequence[float] = row[0]
    return waits


class ModelledTime:
    """Events in their order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    async def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
            # Requests that were granted something go on.
            for _ in range(5):
                await asyncio.sleep(0)
        self.now = until


class RateWorker:
    """Sends one request after the other in each of its slots. `estimate` and `use` give the tokens of the
    next request."""

    def __init__(
        self,
        time: ModelledTime,
        connection: psycopg.Connection[Any],
        budget: RateBudget,
        *,
        slots: int = 64,
        latency: float = 0.2,
        estimate: Callable[[], int] = lambda: 0,
        use: Callable[[], int] = lambda: 0,
    ) -> None:
        self._time = time
        self._connection = connection
        self._slots = slots
        self._latency = latency
        self._estimate = estimate
        self._use = use
        self.budget = Budget(budget, lambda: time.now, self._wanted)
        # When each request was sent, and the tokens that it used.
        self.sent: list[tuple[float, int]] = []
        self.leases = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._asking = False

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._slot()) for _ in range(self._slots)]
        # They begin at this time, and not at that of the next event.
        self._time.after(0.0, lambda: None)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _slot(self) -> None:
        while True:
            estimate, used = self._estimate(), self._use()
            cost = await self.budget.acquire(partial(RequestCost, estimate))
            assert cost is not None
            self.sent.append((self._time.now, used))
            answered = asyncio.Event()
            self._time.after(self._latency, answered.set)
            await answered.wait()
            self.budget.correct(cost.tokens - used)

    def _wanted(self) -> None:
        """As RateLeaser does it: one statement at a time."""
        if not self._asking:
            self._asking = True
            self._time.after(_ANSWER, self._lease)

    def _lease(self) -> None:
        self._asking = False
        lease = self.budget.next_lease()
        if lease is not None:
            self.leases += 1
            waits = lease_at(self._connection, lease.claims, self._time.now)
            lease, seconds = granted(lease, waits)
            self.budget.awaits(seconds)
            self._begin_after(seconds, lease)

    def _begin_after(self, seconds: float, lease: BudgetLease) -> None:
        self._time.after(seconds, lambda: self.budget.begin(lease))
