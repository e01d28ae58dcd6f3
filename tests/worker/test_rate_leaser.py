"""The service that leases parts of budgets: only while requests want them, and again after an error."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from batchline.model.rate_budget import BudgetScope, RateBudget
from batchline.store import rate_budgets
from batchline.store.rate_budgets import RateClaim
from batchline.store.session import Session, StoreUnavailable
from batchline.upstreams.budget import RequestCost
from batchline.upstreams.rate_budgets import RateBudgets
from batchline.worker.rate_leaser import RateLeaser
from tests.support.builders import sql
from tests.support.virtual_time import VirtualTimeLoop

URL = "http://a"
MINUTE = 60.0


def budgets_with(*budgets: RateBudget) -> RateBudgets:
    return RateBudgets(budgets, clock=asyncio.get_running_loop().time)


@asynccontextmanager
async def leasing(budgets: RateBudgets, session: Session) -> AsyncIterator[RateLeaser]:
    leaser = RateLeaser(session, budgets)
    running = asyncio.create_task(leaser.run())
    try:
        yield leaser
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_requests_get_their_parts_from_the_database(db: Session) -> None:
    budgets = budgets_with(
        RateBudget(BudgetScope(URL), 60_000, 6_000_000), RateBudget(BudgetScope(tenant="t"), 60_000)
    )
    narrow, wide = budgets.of(URL, "m", "t")
    async with leasing(budgets, db) as leaser:
        for _ in range(3):
            assert await narrow.acquire(lambda: RequestCost(0)) == RequestCost(0)
            assert await wide.acquire(lambda: RequestCost(10)) == RequestCost(10)
        await leaser.idle.wait()
    assert await sql(db, "SELECT count(*) FROM batchline.rate_budgets") == [(3,)]


class Database:
    """The database as the leaser sees it, over modelled time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Sequence[RateClaim]] = []
        self.failures = 0
        self.refusals = 0
        self._given = 0.0
        monkeypatch.setattr(rate_budgets, "lease", self._lease)

    async def _lease(self, _: Session, claims: Sequence[RateClaim]) -> list[float]:
        self.calls.append(claims)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("gone")
        if self.refusals:
            self.refusals -= 1
            return [-10.0] * len(claims)
        now = asyncio.get_running_loop().time()
        begins = max(self._given, now)
        self._given = begins + max(claim.wanted for claim in claims)
        return [begins - now] * len(claims)


async def sent_within(seconds: float, requests: int, per_minute: int) -> int:
    """How many of so many requests are sent."""
    budgets = budgets_with(RateBudget(BudgetScope(URL), per_minute))
    (budget,) = budgets.of(URL, "m", "t")
    async with leasing(budgets, Session("postgresql://nowhere", "test")):
        tasks = [asyncio.create_task(budget.acquire(lambda: RequestCost(0))) for _ in range(requests)]
        done, _ = await asyncio.wait(tasks, timeout=seconds)
        budgets.close()
        await asyncio.wait(tasks)
        return len(done)


def test_it_leases_twice_per_second_while_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(monkeypatch)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        sent = runner.run(sent_within(MINUTE, 1_000, per_minute=600))
    assert sent == pytest.approx(600, abs=10)
    assert len(database.calls) <= 2 * MINUTE + 2


def test_without_requests_it_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(monkeypatch)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(sent_within(60 * MINUTE, 1, per_minute=600)) == 1
    assert len(database.calls) == 1


def test_after_an_error_it_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(monkeypatch)
    database.failures = 5
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(sent_within(MINUTE, 3, per_minute=600)) == 3
    assert len(database.calls) == 6


def test_what_it_did_not_get_is_not_used_and_asked_for_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(monkeypatch)
    database.refusals = 3
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(sent_within(29.0, 1, per_minute=600)) == 0
        database.calls.clear()
        database.refusals = 3
        assert runner.run(sent_within(MINUTE, 1, per_minute=600)) == 1
    assert len(database.calls) == 4
