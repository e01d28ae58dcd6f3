"""Workers that share a budget per minute: together they use all of it and no more, each its share."""

import random
from collections.abc import Iterator, Sequence

import pytest

from batchline.model.ids import new_id
from batchline.model.rate_budget import BudgetScope, RateBudget
from tests.support import scenes
from tests.support.modelled_rates import ModelledTime, RateWorker
from tests.support.scenes import Stage

MINUTE = 60.0


@pytest.fixture(scope="module")
def stage_url(server_url: str, template: str) -> Iterator[str]:
    with scenes.database(server_url, template) as url:
        yield url


@pytest.fixture
def stage(stage_url: str) -> Iterator[Stage]:
    with Stage(stage_url) as stage:
        yield stage


def a_budget(requests: int | None = None, tokens: int | None = None) -> RateBudget:
    return RateBudget(BudgetScope(f"http://{new_id()}"), requests, tokens, "a test")


async def over_time(time: ModelledTime, workers: Sequence[RateWorker], until: float = MINUTE) -> None:
    for worker in workers:
        worker.start()
    await time.run(until)
    for worker in workers:
        await worker.stop()


def check_bound(workers: Sequence[RateWorker], per_minute: float) -> None:
    """At no moment more than the rate and one second's worth, or one request."""
    sent = sorted(moment for worker in workers for moment, _ in worker.sent)
    for nth, moment in enumerate(sent, 1):
        assert nth <= per_minute / MINUTE * moment + max(per_minute / MINUTE, 1) + 1e-3


@pytest.mark.parametrize("per_minute", [6, 60, 600, 12_000])
async def test_two_workers_use_a_budget_of_requests_within_two_percent(stage: Stage, per_minute: int) -> None:
    time, budget = ModelledTime(), a_budget(requests=per_minute)
    slots = max(4, per_minute // 50)
    workers = [RateWorker(time, stage.hand().connection, budget, slots=slots) for _ in range(2)]

    await over_time(time, workers)

    check_bound(workers, per_minute)
    assert sum(len(worker.sent) for worker in workers) == pytest.approx(per_minute, rel=0.02, abs=1)
    for worker in workers:
        assert len(worker.sent) == pytest.approx(per_minute / 2, rel=0.02, abs=1)
        # About one statement per second of each, or one for each request.
        assert worker.leases <= 2 * MINUTE


@pytest.mark.parametrize("seed", range(3))
async def test_two_workers_use_a_budget_of_tokens_within_two_percent(stage: Stage, seed: int) -> None:
    """Estimates are wrong by half in either direction, and answers correct them."""
    chance, time, budget = random.Random(seed), ModelledTime(), a_budget(tokens=600_000)
    workers = [
        RateWorker(
            time,
            stage.hand().connection,
            budget,
            estimate=lambda: chance.randint(250, 750),
            use=lambda: chance.randint(250, 750),
        )
        for _ in range(2)
    ]

    await over_time(time, workers)

    used = sum(tokens for worker in workers for _, tokens in worker.sent)
    assert used == pytest.approx(600_000, rel=0.02)
    for worker in workers:
        assert sum(tokens for _, tokens in worker.sent) == pytest.approx(300_000, rel=0.05)


async def test_tokens_that_were_reserved_in_vain_are_used_by_others(stage: Stage) -> None:
    """Each request reserves ten times what it uses, as one does that allows much more output than it has."""
    time, budget = ModelledTime(), a_budget(tokens=60_000)
    worker = RateWorker(
        time, stage.hand().connection, budget, latency=0.05, estimate=lambda: 1000, use=lambda: 100
    )

    await over_time(time, [worker])

    used = sum(tokens for _, tokens in worker.sent)
    assert 0.9 * 60_000 <= used <= 60_000 + 1000


async def test_a_worker_that_comes_late_gets_its_share_and_leaves_it_again(stage: Stage) -> None:
    time, budget = ModelledTime(), a_budget(requests=1200)
    first, late = (RateWorker(time, stage.hand().connection, budget) for _ in range(2))
    first.start()
    time.after(20, late.start)
    await time.run(40)
    await late.stop()
    await time.run(60)
    await first.stop()

    check_bound([first, late], 1200)
    assert len(late.sent) == pytest.approx(200, rel=0.1)
    assert len(first.sent) + len(late.sent) == pytest.approx(1200, rel=0.03)


async def test_a_worker_that_needs_little_leaves_the_rest_to_others(stage: Stage) -> None:
    time, budget = ModelledTime(), a_budget(requests=1200)
    busy = RateWorker(time, stage.hand().connection, budget)
    # One request per second.
    slow = RateWorker(time, stage.hand().connection, budget, slots=1, latency=1.0)

    await over_time(time, [busy, slow])

    # Each of its requests waits for one lease of the other.
    assert len(slow.sent) == pytest.approx(60 / 1.5, abs=3)
    assert len(busy.sent) + len(slow.sent) == pytest.approx(1200, rel=0.03)


async def test_a_worker_that_stops_asking_costs_no_statements(stage: Stage) -> None:
    time, budget = ModelledTime(), a_budget(requests=600)
    worker = RateWorker(time, stage.hand().connection, budget, slots=2, latency=1.0)
    await over_time(time, [worker], 10)
    before = worker.leases

    await time.run(600)

    assert worker.leases <= before + 1


async def test_a_request_larger_than_the_budget_of_a_minute_is_sent(stage: Stage) -> None:
    time, budget = ModelledTime(), a_budget(tokens=1000)
    sizes, uses = (iter([100_000, *[100] * 1000]) for _ in range(2))
    worker = RateWorker(
        time, stage.hand().connection, budget, slots=1, estimate=sizes.__next__, use=uses.__next__
    )

    await over_time(time, [worker], 330)

    # The others wait until it is paid for, but for no more than five minutes.
    assert worker.sent[0][0] < 1
    assert worker.sent[1][0] == pytest.approx(300, abs=7)
