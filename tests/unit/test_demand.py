"""How many workers meet the deadlines, at the rate of one worker that is measured."""

from typing import Any

import pytest
from msgspec.structs import replace as changed

from batchline.metrics.demand import Demand, demand_of
from batchline.store.monitoring import MAX_DEMAND_ROWS, Delay, DemandRow, OpenBatches

NONE = OpenBatches(0, 0, 0, 0, 0, 0, 0, 0, 0.0)
# A thousand lines, of which 10 per second must be finished; two workers finish 4 per second.
ROW = DemandRow(
    upstream="gpu",
    model="small",
    waiting=1_000,
    waited=None,
    next_deadline=100.0,
    in_flight=64,
    rate=4.0,
    workers=2,
    limited=False,
    required=10.0,
    margin=-150.0,
    tasks=False,
)


def needed(**changes: Any) -> int:
    return demand_of([changed(ROW, **changes)], NONE, []).workers_needed


def test_without_work_no_worker_is_needed() -> None:
    assert demand_of([], NONE, []) == Demand(0, [])
    assert needed(waiting=0, in_flight=0, required=0.0) == 0


def test_as_many_are_needed_as_have_the_required_rate_together() -> None:
    # One finishes 2 lines per second.
    assert needed() == 5
    assert needed(required=10.1) == 6
    assert needed(required=0.5) == 1


def test_until_a_rate_is_known_those_that_work_are_enough_and_at_least_one() -> None:
    assert needed(rate=0.0, workers=0) == 1
    assert needed(rate=0.0, workers=3) == 3


def test_lines_in_flight_and_tasks_of_providers_need_a_worker() -> None:
    assert needed(waiting=0, required=0.0) == 1
    assert needed(waiting=0, in_flight=0, required=0.0, rate=0.0, workers=0, tasks=True) == 1


def test_an_upstream_that_slows_workers_down_gets_no_more_of_them() -> None:
    assert needed(limited=True) == 2
    assert needed(limited=True, workers=0, rate=0.0) == 1
    assert needed(limited=True, required=1.0) == 1


def test_there_are_never_more_workers_than_lines() -> None:
    assert needed(waiting=3, in_flight=0, required=1_000.0) == 3


def test_models_of_one_upstream_share_its_workers() -> None:
    large = changed(ROW, model="large", waiting=500, in_flight=0, rate=6.0)
    (upstream,) = demand_of([ROW, large], NONE, []).upstreams
    # Together 10 lines per second of two workers, and the upstream requires 10.
    assert (upstream.waiting, upstream.in_flight, upstream.rate) == (1_500, 64, 10.0)
    assert upstream.workers_needed == 2
    assert [part.model for part in upstream.models] == ["large", "small"]


def test_a_worker_serves_all_upstreams_so_the_largest_need_counts() -> None:
    other = changed(ROW, upstream="cloud", required=4.0)
    demand = demand_of([ROW, other], NONE, [])
    assert {each.upstream: each.workers_needed for each in demand.upstreams} == {"cloud": 2, "gpu": 5}
    assert demand.workers_needed == 5


@pytest.mark.parametrize("kept", ["finalizing", "closing", "overdue"])
def test_batches_that_only_a_worker_can_end_need_one(kept: str) -> None:
    batches = changed(NONE, **{kept: 3})
    assert demand_of([], batches, []).workers_needed == 1
    assert demand_of([ROW], batches, []).workers_needed == 5
    paused = changed(NONE, paused=3, held=2, in_progress=1)
    assert demand_of([], paused, []).workers_needed == 0


def test_a_list_that_was_cut_says_so() -> None:
    rows = [changed(ROW, model=f"m{n}") for n in range(MAX_DEMAND_ROWS)]
    assert demand_of(rows, NONE, []).truncated
    assert not demand_of(rows[1:], NONE, []).truncated


def test_what_waits_for_any_worker_needs_one() -> None:
    assert demand_of([], NONE, [Delay("steps", 0.0, True)]).workers_needed == 1
    # A task that runs when there is a worker anyway.
    assert demand_of([], NONE, [Delay("sweep", 500.0, False)]).workers_needed == 0
