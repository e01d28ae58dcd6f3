"""Caps: spent, held and granted never exceed them, whoever reserves, settles, dies or is late."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from batchline.batches.retry import retry as retry_lines
from batchline.model import (
    DEFAULT_TENANT,
    Batch,
    BatchStatus,
    Completed,
    Deferred,
    Failed,
    Item,
    ModelPrice,
    Retried,
    RetrySelection,
    RunSettings,
    Spending,
    Usage,
    Verdict,
)
from batchline.model.ids import new_id
from batchline.model.spending import nano_dollars
from batchline.store import batches, budgets, doctor, spans
from batchline.store.batches import NewBatch
from batchline.store.budgets import Amount, Holder, Holds
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from tests.support import scenes
from tests.support.builders import LATER, a_batch, a_file, a_worker, completed, finalize, read, take
from tests.support.reuse import UPSTREAM, a_file_of, a_reusing_batch, answer_all
from tests.support.scenes import Hand, Stage, Staged

# A token of input costs one nano-dollar, a token of output two.
PRICE = ModelPrice(input=0.001, output=0.002)


@pytest.fixture(scope="module")
def stage_url(server_url: str, template: str) -> Iterator[str]:
    with scenes.database(server_url, template) as url:
        yield url


@pytest.fixture
def stage(stage_url: str) -> Iterator[Stage]:
    with Stage(stage_url) as stage:
        yield stage


def capped(stage: Stage, lines: int, *, max_cost: int | None = None, max_tokens: int | None = None) -> Staged:
    batch = stage.batch(lines)
    spending = Spending({"model": PRICE}, max_cost=max_cost, max_tokens=max_tokens)
    stage.db.execute(
        "UPDATE batchline.batches SET settings = jsonb_build_object('spending', %s::jsonb) WHERE id = %s",
        (scenes.json_of(spending), batch.id),
    )
    return batch


def reserve(
    hand: Hand,
    batch: Staged,
    *wanted: int,
    held: int = 0,
    in_flight: bool = False,
    holder: UUID | None = None,
) -> tuple[int, str]:
    return hand.reserve(batch.id, *wanted, held=held, in_flight=in_flight, holder=holder)


def used(item: Item, tokens: int) -> Completed:
    """An answer that costs as many nano-dollars as tokens."""
    return Completed(item, 200, b"{}", Usage(input_tokens=tokens))


def cost(stage: Stage) -> Any:
    return stage.rows("SELECT cost, input_tokens + output_tokens FROM batchline.current_batches")


def paused_by(stage: Stage) -> Any:
    return stage.rows("SELECT paused_by, paused_at IS NOT NULL FROM batchline.batches")


# Counting


def test_each_answer_costs_what_its_model_costs(stage: Stage) -> None:
    capped(stage, 3)
    hand = stage.hand()
    first, second, third = hand.take(3)

    hand.settle([Completed(first, 200, b"{}", Usage(100, 0, 10, 0)), used(second, 7)])
    assert cost(stage) == [(127, 117)]

    hand.settle([used(third, 1)])
    # The batch is frozen: its row counts.
    assert stage.rows("SELECT cost FROM batchline.batches") == [(128,)]


def test_an_attempt_that_is_tried_again_costs_too_and_once(stage: Stage) -> None:
    capped(stage, 1)
    hand = stage.hand()
    (item,) = hand.take(1)
    again = Retried(item, "http_500", "failed", 0.0, Usage(input_tokens=5))

    hand.settle([again])
    # As after a lost answer.
    hand.settle([again])

    assert cost(stage) == [(5, 5)]
    assert stage.counters(stage_batch(stage)) == (0, 0)
    assert not stage.broken()


def stage_batch(stage: Stage) -> Staged:
    ((batch,),) = stage.rows("SELECT id FROM batchline.batches")
    return Staged(batch, ())


def test_prices_are_exact() -> None:
    price = ModelPrice(input=0.15, output=0.6, cached_input=0.075)

    assert price.cost(Usage(1_000_000, 400_000, 1_000_000, 0)) == nano_dollars(0.09 + 0.03 + 0.6)
    assert ModelPrice(0.0001, 0.0).cost(Usage(1)) == 1, "a fraction of a nano-dollar is rounded up"


# One worker


def test_requests_are_granted_in_their_order_up_to_the_cap(stage: Stage) -> None:
    batch, hand = capped(stage, 9, max_cost=100), stage.hand()

    assert reserve(hand, batch, 40, 40, 40, 1) == (2, "open")
    assert reserve(hand, batch, 21, held=80, in_flight=True) == (0, "open")
    assert reserve(hand, batch, 20, held=80, in_flight=True) == (1, "open")


@pytest.mark.parametrize("cap", ["max_cost", "max_tokens"])
def test_a_request_that_cannot_fit_pauses_the_batch_and_says_why(stage: Stage, cap: str) -> None:
    batch, hand = capped(stage, 9, **{cap: 100}), stage.hand()
    items = hand.take(1)
    hand.settle([used(items[0], 90)])

    assert reserve(hand, batch, 11) == (0, "paused")
    assert paused_by(stage) == [(cap, True)]
    assert hand.claim(5) == []
    assert reserve(hand, batch, 1) == (0, "closed"), "nothing is sent any more"

    assert hand.resume(batch.id)
    assert paused_by(stage) == [(None, False)]
    assert reserve(hand, batch, 10) == (1, "open")


def test_a_cap_beyond_any_number_of_tokens_is_no_obstacle(stage: Stage) -> None:
    batch, hand = capped(stage, 9, max_tokens=10**30), stage.hand()

    assert reserve(hand, batch, 40) == (1, "open")
    # Their sum is too large for a number of the database, and more than any cap.
    for each in (hand, stage.hand(), stage.hand()):
        reserve(each, batch, *[2**62 - 1] * 4, held=2**62 - 1)
    params = {"batch": batch.id}
    assert hand.run("read_holds", params)[0][2] == 2**63 - 1


def test_a_repeated_call_reserves_once(stage: Stage) -> None:
    batch, hand = capped(stage, 9, max_cost=100), stage.hand()

    for _ in range(3):
        assert reserve(hand, batch, 60) == (1, "open")
    assert stage.rows("SELECT cost FROM batchline.budget_holds") == [(60,)]


# Several workers


def live(hand: Hand) -> Hand:
    hand.renew(hand.id, 60.0)
    return hand


def test_a_worker_waits_for_the_requests_of_another_and_pauses_after_them(stage: Stage) -> None:
    batch, anna, bert = capped(stage, 9, max_cost=100), live(stage.hand()), live(stage.hand())

    assert reserve(anna, batch, 90) == (1, "open")
    assert reserve(bert, batch, 20) == (0, "open"), "Anna's request may cost less than it reserved"
    assert reserve(anna, batch, held=85) == (0, "open")
    assert reserve(bert, batch, 20) == (0, "paused")


def test_what_a_killed_worker_held_stays_held(stage: Stage) -> None:
    batch, anna, bert = capped(stage, 9, max_cost=100), live(stage.hand()), live(stage.hand())
    assert reserve(anna, batch, 90) == (1, "open")
    stage.db.execute(
        "UPDATE batchline.workers SET lease_until = now() - interval '1 s' WHERE id = %s", (anna.id,)
    )

    assert reserve(bert, batch, 10) == (1, "open")
    assert reserve(bert, batch, 1, held=10) == (0, "paused")
    assert stage.rows("SELECT sum(cost) FROM batchline.budget_holds") == [(100,)]


def test_of_two_reservations_at_once_the_second_waits_and_sees_the_first(stage: Stage) -> None:
    batch, anna, bert = capped(stage, 9, max_cost=100), live(stage.hand()), live(stage.hand())

    with anna.holding():
        assert reserve(anna, batch, 60) == (1, "open")
        later = stage.meanwhile(bert, lambda: reserve(bert, batch, 60))
        assert later.waits()
    assert later.result() == (0, "open")


def test_a_reservation_sees_what_a_settle_that_it_waited_for_has_spent(stage: Stage) -> None:
    batch, anna, bert = capped(stage, 9, max_cost=100), live(stage.hand()), live(stage.hand())
    (item,) = anna.take(1)

    with anna.holding():
        anna.settle([used(item, 60)])
        later = stage.meanwhile(bert, lambda: reserve(bert, batch, 41, 40))
        assert later.waits()
    assert later.result() == (0, "paused")


def test_a_pause_waits_for_a_claim_and_no_deadlock_follows(stage: Stage) -> None:
    batch, anna, bert = capped(stage, 9, max_cost=100), live(stage.hand()), live(stage.hand())

    with anna.holding():
        held = anna.take(2)
        later = stage.meanwhile(bert, lambda: reserve(bert, batch, 101))
        assert later.waits()
    assert later.result() == (0, "paused")
    assert len(held) == 2
    assert anna.claim(5) == []


def test_no_interleaving_of_workers_exceeds_the_cap(stage: Stage) -> None:
    """Four workers reserve, send, settle and die at random. The upstream's ledger counts what was sent."""
    cap, workers = 3_000, 4
    batch = capped(stage, 400, max_cost=cap)
    ledger, lock = [0], threading.Lock()

    def work(seed: int) -> None:
        rng, hand = random.Random(seed), hands[seed]
        held: list[tuple[Item, int]] = []
        holder = hand.id
        while True:
            items = hand.take(rng.randint(1, 5))
            wants = [rng.randint(10, 50) for _ in items]
            total = sum(want for _, want in held)
            granted, state = reserve(hand, batch, *wants, held=total, in_flight=bool(held), holder=holder)
            with lock:
                ledger[0] += sum(wants[:granted])
                assert ledger[0] <= cap
            if rng.random() < 0.1:
                # Killed: what was sent stays charged, and another process continues.
                stage_kill(hand)
                holder, held = hand.renamed().id, []
                hand.renew(hand.id, 60.0)
                continue
            held += list(zip(items[:granted], wants[:granted], strict=True))
            hand.settle([scenes.deferred(item) for item in items[granted:]])
            if held and (rng.random() < 0.6 or not items):
                (item, want), *held = held
                actual = rng.randint(1, want)
                with lock:
                    ledger[0] += actual - want
                hand.settle([used(item, actual)])
            if state != "open" or (not items and not held):
                # Late settles must still be right.
                hand.settle([used(item, want) for item, want in held])
                reserve(hand, batch, holder=holder)
                return

    hands = [live(stage.hand()) for _ in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        for outcome in [pool.submit(work, seed) for seed in range(workers)]:
            outcome.result(scenes.PATIENCE)
    ((spent,),) = stage.rows("SELECT cost FROM batchline.current_batches")
    assert 0 < spent <= cap
    assert ledger[0] <= cap


def stage_kill(hand: Hand) -> None:
    hand.renew(hand.id, -1)


def test_amounts_add_up() -> None:
    assert Amount(1, 2) + Amount(3, 4) - Amount(1, 1) == Amount(3, 5)


async def test_verdicts_that_come_too_late_are_reported(db: Session) -> None:
    """A cap keeps what they have cost reserved: the counters do not have it."""
    worker = a_worker()
    await a_batch(db, 3)
    first, *others = [completed(item) for item in await take(db, worker)]
    late: list[Verdict] = []
    await spans.settle(db, worker.id, [first], late.extend)
    assert late == []

    await spans.settle(db, worker.id, [first, *others], late.extend)
    assert late == [first]
    await spans.settle(db, worker.id, [first], late.extend)
    assert late == [first, first]


# Retries and reuse


async def end_with_failures(db: Session, worker: WorkerId, settings: RunSettings) -> Batch:
    """A batch of four lines that has ended: two are completed, and two have failed, for ten tokens each."""
    new = NewBatch(new_id(), DEFAULT_TENANT, await a_file(db, {"model": 4}), "24h", LATER, settings)
    batch = await batches.create(db, new)
    items = await take(db, worker, scope=Scope(batch_id=batch.id))
    verdicts: list[Verdict] = [
        used(item, 10) if item.ordinal < 2 else Failed(item, b"{}", 400, Usage(input_tokens=10))
        for item in items
    ]
    await spans.settle(db, worker.id, verdicts)
    return await finalize(db, worker, batch)


async def test_a_retry_takes_neither_tokens_nor_cost_back_and_the_cap_holds_for_all_of_them(
    db: Session,
) -> None:
    worker, settings = a_worker(), RunSettings(spending=Spending({"model": PRICE}, max_cost=55))
    ended = await end_with_failures(db, worker, settings)
    assert (ended.failed, ended.cost, ended.input_tokens) == (2, 40, 40)

    assert await retry_lines(db, ended, RetrySelection()) == 2
    opened = await read(db, ended)
    assert (opened.failed, opened.cost, opened.input_tokens) == (0, 40, 40)
    items = await take(db, worker, scope=Scope(batch_id=ended.id))
    holder, wanted = Holder(new_id(), worker.id), [Amount(10, 10)] * 2
    granted = await budgets.reserve(db, ended.id, holder, Amount(), wanted, in_flight=False)
    assert (granted.granted, granted.state) == (1, "open"), "40 are spent, so one of two fits"
    await spans.settle(db, worker.id, [used(items[0], 10), Deferred(items[1])])
    refused = await budgets.reserve(db, ended.id, holder, Amount(), wanted[:1], in_flight=False)
    assert (refused.granted, refused.state) == (0, "paused")
    assert (await read(db, ended)).pause_rule == "max_cost"

    # An end and another retry open it, and the cap still holds.
    assert await batches.close(db, ended.id, "cancel")
    again = await finalize(db, worker, await read(db, ended))
    assert (again.status, again.paused_by) == (BatchStatus.CANCELLED, None)
    assert await retry_lines(db, again, RetrySelection()) == 1
    assert (await read(db, ended)).status is BatchStatus.IN_PROGRESS
    refused = await budgets.reserve(db, ended.id, holder, Amount(), wanted[:1], in_flight=False)
    assert (refused.granted, refused.state) == (0, "paused")
    assert (await doctor.examine(db)).findings == ()


async def test_reused_answers_cost_nothing_and_hold_nothing(db: Session) -> None:
    worker, bodies = a_worker(), [f'{{"q": {n}}}' for n in range(5)]
    settings = RunSettings(upstream=UPSTREAM, spending=Spending({"model": PRICE}, max_cost=13))
    first = await a_reusing_batch(db, await a_file_of(db, bodies[:4]), settings=settings)
    await answer_all(db, worker, first)
    # Each has three tokens of input and five of output.
    assert (await read(db, first)).cost == 4 * 13

    batch = await a_reusing_batch(db, await a_file_of(db, bodies), settings=settings)
    assert (batch.reused, batch.cost, batch.input_tokens) == (4, 0, 0)
    assert await budgets.holds(db, batch.id) == Holds(Amount(), Amount())
    holder = Holder(new_id(), worker.id)
    granted = await budgets.reserve(db, batch.id, holder, Amount(), [Amount(13, 8)], in_flight=False)
    assert (granted.granted, granted.state) == (1, "open")
    await answer_all(db, worker, batch)
    assert (await read(db, batch)).cost == 13
