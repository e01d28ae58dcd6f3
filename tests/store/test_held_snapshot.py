"""While a snapshot is held elsewhere, claims and settles visit as many pages after many steps as before.

PostgreSQL cannot remove dead rows that a snapshot might still see. So nothing that a claim or a settle looks
up may lie behind dead rows that earlier claims and settles have left (docs/decisions/0014).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from batchline.model import Completed, Item
from batchline.model.emission import PYTHON
from batchline.store import spans
from batchline.store.arrays import Int8Array
from batchline.store.statements import statement
from batchline.store.verdicts import Grouped
from tests.support import scenes
from tests.support.scenes import Hand, Stage, completed, emitting

STEPS = 400
LINES = 5
# Pages of results and indexes differ a little from step to step.
SLACK = 10


@pytest.fixture
def stage(server_url: str, template: str) -> Iterator[Stage]:
    """A database for each test: dead rows of one would be pages of the next."""
    with scenes.database(server_url, template) as url, Stage(url) as stage:
        # It removes nothing here, but where rows go next changes, and with it the pages of one step.
        for (table,) in stage.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'batchline'"):
            stage.db.execute(f"ALTER TABLE batchline.{table} SET (autovacuum_enabled = false)".encode())
        yield stage


@contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM batchline.batches")
        yield


def pages(hand: Hand, name: str, params: dict[str, object]) -> int:
    """How many pages a statement visits. It is undone."""
    with hand.connection.transaction(force_rollback=True), hand.connection.cursor() as cursor:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement(name).text}"
        row = cursor.execute(explain.encode(), params).fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def claim_params(hand: Hand) -> dict[str, object]:
    worker = {"worker": hand.id, "name": "hand", "lease": hand.lease, "limit": LINES, "max_tasks": None}
    return {**spans.Scope().params(), **worker}


def visited(hand: Hand, items: list[Item]) -> dict[str, int]:
    """Pages that each act of a step visits: the fewest of three trials, as a page may split in one of them.
    The plans are made before they are counted."""
    params: dict[str, dict[str, object]] = {
        "claim": claim_params(hand),
        "fetch": {"spans": [item.claim.span_id for item in items[:1]], "worker": hand.id, "largest": 2**20},
        "settle": {"worker": hand.id, **Grouped([completed(item) for item in items]).columns()},
        "get_batch": {"batch": items[0].claim.batch_id},
    }
    for name, values in params.items():
        pages(hand, name, values)
    return {name: min(pages(hand, name, values) for _ in range(3)) for name, values in params.items()}


def drain(hand: Hand, steps: int) -> list[Item]:
    """Claims and settles; what is claimed last is returned."""
    for _ in range(steps):
        hand.settle([completed(item) for item in hand.take(LINES)])
    return hand.take(LINES)


@pytest.mark.parametrize("lanes", [1, 3])
def test_claims_and_settles_do_not_visit_more_pages_after_many_steps(stage: Stage, lanes: int) -> None:
    stage.batch(*[STEPS * LINES * 2] * lanes)
    hand = stage.hand(lease=timedelta(hours=1).total_seconds())
    with held_snapshot(stage.url):
        first = visited(hand, drain(hand, 10))
        last = visited(hand, drain(hand, STEPS))

    assert {name: (first[name], last[name]) for name in first if last[name] > first[name] + SLACK} == {}
    assert not stage.broken()


def piped(item: Item) -> Completed:
    return completed(item) if item.claim.url.startswith(PYTHON) else emitting(item, "second")


def test_each_settle_that_emits_costs_later_claims_and_emissions_a_fraction_of_a_page(stage: Stage) -> None:
    """Lines of a fed lane wait in free spans, and those that were claimed are dead entries of the index of
    free spans: some 200 on a page. A million items in settles of a hundred leave 10,000 of them
    (docs/decisions/0024). What is bounded here is that nothing else grows."""
    batch = stage.pipeline(STEPS * LINES * 2, "second")
    hand = stage.hand(lease=timedelta(hours=1).total_seconds())

    def step(times: int) -> dict[str, int]:
        """Each claim of the first stage is followed by one of the second."""
        for _ in range(2 * times):
            hand.settle([piped(item) for item in hand.take(LINES)])
        of_first, of_second = (pages_of_a_settle() for _ in range(2))
        claim = min(pages(hand, "claim", claim_params(hand)) for _ in range(3))
        return {"claim": claim, "settle": of_second, "settle that emits": of_first}

    def pages_of_a_settle() -> int:
        verdicts = [piped(item) for item in hand.take(LINES)]
        params = {"worker": hand.id, **Grouped(verdicts).columns()}
        found = min(pages(hand, "settle", params) for _ in range(4))
        hand.settle(verdicts)
        return found

    with held_snapshot(stage.url):
        first = step(10)
        last = step(STEPS // 2)

    emitting_settles = STEPS // 2
    assert last["settle"] <= first["settle"] + SLACK
    for name in ("claim", "settle that emits"):
        assert last[name] <= first[name] + SLACK + emitting_settles // 5, (name, first, last)
    assert not stage.broken()
    assert stage.counts(batch).total == STEPS * LINES * 2 + LINES * (10 + STEPS // 2 + 2)


def test_a_worker_that_has_expired_and_holds_nothing_costs_claims_nothing_for_long(stage: Stage) -> None:
    """Its spans are dead, but while its row is there, claims look for them: the sweep removes the row."""
    stage.batch(STEPS * LINES * 2)
    lost, hand = stage.hand(lease=3600), stage.hand(lease=3600)
    with held_snapshot(stage.url):
        first = visited(hand, drain(hand, 10))["claim"]
        lost.settle([completed(item) for item in drain(lost, STEPS)])
        stage.lease(lost.id, -1)
        stage.db.execute(statement("forget_workers").text)
        last = visited(hand, drain(hand, 1))["claim"]

    assert last <= first + SLACK


def test_a_reservation_does_not_visit_more_pages_after_many_of_them(stage: Stage) -> None:
    batch, hands = stage.batch(10), [stage.hand(lease=3600) for _ in range(3)]
    stage.db.execute("""UPDATE batchline.batches SET settings = '{"spending": {"max_tokens": 1000000}}'""")

    def wanted(hand: Hand, held: int) -> dict[str, object]:
        return {
            "batch": batch.id,
            "holder": hand.id,
            "worker": hand.id,
            "held_cost": held,
            "held_tokens": held,
            "in_flight": True,
            "wanted_costs": Int8Array([1]),
            "wanted_tokens": Int8Array([1]),
        }

    def reserve(steps: int) -> int:
        for held in range(steps):
            for hand in hands:
                hand.run("reserve_budget", wanted(hand, held))
        pages(hands[0], "reserve_budget", wanted(hands[0], steps))
        return pages(hands[0], "reserve_budget", wanted(hands[0], steps))

    with held_snapshot(stage.url):
        first = reserve(10)
        last = reserve(STEPS)
    assert last <= first + SLACK
