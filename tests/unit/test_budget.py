"""A budget as one worker uses it: in order, not before its lease begins, and without what is stale."""

import asyncio
from functools import partial

import pytest

from batchline.model.rate_budget import BudgetScope, RateBudget
from batchline.upstreams import budget as budgets
from batchline.upstreams.budget import Budget, BudgetLease, RequestCost


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Wishes:
    count = 0

    def __call__(self) -> None:
        self.count += 1


def a_budget(clock: Clock, requests: int | None = None, tokens: int | None = None) -> Budget:
    return Budget(RateBudget(BudgetScope("http://a"), requests, tokens), clock, Wishes())


def lease_of(budget: Budget) -> BudgetLease:
    lease = budget.next_lease()
    assert lease is not None
    return lease


async def waiting(budget: Budget, *tokens: int) -> list[asyncio.Task[RequestCost | None]]:
    tasks = [asyncio.create_task(budget.acquire(partial(RequestCost, each))) for each in tokens]
    await asyncio.sleep(0)
    return tasks


async def granted(tasks: list[asyncio.Task[RequestCost | None]]) -> list[bool]:
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def test_nothing_is_leased_before_a_request_wants_it() -> None:
    assert a_budget(Clock(), requests=600).next_lease() is None


async def test_a_lease_is_half_a_second_or_one_request() -> None:
    for per_minute, amount in ((6, 1), (120, 1), (600, 5), (60_000, 50)):
        budget = a_budget(Clock(), requests=per_minute)
        tasks = await waiting(budget, *[0] * 50)
        lease = lease_of(budget)
        assert lease.requests == amount
        assert lease.claims[0].wanted == pytest.approx(amount * 60 / per_minute)
        assert await granted(tasks) == [False] * 50
        budget.begin(lease)
        assert (await granted(tasks)).count(True) == amount
        budget.close()


async def test_requests_are_granted_in_their_order() -> None:
    budget = a_budget(Clock(), tokens=6_000)
    tasks = await waiting(budget, 40, 10, 500, 1)
    budget.begin(lease_of(budget))
    # The small one does not overtake the large one.
    assert await granted(tasks) == [True, True, False, False]
    budget.begin(lease_of(budget))
    assert await granted(tasks) == [True, True, True, False]
    budget.close()


async def test_a_request_is_granted_once_it_costs_no_more_than_what_is_left() -> None:
    """Answers of others have told that such requests take fewer tokens, after its lease has begun."""
    budget, tokens = a_budget(Clock(), tokens=60_000), [400]
    request = asyncio.create_task(budget.acquire(lambda: RequestCost(tokens[0])))
    await asyncio.sleep(0)
    lease = lease_of(budget)
    tokens[0] = 420
    budget.begin(lease)
    assert not (await granted([request]))[0]
    tokens[0] = 395
    assert budget.next_lease() is None, "nothing more is needed"
    assert (await granted([request]))[0]


async def test_one_lease_at_a_time_is_wanted() -> None:
    budget = a_budget(Clock(), requests=600)
    tasks = await waiting(budget, *[0] * 20)
    lease = lease_of(budget)
    assert budget.next_lease() is None
    budget.begin(lease)
    assert budget.next_lease() is not None
    budget.close()
    assert all(await asyncio.gather(*tasks[:5]))


async def test_a_lease_that_was_lost_is_wanted_again() -> None:
    budget = a_budget(Clock(), requests=600)
    await waiting(budget, 0)
    lease_of(budget)
    budget.lost()
    assert budget.next_lease() is not None
    budget.close()


async def test_nothing_waits_when_the_worker_stops() -> None:
    budget = a_budget(Clock(), requests=600)
    tasks = await waiting(budget, 0, 0)
    budget.close()
    assert await asyncio.gather(*tasks) == [None, None]
    assert await budget.acquire(lambda: RequestCost(0)) is None


async def test_a_request_that_is_cancelled_takes_nothing() -> None:
    budget = a_budget(Clock(), requests=120)
    first, second = await waiting(budget, 0, 0)
    lease = lease_of(budget)
    first.cancel()
    await asyncio.sleep(0)
    budget.begin(lease)
    assert await second == RequestCost(0)


async def test_a_request_that_is_cancelled_when_it_is_granted_gives_back() -> None:
    budget = a_budget(Clock(), requests=120)
    first, second = await waiting(budget, 0, 0)
    lease = lease_of(budget)
    budget.begin(lease)
    first.cancel()
    assert await second == RequestCost(0)


async def test_what_is_not_used_within_a_second_is_given_back_with_the_next_lease() -> None:
    clock = Clock()
    budget = a_budget(clock, requests=600)
    tasks = await waiting(budget, 0, 0, 0)
    lease = lease_of(budget)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    budget.begin(lease)
    clock.now = 1.5
    await waiting(budget, 0)
    claim = lease_of(budget).claims[0]
    assert (claim.wanted, claim.returned) == pytest.approx((0.1, 0.3))
    # Once: the answer may be lost, and the database may have counted it.
    budget.lost()
    assert lease_of(budget).claims[0].returned == 0
    budget.close()


async def test_answers_correct_estimates_in_both_directions() -> None:
    budget = a_budget(Clock(), tokens=6_000)
    (task,) = await waiting(budget, 1_000)
    budget.begin(lease_of(budget))
    assert await task == RequestCost(1_000)
    budget.correct(300)
    assert await budget.acquire(lambda: RequestCost(300)) == RequestCost(300)
    budget.correct(-200)
    (task,) = await waiting(budget, 100)
    # What was used beyond its lease is paid for by the next one.
    assert lease_of(budget).tokens == 300
    budget.close()
    await task


async def test_a_provider_lowers_the_rate_for_a_while_and_never_raises_it() -> None:
    clock = Clock()
    budget = a_budget(clock, requests=600)
    assert budget.requests is not None
    budget.requests.lower(60, 30)
    assert budget.requests.rate == 60
    clock.now = 29.9
    assert budget.requests.rate == 60
    clock.now = 30.0
    assert budget.requests.rate == 600
    budget.requests.lower(6_000, 30)
    assert budget.requests.rate == 600


async def test_a_provider_stops_nobody_for_longer_than_a_minute() -> None:
    clock = Clock()
    budget = a_budget(clock, requests=600)
    assert budget.requests is not None
    budget.requests.lower(0.000_1, 1e9)
    assert budget.requests.rate == 1
    clock.now = 60.0
    assert budget.requests.rate == 600


async def test_a_busy_worker_leases_ahead() -> None:
    """So that a request seldom waits for the database."""
    clock = Clock()
    budget = a_budget(clock, requests=60_000)
    for _ in range(20):
        tasks = await waiting(budget, *[0] * 100)
        while (lease := budget.next_lease()) is not None:
            budget.begin(lease)
        await asyncio.gather(*tasks)
        clock.now += 0.1
    assert await budget.acquire(lambda: RequestCost(0)) == RequestCost(0)


@pytest.mark.parametrize(
    ("waits", "given", "seconds"),
    [((2.0, 3.0), (1, 5), 3.0), ((-2.0, 3.0), (0, 5), 3.0), ((0.0, -7.0), (1, 0), 7.0)],
)
async def test_only_what_the_database_has_granted_is_leased(
    waits: tuple[float, float], given: tuple[int, int], seconds: float
) -> None:
    budget = a_budget(Clock(), requests=60, tokens=60)
    tasks = await waiting(budget, 5)

    lease, after = budgets.granted(lease_of(budget), waits)

    assert ((lease.requests, lease.tokens), after) == (given, seconds)
    budget.close()
    await asyncio.gather(*tasks)
