"""Which budgets a request counts in, what it takes of them, and what becomes of that."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from batchline.config.settings import BudgetSettings, ServerSettings, UpstreamSettings
from batchline.executors.http import HttpExecutor
from batchline.executors.http_answer import Answer
from batchline.executors.http_request import Order
from batchline.model import Completed, Deferred, Item, Ran, Spending
from batchline.model.rate_budget import BudgetScope, RateBudget
from batchline.upstreams.budget import Budget
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.rate_budgets import RateBudgets, budget_of, budgets_of
from batchline.upstreams.urls import normalized
from tests.support.http_executor import PATIENT, an_item
from tests.support.scripted_upstream import Behaviour, Upstream, answers, hangs, upstream_that

GPU, CPU = "http://gpu:8000/v1", "http://cpu:8000/v1"
# Ten bytes per token, and 100 tokens of output for a request that does not say how many it wants.
ESTIMATES = Spending(bytes_per_token=10.0, output_tokens=100)


def settings(*budgets: BudgetSettings) -> ServerSettings:
    upstreams = (UpstreamSettings("gpu", GPU, requests_per_minute=600), UpstreamSettings("cpu", CPU))
    return ServerSettings(upstreams, budgets=budgets)


def numbers(budgets: RateBudgets, url: str = GPU, model: str = "m", tenant: str = "t") -> list[int | None]:
    return [each.budget.requests for each in budgets.of(url, model, tenant)]


def test_a_request_counts_in_all_budgets_that_apply_the_narrowest_first() -> None:
    budgets = budgets_of(
        settings(
            BudgetSettings("gpu", "m", None, 500),
            BudgetSettings("cpu", None, None, 50),
            BudgetSettings(None, None, "t", 7),
            BudgetSettings("gpu", None, "t", 6),
            BudgetSettings(None, "m", None, 800),
        )
    )
    assert numbers(budgets) == [6, 7, 500, 800, 600]
    assert numbers(budgets, tenant="other") == [500, 800, 600]
    assert numbers(budgets, model="other", tenant="other") == [600]
    assert numbers(budgets, url=CPU, model="other", tenant="other") == [50]


def test_each_tenant_has_a_budget_of_its_own_unless_one_names_it() -> None:
    budgets = budgets_of(
        settings(BudgetSettings("cpu", None, "*", 10), BudgetSettings("cpu", None, "rich", 99))
    )
    (of_a,), (of_b,) = (budgets.of(CPU, "m", tenant) for tenant in ("a", "b"))
    assert of_a is not of_b
    assert of_a.requests is not None
    assert of_b.requests is not None
    assert of_a.requests.id != of_b.requests.id
    assert of_a is budgets.of(CPU, "other", "a")[0]
    assert numbers(budgets, CPU, tenant="rich") == [99]


def test_all_workers_know_a_budget_by_the_same_id() -> None:
    of_file = budgets_of(settings()).of(GPU, "m", "t")[0]
    of_run = budget_of(UpstreamSettings("", GPU, requests_per_minute=5), Spending()).of(GPU, "m", "t")[0]
    assert of_file.requests is not None
    assert of_run.requests is not None
    assert of_file.requests.id == of_run.requests.id


def test_names_in_the_database_have_no_secrets_and_no_tenants() -> None:
    url = "http://user:secret@host/v1"
    (budget,) = budget_of(UpstreamSettings("", url, requests_per_minute=5), Spending()).of(url, "m", "t")
    assert budget.requests is not None
    assert "secret" not in budget.requests.name
    (budget, _) = budgets_of(settings(BudgetSettings("gpu", "m", "acme", 5))).of(GPU, "m", "acme")
    assert budget.requests is not None
    assert budget.requests.name == "upstream gpu, model m, one tenant: requests"


def test_requests_and_tokens_of_the_same_scope_are_one_budget() -> None:
    """They may be set in different places."""
    (budget,) = budgets_of(settings(BudgetSettings("gpu", None, None, None, 9_000))).of(GPU, "m", "t")
    assert (budget.budget.requests, budget.budget.tokens) == (600, 9_000)


def test_without_budgets_nothing_waits() -> None:
    assert not budgets_of(ServerSettings((UpstreamSettings("gpu", GPU),)))


# The executor


def lease_all(budgets: RateBudgets) -> int:
    """Lease and begin whatever is wanted, as if the database had all of it; how many leases."""
    leases = 0
    for budget in budgets.all():
        while (lease := budget.next_lease()) is not None:
            budget.begin(lease)
            leases += 1
    return leases


@asynccontextmanager
async def a_limited_executor(
    upstream: Upstream, requests: int | None = None, tokens: int | None = None
) -> AsyncIterator[tuple[HttpExecutor, Budget]]:
    budget = RateBudget(BudgetScope(normalized(upstream.url)), requests, tokens)
    budgets = RateBudgets([budget], ESTIMATES)
    executor = HttpExecutor(Upstreams(PATIENT, environ={}, budgets=budgets))
    try:
        yield executor, budgets.of(normalized(upstream.url), "m", "")[0]
    finally:
        await executor.close()


def an_answer(status: int = 200, *headers: bytes, tokens: int | None = None) -> Behaviour:
    body = {} if tokens is None else {"usage": {"prompt_tokens": tokens - 1, "completion_tokens": 1}}
    return answers(status, json.dumps(body).encode(), *headers)


async def begun(executor: HttpExecutor, item: Item) -> asyncio.Task[Ran]:
    """Run the item until it waits for its budget."""
    task = asyncio.create_task(executor.run(item))
    await a_wish(executor)
    return task


async def a_wish(executor: HttpExecutor) -> None:
    """Wait until a lease is wanted."""
    wanted = asyncio.Event()
    executor.upstreams.budgets.on_wanted = wanted.set
    await wanted.wait()


async def test_nothing_is_sent_before_the_budget_allows_it() -> None:
    async with (
        upstream_that(an_answer()) as upstream,
        a_limited_executor(upstream, requests=60) as (
            executor,
            _,
        ),
    ):
        item = an_item(upstream.url)
        task = await begun(executor, item)
        assert not upstream.requests
        lease_all(executor.upstreams.budgets)
        assert isinstance(await task, Completed)
        assert len(upstream.requests) == 1


async def test_a_view_names_the_budget_that_requests_wait_for() -> None:
    async with (
        upstream_that(an_answer()) as upstream,
        a_limited_executor(upstream, requests=60) as (
            executor,
            _,
        ),
    ):
        task = await begun(executor, an_item(upstream.url))
        (view,) = executor.upstreams.views()
        assert view.budget is not None
        assert (view.budget.requests_per_minute, view.budget.waiting, view.signal) == (60, 1, "budget")
        lease_all(executor.upstreams.budgets)
        await task
        assert executor.upstreams.views()[0].budget is None


async def test_an_item_that_waits_is_given_back_when_the_worker_stops() -> None:
    async with (
        upstream_that(an_answer()) as upstream,
        a_limited_executor(upstream, requests=60) as (
            executor,
            _,
        ),
    ):
        item = an_item(upstream.url)
        task = await begun(executor, item)
        executor.wind_down()
        assert await task == Deferred(item)
        assert not upstream.requests


async def test_an_item_whose_lease_is_lost_while_it_waits_is_not_sent() -> None:
    async with (
        upstream_that(an_answer()) as upstream,
        a_limited_executor(upstream, requests=600) as (
            executor,
            _,
        ),
    ):
        names = iter(["me", "somebody else", "me", "me"])
        executor.fenced_by(lambda: next(names))
        item = an_item(upstream.url)
        task = await begun(executor, item)
        lease_all(executor.upstreams.budgets)
        assert await task == Deferred(item)
        # Its part of the budget is there for the next one.
        assert isinstance(await executor.run(item), Completed)
        assert len(upstream.requests) == 1


def left_of(budget: Budget) -> float:
    assert budget.tokens is not None
    return budget.tokens.left


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        pytest.param(an_answer(tokens=20), 83, id="less"),
        pytest.param(an_answer(tokens=500), -397, id="more"),
        pytest.param(an_answer(), 0, id="does not say"),
        pytest.param(an_answer(429), 103, id="refuses"),
        pytest.param(an_answer(500), 103, id="fails"),
        pytest.param(hangs, 0, id="does not answer"),
    ],
)
async def test_answers_correct_what_was_taken(answer: Behaviour, left: int) -> None:
    async with (
        upstream_that(answer) as upstream,
        a_limited_executor(upstream, tokens=60_000) as (
            executor,
            budget,
        ),
    ):
        # A body of 22 bytes is three tokens.
        item = an_item(upstream.url, timeout=0.2 if answer is hangs else 60.0)
        task = await begun(executor, item)
        lease_all(executor.upstreams.budgets)
        await task
        assert left_of(budget) == left


async def test_an_item_that_was_not_sent_gives_back_what_it_took() -> None:
    async with upstream_that(an_answer()) as upstream:
        url = upstream.url
    budgets = RateBudgets([RateBudget(BudgetScope(normalized(url)), 60, 60_000)], ESTIMATES)
    executor = HttpExecutor(Upstreams(PATIENT, environ={}, budgets=budgets))
    (budget,) = budgets.of(normalized(url), "m", "")
    task = await begun(executor, an_item(url))
    lease_all(budgets)
    assert isinstance(await task, Deferred)
    assert budget.requests is not None
    assert (budget.requests.left, left_of(budget)) == (1, 103)
    await executor.close()


async def test_later_requests_are_estimated_by_what_earlier_ones_used() -> None:
    async with (
        upstream_that(an_answer(tokens=10)) as upstream,
        a_limited_executor(upstream, tokens=60_000) as (executor, budget),
    ):
        first = await begun(executor, an_item(upstream.url))
        lease_all(executor.upstreams.budgets)
        await first
        before = left_of(budget)
        assert before == 93
        permit = executor.upstreams.budgets.permit(an_item(upstream.url))
        assert await permit.acquire(normalized(upstream.url), lambda: True)
        assert left_of(budget) == before - 10


async def test_other_requests_than_those_of_lines_count_too() -> None:
    """Those of operations and of stages."""
    async with (
        upstream_that(an_answer(tokens=7)) as upstream,
        a_limited_executor(upstream, tokens=60_000) as (executor, budget),
    ):
        task = asyncio.create_task(executor.send(an_item(upstream.url), Order("PUT", "/x")))
        await a_wish(executor)
        lease_all(executor.upstreams.budgets)
        assert isinstance(await task, Answer)
        assert left_of(budget) == 103 - 7


async def test_a_poll_of_a_task_is_a_request_without_tokens() -> None:
    async with (
        upstream_that(an_answer()) as upstream,
        a_limited_executor(upstream, tokens=60_000) as (
            executor,
            budget,
        ),
    ):
        item = an_item(upstream.url)
        polled = replace(item, claim=replace(item.claim, task_id="task-1"))
        await executor.exchange(polled, lambda _, route: route.client.get(route.url))
        assert left_of(budget) == 0


async def test_the_providers_headers_lower_the_rate() -> None:
    answer = an_answer(
        200,
        b"x-ratelimit-limit-requests: 60",
        b"x-ratelimit-remaining-requests: 0",
        b"x-ratelimit-reset-requests: 1m0s",
    )
    async with (
        upstream_that(answer) as upstream,
        a_limited_executor(upstream, requests=600) as (
            executor,
            budget,
        ),
    ):
        task = await begun(executor, an_item(upstream.url))
        lease_all(executor.upstreams.budgets)
        await task
        assert budget.requests is not None
        assert budget.requests.rate == 60
