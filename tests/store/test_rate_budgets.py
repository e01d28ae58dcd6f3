"""Budgets per minute: no more is given away than the rate and one second's worth, in the order of asking."""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from batchline.model.ids import new_id
from batchline.store import arrays, rate_budgets
from batchline.store.rate_budgets import RateClaim
from batchline.store.session import Session
from tests.support import scenes
from tests.support.scenes import Hand, Stage

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LEASE = 0.5
# The microseconds of a timestamp.
EXACT = 1e-4


@pytest.fixture(scope="module")
def stage_url(server_url: str, template: str) -> Iterator[str]:
    with scenes.database(server_url, template) as url:
        yield url


@pytest.fixture
def stage(stage_url: str) -> Iterator[Stage]:
    with Stage(stage_url) as stage:
        yield stage


def lease(
    hand: Hand,
    budgets: UUID | Sequence[UUID],
    at: float,
    wanted: float = LEASE,
    returned: float = 0.0,
) -> float:
    """The seconds until the lease begins, so many seconds after noon. Negative: nothing was leased."""
    ids = [budgets] if isinstance(budgets, UUID) else list(budgets)
    params: list[Any] = [ids, ["some requests"] * len(ids)]
    params += [arrays.Float8Array([value] * len(ids)) for value in (wanted, returned)]
    cursor = hand.connection.execute(
        "SELECT batchline.lease_rates_v1(%s, %s, %b, %b, %s)",
        [*params, NOON + timedelta(seconds=at)],
    )
    row = cursor.fetchone()
    assert row is not None
    return float(max(row[0]))


def test_leases_follow_each_other(stage: Stage) -> None:
    hand, budget = stage.hand(), new_id()

    waits = [lease(hand, budget, at=0) for _ in range(4)]

    assert waits == pytest.approx([0, LEASE, 2 * LEASE, 3 * LEASE], abs=EXACT)


def test_what_nobody_wanted_is_lost_except_for_the_last_half_second(stage: Stage) -> None:
    hand, budget = stage.hand(), new_id()
    lease(hand, budget, at=0)

    waits = [lease(hand, budget, at=100) for _ in range(3)]

    assert waits == pytest.approx([0, 0, LEASE], abs=EXACT)


@pytest.mark.parametrize("seed", range(20))
def test_no_more_is_given_than_the_rate_and_one_second(stage: Stage, seed: int) -> None:
    """Workers ask for half a second at a time, whenever they like, and some die with what they got."""
    chance, budget = random.Random(seed), new_id()
    hands = [stage.hand() for _ in range(3)]
    now, begins = 0.0, [-LEASE]
    for _ in range(80):
        now += chance.choice([0.0, 0.0, 0.01, 0.3, 2.0]) * chance.random()
        begin = now + lease(chance.choice(hands), budget, now)
        # Nothing is held back either.
        assert begin <= max(now, begins[-1] + LEASE) + EXACT
        begins.append(begin)

    for nth, begin in enumerate(begins):
        assert nth * LEASE <= begin + 1.0 + EXACT


def test_a_second_worker_waits_for_the_first_and_gets_the_next_part(stage: Stage) -> None:
    anna, bert, budget = stage.hand(), stage.hand(), new_id()
    lease(anna, budget, at=0, wanted=1.0)
    with anna.holding():
        assert lease(anna, budget, at=0, wanted=1.0) == pytest.approx(1.0, abs=EXACT)
        later = stage.meanwhile(bert, lambda: lease(bert, budget, at=0))
        assert later.waits()

    assert later.result() == pytest.approx(2.0, abs=EXACT)


def test_the_first_lease_of_two_workers_at_once(stage: Stage) -> None:
    anna, bert, budget = stage.hand(), stage.hand(), new_id()
    with anna.holding():
        lease(anna, budget, at=0, wanted=3.0)
        later = stage.meanwhile(bert, lambda: lease(bert, budget, at=0))
        assert later.waits()

    assert later.result() == pytest.approx(3.0, abs=EXACT)


def test_a_lease_that_was_not_committed_is_not_given(stage: Stage) -> None:
    anna, bert, budget = stage.hand(), stage.hand(), new_id()
    lease(bert, budget, at=0, wanted=1.0)
    anna.connection.execute("BEGIN")
    lease(anna, budget, at=0, wanted=10.0)
    # As the server does when the worker is gone.
    anna.connection.close()

    assert lease(bert, budget, at=0) == pytest.approx(1.0, abs=EXACT)


def test_what_a_dead_worker_has_leased_is_not_given_again(stage: Stage) -> None:
    anna, bert, budget = stage.hand(), stage.hand(), new_id()
    lease(anna, budget, at=0, wanted=1.0)
    anna.connection.close()

    assert lease(bert, budget, at=0) == pytest.approx(1.0, abs=EXACT)


def test_a_worker_that_asks_late_waits_for_one_lease_of_each_other(stage: Stage) -> None:
    hands, budget = [stage.hand() for _ in range(4)], new_id()
    begins = {hand: lease(hand, budget, 0) for hand in hands}
    now, counts = 0.0, dict.fromkeys(hands, 0)
    while now < 30:
        # Each asks again when its lease has begun.
        hand = min(begins, key=lambda each: begins[each])
        now = begins[hand]
        if now >= 10 or hand is not hands[-1]:
            counts[hand] += 1
            begins[hand] = now + lease(hand, budget, now)
            assert begins[hand] - now <= LEASE * len(hands) + EXACT
        else:
            begins[hand] = 10.0

    late, *others = sorted(counts.values())
    assert max(others) - min(others) <= 1
    assert late == pytest.approx(20 / LEASE / len(hands), abs=2)


def test_what_is_given_back_is_given_to_the_next(stage: Stage) -> None:
    hand, budget = stage.hand(), new_id()
    lease(hand, budget, at=0, wanted=10.0)

    assert lease(hand, budget, at=0, returned=4.0) == pytest.approx(6.0, abs=EXACT)
    assert lease(hand, budget, at=0, wanted=0.0, returned=1000.0) == 0
    # But not more than there was.
    assert [lease(hand, budget, at=0) for _ in range(3)] == pytest.approx([0, 0, LEASE], abs=EXACT)


def test_what_was_used_beyond_a_lease_delays_the_next(stage: Stage) -> None:
    hand, budget = stage.hand(), new_id()
    lease(hand, budget, at=0, wanted=1.0)

    assert lease(hand, budget, at=0, returned=-7.0) == pytest.approx(8.0, abs=EXACT)


@pytest.mark.parametrize("before", [{"wanted": 86_400.0}, {"wanted": 0.0, "returned": -86_400.0}])
def test_one_request_or_report_counts_for_five_minutes_at_most(
    stage: Stage, before: dict[str, float]
) -> None:
    hand, budget = stage.hand(), new_id()
    lease(hand, budget, at=0, **before)

    assert lease(hand, budget, at=0) == pytest.approx(300, abs=EXACT)


def test_what_a_huge_request_gives_back_is_not_more_than_it_counted_for(stage: Stage) -> None:
    hand, budget = stage.hand(), new_id()
    lease(hand, budget, at=0, wanted=200.0)
    lease(hand, budget, at=0, wanted=86_400.0)

    assert lease(hand, budget, at=0, returned=86_400.0) == pytest.approx(200, abs=EXACT)


def test_nothing_is_given_twice_once_five_minutes_are_given_away(stage: Stage) -> None:
    """Twelve workers, and one request per minute. Those that got nothing ask again when they were told to."""
    hand, budget = stage.hand(), new_id()
    asks, begins = [0.0] * 12, []
    while asks:
        at = min(asks)
        asks.remove(at)
        wait = lease(hand, budget, at, wanted=60.0)
        if wait < 0:
            asks.append(at - wait)
        else:
            assert wait <= 300 + EXACT
            begins.append(at + wait)

    assert begins == pytest.approx([60.0 * n for n in range(12)], abs=5.0)
    assert all(later - begin >= 60.0 - EXACT for begin, later in pairwise(begins))


def test_workers_that_crash_over_and_over_waste_five_minutes_at_most(stage: Stage) -> None:
    hand, budget = stage.hand(), new_id()
    for at in range(1_000):
        lease(hand, budget, at, wanted=60.0)

    assert lease(hand, budget, at=1_060) >= 0


def test_a_clock_that_is_set_back_takes_what_was_given_away_with_it(stage: Stage) -> None:
    hand, budget = stage.hand(), new_id()
    lease(hand, budget, at=7200, wanted=20.0)

    assert lease(hand, budget, at=0) == pytest.approx(20, abs=EXACT)
    assert lease(hand, budget, at=10) == pytest.approx(10 + LEASE, abs=EXACT)


def test_a_call_that_has_waited_for_the_lock_does_not_set_the_clock_back(stage: Stage) -> None:
    hand, budget = stage.hand(), new_id()
    lease(hand, budget, at=30, wanted=20.0)

    assert lease(hand, budget, at=0) == pytest.approx(50, abs=EXACT)
    assert lease(hand, budget, at=30) == pytest.approx(20 + LEASE, abs=EXACT)


def test_two_workers_lease_the_same_budgets_in_another_order(stage: Stage) -> None:
    anna, bert = stage.hand(), stage.hand()
    one, other = sorted([new_id(), new_id()])
    with anna.holding():
        lease(anna, one, at=0)
        later = stage.meanwhile(bert, lambda: lease(bert, [other, one], at=0))
        assert later.waits()
        # It waits for the first one and has not locked the other, so there is no deadlock.
        lease(anna, other, at=0)

    later.result()


def test_budgets_that_nobody_uses_are_deleted(stage: Stage) -> None:
    hand, old, recent = stage.hand(), new_id(), new_id()
    lease(hand, old, at=0)
    lease(hand, recent, at=86_000)

    lease(hand, new_id(), at=100_000)

    rows = stage.rows("SELECT id FROM batchline.rate_budgets WHERE id = ANY (%s)", [old, recent])
    assert rows == [(recent,)]
    assert not stage.rows("SELECT FROM batchline.rate_budget_states WHERE budget_id = %s", old)


def test_an_old_snapshot_does_not_slow_leases_down(stage: Stage) -> None:
    hand, reader, budget = stage.hand(), stage.hand(), new_id()
    for n in range(10):
        lease(hand, budget, at=n)
    few = _pages_read(hand, budget)
    with reader.holding():
        reader.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.connection.execute("SELECT FROM batchline.rate_budgets")
        for n in range(2_000):
            lease(hand, budget, at=n)

        assert _pages_read(hand, budget) <= few + 20


def _pages_read(hand: Hand, budget: UUID) -> int:
    """The pages that one lease reads. The first one of a connection also reads the catalog, and so does the
    next one after autovacuum has looked at the table: the fewest of several are those of the lease."""
    return min(_pages_of_a_lease(hand, budget) for _ in range(5))


def _pages_of_a_lease(hand: Hand, budget: UUID) -> int:
    cursor = hand.connection.execute(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT batchline.lease_rates_v1("
        "ARRAY[%s::uuid], ARRAY['x'], ARRAY[0.5::float8], ARRAY[0::float8], %s)",
        [budget, NOON + timedelta(hours=1)],
    )
    row = cursor.fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def test_the_store_leases_by_the_clock_of_the_database(db: Session) -> None:
    claims = [RateClaim(new_id(), "a", 100.0), RateClaim(new_id(), "b", 200.0)]

    first = await rate_budgets.lease(db, claims)
    second = await rate_budgets.lease(db, [claims[1], claims[0]])

    assert first == [0, 0]
    # Some time has passed since, but never more than a test takes.
    assert 0 < second[1] < second[0] <= 200


async def test_absurd_amounts_are_accepted(db: Session) -> None:
    budget = new_id()

    await rate_budgets.lease(db, [RateClaim(budget, "a", float("inf"), -1e300)])

    assert abs((await rate_budgets.lease(db, [RateClaim(budget, "a", 1.0)]))[0]) <= 300
