"""A budget per minute, as one worker uses it: leases that it got from the database, and requests that wait.

A worker leases half a second's worth at a time, or one request if that is more, and only while requests want
it. A lease begins at a time that the database sets. The worker asks for the next one when the last one has
begun, so that there is no gap between them. Requests take their amounts in the order in which they came.

Tokens are estimated before a request. What the answer says less or more is added to what the worker has, or
taken from it, so it counts in the next lease. What is not used within a second is given back.

Nothing here waits or reads the database: `RateLeaser` does.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias
from uuid import UUID

import msgspec

from batchline.model.rate_budget import RateBudget
from batchline.store.rate_budgets import RateClaim
from batchline.upstreams.pace import AnswerRate

# One lease, in seconds of the budget.
LEASE = 0.5
# How long a lease may be used after it has begun.
_KEPT = 1.0
_MINUTE = 60.0
# A provider's headers lower a rate for at most this time, and to no less than one request in it.
_MAX_LOWERED = 60.0


class RequestCost(msgspec.Struct, frozen=True):
    """What one request takes."""

    tokens: int
    requests: int = 1


class RateMeter:
    """One unit of a budget: requests or tokens. `left`: leased and not used; negative: used beyond that."""

    def __init__(self, id: UUID, name: str, per_minute: int, clock: Callable[[], float]) -> None:
        self.id = id
        self.name = name
        self.per_minute = per_minute
        self._clock = clock
        self._left = 0.0
        # Until then, it may be used here.
        self._until = -math.inf
        self._returned = 0.0
        self._lowered = math.inf
        self._lowered_until = -math.inf

    @property
    def rate(self) -> float:
        """Per minute, now."""
        if self._clock() >= self._lowered_until:
            return self.per_minute
        return min(self._lowered, self.per_minute)

    @property
    def lease(self) -> float:
        """The amount of one lease."""
        return self.rate * LEASE / _MINUTE

    @property
    def left(self) -> float:
        if self._left > 0 and self._clock() > self._until:
            self._returned += self._left
            self._left = 0.0
        return self._left

    def add(self, amount: float) -> None:
        """A lease has begun, or an amount was not needed; negative: more was used than was taken."""
        self._left = self.left + amount
        if amount > 0:
            self._until = self._clock() + _KEPT

    def take(self, amount: float) -> None:
        self._left = self.left - amount

    def claim(self, wanted: float) -> RateClaim:
        """What to lease for an amount. Gives back what was not used, and forgets it: if the answer is lost,
        it may have been counted."""
        returned, self._returned = self._returned, 0.0
        return RateClaim(
            self.id,
            self.name,
            max(wanted, 0.0) * _MINUTE / self.rate,
            # At the full rate: a lower one that was known meanwhile would make more of it.
            returned * _MINUTE / self.per_minute,
        )

    def lower(self, per_minute: float, seconds: float) -> None:
        """The provider allows less, for so long."""
        self._lowered = max(per_minute, _MINUTE / _MAX_LOWERED)
        self._lowered_until = self._clock() + min(seconds, _MAX_LOWERED)


class BudgetLease(msgspec.Struct, frozen=True):
    """What is to be leased of one budget."""

    requests: float
    tokens: float
    claims: tuple[RateClaim, ...]


def granted(lease: BudgetLease, waits: Sequence[float]) -> tuple[BudgetLease, float]:
    """What was leased, by what the database answered to each claim, and the seconds until it may be used.

    A negative answer grants nothing of that claim. What was granted of the other is given back if it is not
    used.
    """
    refused = {claim.budget_id for claim, seconds in zip(lease.claims, waits, strict=True) if seconds < 0}
    if not refused:
        return lease, max(waits)
    ids = [claim.budget_id for claim in lease.claims]
    requests = 0.0 if lease.requests and ids[0] in refused else lease.requests
    tokens = 0.0 if lease.tokens and ids[-1] in refused else lease.tokens
    return BudgetLease(requests, tokens, lease.claims), max(abs(seconds) for seconds in waits)


# What a request takes, as far as it is known at the moment: answers of others may tell more.
Quote: TypeAlias = Callable[[], RequestCost]


class _Waiter(msgspec.Struct):
    quote: Quote
    granted: asyncio.Future[RequestCost | None]


class Budget:
    """`on_wanted` is called when a lease is wanted."""

    def __init__(
        self, budget: RateBudget, clock: Callable[[], float], on_wanted: Callable[[], None] = lambda: None
    ) -> None:
        self.budget = budget
        self._clock = clock
        self._on_wanted = on_wanted
        scope, name = budget.scope, budget.name
        self.requests = self._meter(scope.id("requests"), f"{name}: requests", budget.requests)
        self.tokens = self._meter(scope.id("tokens"), f"{name}: tokens", budget.tokens)
        self._waiting: deque[_Waiter] = deque()
        # A lease was asked for, or has not begun.
        self._leasing = False
        self._begins = -math.inf
        self._uses = AnswerRate(clock)
        self._mean_tokens = 0.0
        self._closed = False
        # Called with each request that has got its amounts, or has been given up.
        self.on_granted: Callable[[], None] = lambda: None

    def _meter(self, id: UUID, name: str, per_minute: int | None) -> RateMeter | None:
        return None if per_minute is None else RateMeter(id, name, per_minute, self._clock)

    def sends_to(self, upstream: str) -> bool:
        """Whether requests to this upstream count in it."""
        return self.budget.scope.upstream in (None, upstream)

    @property
    def waiting(self) -> int:
        """Requests that wait for it."""
        return len(self._waiting)

    @property
    def begins_in(self) -> float:
        """Seconds until the next lease begins; 0 if none is awaited."""
        return max(self._begins - self._clock(), 0.0) if self._leasing else 0.0

    async def acquire(self, quote: Quote) -> RequestCost | None:
        """Wait until the request may be sent; what it has taken. None: the worker stops."""
        if self._closed:
            return None
        if not self._waiting and self._covers(cost := quote()):
            self._take(cost)
            self._look_ahead()
            return cost
        waiter = _Waiter(quote, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._on_wanted()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.cancelled():
                self._waiting = deque(each for each in self._waiting if each is not waiter)
            elif (granted := waiter.granted.result()) is not None:
                # It was granted before it could wake up.
                self.give_back(granted)
            raise

    def give_back(self, cost: RequestCost) -> None:
        """The request was not sent."""
        if self.requests is not None:
            self.requests.add(cost.requests)
        self.correct(cost.tokens)

    def correct(self, tokens: int) -> None:
        """So many tokens of a request were not used; negative: more were used than it took."""
        if self.tokens is not None and tokens:
            self.tokens.add(tokens)
        self._grant()

    def next_lease(self) -> BudgetLease | None:
        """What to lease now. If there is something, `begin` must follow, or `lost`."""
        if self._leasing or self._closed:
            return None
        # The first one may cost less by now, so that no lease would be needed, and nothing else grants it.
        self._grant_covered()
        requests, tokens = self._needed()
        wanted: list[RateClaim] = []
        if self.requests is not None and (requests := max(requests - self.requests.left, 0.0)):
            wanted.append(self.requests.claim(requests))
        if self.tokens is not None and (tokens := max(tokens - self.tokens.left, 0.0)):
            wanted.append(self.tokens.claim(tokens))
        if not wanted:
            return None
        self._leasing = True
        return BudgetLease(requests, tokens, tuple(wanted))

    def awaits(self, seconds: float) -> None:
        """The lease begins after so many seconds."""
        self._begins = self._clock() + seconds

    def begin(self, lease: BudgetLease) -> None:
        """The lease may be used from now on."""
        self._leasing = False
        for meter, amount in ((self.requests, lease.requests), (self.tokens, lease.tokens)):
            if meter is not None and amount:
                meter.add(amount)
        self._grant()

    def lost(self) -> None:
        """The database did not answer. It may have counted the lease."""
        self._leasing = False

    def close(self) -> None:
        """The worker stops: nothing waits any more."""
        self._closed = True
        while self._waiting:
            self._answer(self._waiting.popleft(), None)

    def _needed(self) -> tuple[float, float]:
        """For requests that wait, up to the amount of one lease, but for one in any case; and for those that
        come meanwhile, if there is room."""
        requests = tokens = 0.0
        max_requests = math.inf if self.requests is None else self.requests.lease
        max_tokens = math.inf if self.tokens is None else self.tokens.lease
        for waiter in self._waiting:
            cost = waiter.quote()
            more_requests, more_tokens = requests + cost.requests, tokens + cost.tokens
            if requests and (more_requests > max_requests or more_tokens > max_tokens):
                return requests, tokens
            requests, tokens = more_requests, more_tokens
        spare = min(self._ahead, max_requests - requests)
        if self._mean_tokens:
            spare = min(spare, (max_tokens - tokens) / self._mean_tokens)
        spare = max(math.floor(spare), 0)
        return requests + spare, tokens + math.ceil(spare * self._mean_tokens)

    @property
    def _ahead(self) -> float:
        """Requests that will come during one lease, if they come as before."""
        return self._uses.per_second * LEASE

    def _look_ahead(self) -> None:
        """Ask for the next lease before this one is used up."""
        if self._leasing:
            return
        ahead = self._ahead / 2
        if (self.requests is not None and self.requests.left < math.floor(ahead)) or (
            self.tokens is not None and self.tokens.left < math.floor(ahead) * self._mean_tokens
        ):
            self._on_wanted()

    def _grant(self) -> None:
        self._grant_covered()
        if self._waiting:
            self._on_wanted()

    def _grant_covered(self) -> None:
        while self._waiting and self._covers(cost := self._waiting[0].quote()):
            waiter = self._waiting.popleft()
            if not waiter.granted.done():
                self._take(cost)
                self._answer(waiter, cost)

    def _answer(self, waiter: _Waiter, cost: RequestCost | None) -> None:
        if not waiter.granted.done():
            waiter.granted.set_result(cost)
        self.on_granted()

    def _covers(self, cost: RequestCost) -> bool:
        return (self.requests is None or self.requests.left >= cost.requests) and (
            self.tokens is None or self.tokens.left >= cost.tokens
        )

    def _take(self, cost: RequestCost) -> None:
        self._uses.add()
        self._mean_tokens += (cost.tokens - self._mean_tokens) / 16
        if self.requests is not None:
            self.requests.take(cost.requests)
        if self.tokens is not None:
            self.tokens.take(cost.tokens)
