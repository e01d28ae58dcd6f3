"""settle: each item ends once, whoever brings the verdict and whenever; and so does each batch."""

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
from msgspec.structs import replace

from batchline.model import Settled
from tests.support import scenes
from tests.support.scenes import Judge, Stage, completed, deferred, failed, retry


@pytest.fixture(scope="module")
def stage_url(server_url: str, template: str) -> Iterator[str]:
    with scenes.database(server_url, template) as url:
        yield url


@pytest.fixture
def stage(stage_url: str) -> Iterator[Stage]:
    with Stage(stage_url) as stage:
        yield stage


# What a verdict does


def test_outcomes_become_results_and_are_counted(stage: Stage) -> None:
    batch = stage.batch(5)
    hand = stage.hand()
    items = hand.take(4)

    settled = hand.settle([*map(completed, items[:3]), failed(items[3])])

    assert settled == [Settled(batch.id, ended=4, finished=False, closing=False)]
    assert stage.counters(batch) == (3, 1)
    assert stage.rows(
        "SELECT input_tokens, cached_tokens, output_tokens, reasoning_tokens FROM batchline.current_batches"
    ) == [(21, 3, 15, 6)]
    assert stage.rows(
        "SELECT ordinal, outcome::text, status_code, attempt, output FROM batchline.results ORDER BY ordinal"
    ) == [
        (0, "completed", 200, 1, '{"answer": 0}'),
        (1, "completed", 200, 1, '{"answer": 1}'),
        (2, "completed", 200, 1, '{"answer": 2}'),
        (3, "failed", 400, 1, '{"error": 3}'),
    ]
    assert stage.rows("SELECT * FROM batchline.spans") == []
    assert not stage.broken()


def test_tokens_add_up_over_all_settles_of_a_batch(stage: Stage) -> None:
    stage.batch(6)
    hand = stage.hand()
    items = hand.take(6)

    hand.settle([completed(items[0]), completed(items[1])])
    hand.settle([failed(items[2]), retry(items[3]), deferred(items[4])])
    hand.settle([completed(items[5])])

    assert stage.rows(
        "SELECT input_tokens, cached_tokens, output_tokens, reasoning_tokens FROM batchline.current_batches"
    ) == [(21, 3, 15, 6)]


def test_what_has_no_verdict_yet_stays_with_its_worker(stage: Stage) -> None:
    stage.batch(6)
    hand = stage.hand()
    items = hand.take(6)

    hand.settle([completed(items[n]) for n in (4, 1)])

    assert stage.rows("SELECT outstanding, worker_id FROM batchline.spans") == [
        (scenes.multirange([0, 2, 3, 5]), hand.id)
    ]


def test_the_last_outcome_begins_finalizing(stage: Stage) -> None:
    batch = stage.batch(2, 1, keys=("a", "b"))
    hand = stage.hand()
    items = hand.take(3)

    assert [row.finished for row in hand.settle([completed(items[0]), retry(items[1])])] == [False]
    assert [row.finished for row in hand.settle([completed(items[2])])] == [False]
    assert [row.finished for row in hand.settle([failed(item) for item in hand.take(9)])] == [True]

    assert stage.finalizing(batch)
    assert not stage.broken()


def test_a_retry_is_another_attempt_and_is_remembered(stage: Stage) -> None:
    batch = stage.batch(5)
    hand = stage.hand()
    items = hand.take(5)

    hand.settle([retry(items[0], 60), retry(items[1], 90), retry(items[2], 60), completed(items[3])])

    waiting = """
        SELECT outstanding, attempt, worker_id, extract(epoch FROM available_at - settled.at)::integer
        FROM batchline.spans
        CROSS JOIN (SELECT min(created_at) AS at FROM batchline.retry_attempts) AS settled
        WHERE worker_id IS NULL
        ORDER BY available_at
    """
    assert stage.rows(waiting) == [
        (scenes.multirange([0, 2]), 2, None, 60),
        (scenes.multirange([1]), 2, None, 90),
    ]
    assert stage.rows(
        "SELECT batch_id, lane_id, ordinal, attempt, error_code, message FROM batchline.retry_attempts"
        " ORDER BY ordinal"
    ) == [(batch.id, batch.lanes[0], n, 1, "rate_limit", "slow down") for n in (0, 1, 2)]
    assert stage.counters(batch) == (1, 0)
    assert not stage.broken()


def test_a_deferral_is_no_attempt(stage: Stage) -> None:
    batch = stage.batch(3)
    stage.span(batch, [0, 1, 2], attempt=3)
    hand = stage.hand()

    hand.settle([deferred(item) for item in hand.take(3)])

    assert stage.rows("SELECT outstanding, attempt, worker_id FROM batchline.spans") == [
        (scenes.multirange([0, 1, 2]), 3, None)
    ]
    assert stage.rows("SELECT * FROM batchline.retry_attempts") == []
    assert [item.claim.attempt for item in hand.take(3)] == [3, 3, 3]


# Who is believed


def test_the_first_verdict_wins(stage: Stage) -> None:
    batch = stage.batch(2)
    hand = stage.hand()
    item, _ = hand.take(2)

    assert [row.ended for row in hand.settle([completed(item)])] == [1]
    for late in (failed(item), completed(item), retry(item), deferred(item)):
        assert hand.settle([late]) == [], "a verdict that changes nothing should touch no batch"

    assert stage.counters(batch) == (1, 0)
    assert stage.rows("SELECT outcome::text FROM batchline.results") == [("completed",)]
    assert not stage.broken()


def test_duplicates_in_one_call_count_once_and_the_first_of_them_counts(stage: Stage) -> None:
    batch = stage.batch(2)
    hand = stage.hand()
    one, two = hand.take(2)

    (row,) = hand.settle([failed(one), completed(two), completed(one), retry(two), completed(two)])

    assert (row.ended, row.finished) == (2, True)
    assert stage.counters(batch) == (1, 1)
    assert not stage.broken()


def test_the_verdict_of_an_expired_worker_counts_once(stage: Stage) -> None:
    """Its answer is true, and it was first; the answer of the new holder is then dropped."""
    batch = stage.batch(3)
    zombie, heir = stage.hand(), stage.hand()
    hers = zombie.take(2)
    stage.lease(zombie.id, -1)
    his = heir.take(2)

    assert [row.ended for row in zombie.settle([completed(hers[0])])] == [1]
    assert [row.ended for row in heir.settle([failed(his[0]), completed(his[1])])] == [1]
    assert zombie.settle([failed(hers[1])]) == []

    assert stage.counters(batch) == (2, 0)
    assert not stage.broken()


def test_a_late_verdict_on_a_span_that_another_finished_changes_nothing(stage: Stage) -> None:
    batch = stage.batch(2)
    zombie, heir = stage.hand(), stage.hand()
    hers = zombie.take(2)
    stage.lease(zombie.id, -1)
    assert heir.settle([completed(item) for item in heir.take(2)])[0].finished

    assert zombie.settle([failed(item) for item in hers]) == []
    assert stage.counters(batch) == (2, 0)
    assert not stage.broken()


def test_an_expired_worker_cannot_put_an_item_back(stage: Stage) -> None:
    batch = stage.batch(2)
    zombie, heir = stage.hand(), stage.hand()
    hers = zombie.take(2)
    stage.lease(zombie.id, -1)
    heir.take(2)

    assert zombie.settle([retry(hers[0]), deferred(hers[1])]) == []

    assert stage.rows("SELECT outstanding, attempt, worker_id FROM batchline.spans") == [
        (scenes.multirange([0, 1]), 1, heir.id)
    ]
    assert stage.rows("SELECT * FROM batchline.retry_attempts") == []
    assert stage.counters(batch) == (0, 0)


def test_a_late_retry_of_an_item_that_its_worker_released_changes_nothing(stage: Stage) -> None:
    stage.batch(2)
    hand = stage.hand()
    items = hand.take(2)
    hand.release()

    assert hand.settle([retry(items[0]), deferred(items[1])]) == []
    assert [row.ended for row in hand.settle([completed(items[0])])] == [1]
    assert not stage.broken()


def test_the_head_of_a_split_span_belongs_to_its_new_holder_alone(stage: Stage) -> None:
    """What was split off has a span of its own; of the rest the old holder's answer is still taken."""
    batch = stage.batch(4)
    zombie, heir = stage.hand(), stage.hand()
    hers = zombie.take(4)
    stage.lease(zombie.id, -1)
    heir.take(2)

    assert [row.ended for row in zombie.settle([completed(item) for item in hers])] == [2]
    assert stage.counters(batch) == (2, 0)
    assert not stage.broken()


@pytest.mark.parametrize("judge", [completed, failed, retry, deferred])
@pytest.mark.parametrize("other", ["batch", "lane", "batch with the lane's number"])
def test_the_verdict_of_a_span_whose_number_belongs_to_another_now_changes_nothing(
    stage: Stage, judge: Judge, other: str
) -> None:
    """After a restore, numbers of spans and lanes are given out again. The worker lived through it."""
    if other == "lane":
        batch = stage.batch(4, 4, keys=("k", "l"))
    else:
        stage.batch(4)
        batch = stage.batch(4)
    hand = stage.hand()
    items = hand.take(8)
    current = [item for item in items if item.claim.span_id == items[-1].claim.span_id]
    before = [item for item in items if item.claim.span_id != items[-1].claim.span_id]
    assert len(current) == len(before) == 4
    span, lane = current[0].claim.span_id, before[0].claim.lane_id
    if "number" in other:
        lane = current[0].claim.lane_id
    stale = [replace(item, claim=replace(item.claim, span_id=span, lane_id=lane)) for item in before]

    assert hand.settle([judge(item) for item in stale]) == []
    assert stage.rows("SELECT FROM batchline.results") == []
    # In one settle with true ones, which all count.
    both = [verdict for pair in zip(stale, current, strict=True) for verdict in map(completed, pair)]
    (settled,) = hand.settle(both)
    assert (settled.batch_id, settled.ended) == (batch.id, 4)
    assert stage.rows("SELECT DISTINCT lane_id FROM batchline.results") == [(current[0].claim.lane_id,)]
    assert not stage.broken()


# Two at once


def test_two_settles_of_one_span_at_once_lose_and_double_nothing(stage: Stage) -> None:
    """The second waits for the span, and must then go by what the first left of it, not by what it saw."""
    batch = stage.batch(6)
    zombie, heir = stage.hand(), stage.hand()
    hers = zombie.take(6)
    stage.lease(zombie.id, -1)
    his = heir.take(6)

    with zombie.holding():
        zombie.settle([completed(hers[n]) for n in (0, 1, 2)])
        later = stage.meanwhile(heir, lambda: heir.settle([failed(his[n]) for n in (2, 3, 4)]))
        assert later.waits()
    assert [row.ended for row in later.result()] == [2]

    assert stage.counters(batch) == (3, 2)
    assert stage.rows("SELECT outstanding FROM batchline.spans") == [(scenes.multirange([5]),)]
    assert not stage.broken()


@pytest.mark.parametrize("kept", [True, False], ids=["committed", "rolled back"])
def test_a_settle_that_waited_for_one_that_emptied_the_span(stage: Stage, kept: bool) -> None:
    batch = stage.batch(2)
    zombie, heir = stage.hand(), stage.hand()
    hers = zombie.take(2)
    stage.lease(zombie.id, -1)
    his = heir.take(2)

    zombie.connection.execute("BEGIN")
    zombie.settle([completed(item) for item in hers])
    later = stage.meanwhile(heir, lambda: heir.settle([failed(item) for item in his]))
    assert later.waits()
    zombie.connection.execute("COMMIT" if kept else "ROLLBACK")

    assert [row.finished for row in later.result()] == ([] if kept else [True])
    assert stage.counters(batch) == ((2, 0) if kept else (0, 2))
    assert not stage.broken()


@pytest.mark.parametrize("act", ["settle", "release", "conclude"])
def test_spans_are_locked_by_their_ids_whatever_their_place_on_disk(stage: Stage, act: str) -> None:
    """Who waits for the first span has not locked the second, or two could wait for each other."""
    batch = stage.batch(4)
    hand, holder, third = stage.hand(), stage.hand(), stage.hand()
    items = hand.take(2) + hand.take(2)
    lower, higher = sorted({item.claim.span_id for item in items})
    # A row that was updated lies behind those that were not.
    stage.db.execute("UPDATE batchline.spans SET available_at = now() WHERE id = %s", (lower,))
    stage.hand().close(batch.id, "cancel")
    acts: dict[str, Callable[[], object]] = {
        "settle": lambda: hand.settle([completed(item) for item in items]),
        "release": hand.release,
        "conclude": lambda: hand.conclude(batch.id),
    }

    with holder.holding():
        holder.connection.execute("SELECT FROM batchline.spans WHERE id = %s FOR UPDATE", (lower,))
        current_actor = stage.meanwhile(hand, acts[act])
        assert current_actor.waits()
        third.connection.execute("SELECT FROM batchline.spans WHERE id = %s FOR UPDATE NOWAIT", (higher,))
    current_actor.result()


def test_settles_of_two_batches_in_opposite_order_do_not_deadlock(stage: Stage) -> None:
    """Each batch row is held by a third hand, so that both settles stand before their first row at once."""
    first, second = stage.batch(4), stage.batch(4)
    anna, bert = stage.hand(), stage.hand()
    hers = anna.take(2, batch=first.id) + anna.take(2, batch=second.id)
    his = bert.take(2, batch=second.id) + bert.take(2, batch=first.id)
    gates = [stage.hand(), stage.hand()]
    for gate, batch in zip(gates, (first, second), strict=True):
        gate.connection.execute("BEGIN")
        gate.connection.execute("SELECT FROM batchline.batches WHERE id = %s FOR UPDATE", (batch.id,))

    settling = [
        stage.meanwhile(anna, lambda: anna.settle([completed(item) for item in hers])),
        stage.meanwhile(bert, lambda: bert.settle([completed(item) for item in his])),
    ]
    assert all(settle.waits() for settle in settling)
    gates[0].connection.execute("COMMIT")
    assert all(settle.waits(excluded=gates[0]) for settle in settling)
    gates[1].connection.execute("COMMIT")

    finished = [row.batch_id for settle in settling for row in settle.result() if row.finished]
    assert sorted(finished) == [first.id, second.id]
    assert not stage.broken()


# The end of a batch


def test_of_two_workers_with_the_last_two_spans_exactly_one_finishes(stage: Stage) -> None:
    """The second worker commits the last row while the first, which counts, cannot see it yet."""
    batch = stage.batch(4)
    first_worker, second_worker = stage.hand(), stage.hand()
    first, last = first_worker.take(2), second_worker.take(2)

    with first_worker.holding():
        early = first_worker.settle([completed(item) for item in first])
        later = stage.meanwhile(
            second_worker, lambda: second_worker.settle([completed(item) for item in last])
        )
        assert later.waits()

    assert [row.finished for row in early + later.result()] == [False, True]
    assert stage.finalizing(batch)
    assert not stage.broken()


@pytest.mark.parametrize("order", list(itertools.permutations(["anna", "bert", "cancel"])), ids="-".join)
@pytest.mark.parametrize("verdict", [completed, retry], ids=["completed", "retry"])
def test_a_batch_that_is_cancelled_while_its_last_spans_are_settled_ends_once(
    stage: Stage, order: tuple[str, str, str], verdict: Judge
) -> None:
    """All three act at once and commit one after the other; each concludes afterwards, as a worker does."""
    batch = stage.batch(9)
    hands = {name: stage.hand() for name in ("anna", "bert", "cancel")}
    held = {name: hands[name].take(2) for name in ("anna", "bert")}

    def act(name: str) -> bool:
        hand = hands[name]
        if name == "cancel":
            return hand.close(batch.id, "cancel") and hand.conclude(batch.id)
        return batch.id in hand.settle_and_conclude([verdict(item) for item in held[name]])

    gate = stage.hand()
    with gate.holding():
        gate.connection.execute("SELECT FROM batchline.batches WHERE id = %s FOR UPDATE", (batch.id,))
        # They queue for the batch row, and get it in this order.
        acts = []
        for name in order:
            acts.append(stage.meanwhile(hands[name], lambda name=name: act(name)))  # type: ignore[misc]
            assert acts[-1].waits()

    assert [act.result() for act in acts].count(True) == 1, "exactly one of them should have ended the batch"
    assert stage.finalizing(batch)
    assert not stage.broken()


@pytest.mark.parametrize("reason", ["cancel", "expire"])
@pytest.mark.parametrize("order", list(itertools.permutations(["anna", "bert"])), ids="-".join)
def test_both_last_settles_of_a_closing_batch_open_at_once(
    stage: Stage, order: tuple[str, str], reason: Literal["cancel", "expire"]
) -> None:
    """The second waits for the batch row, and sees afterwards what the first one did."""
    batch = stage.batch(4)
    hands = {name: stage.hand() for name in ("anna", "bert")}
    held = {name: hand.take(2) for name, hand in hands.items()}
    stage.hand().close(batch.id, reason)
    first, second = (hands[name] for name in order)

    with first.holding():
        early = first.settle([retry(item) for item in held[order[0]]])
        later = stage.meanwhile(second, lambda: second.settle([retry(item) for item in held[order[1]]]))
        assert later.waits()
    late = later.result()

    assert [(row.finished, row.closing) for row in early + late] == [(False, True), (True, True)]
    assert [first.conclude(batch.id), second.conclude(batch.id)] == [False, False]
    assert not stage.broken()


@pytest.mark.parametrize("left", [0.0, 3.0])
def test_a_closing_batch_waits_for_a_worker_to_the_very_end_of_its_lease(stage: Stage, left: float) -> None:
    batch = stage.batch(4)
    anna, other = stage.hand(), stage.hand()
    anna.take(2)
    other.close(batch.id, "cancel")

    # One transaction has one time, so the lease is neither longer nor over, however slow the machine is.
    with other.holding():
        other.renew(anna.id, left)
        assert not other.conclude(batch.id)
        other.renew(anna.id, -0.001)
        assert other.conclude(batch.id)

    assert stage.finalizing(batch)
    assert not stage.broken()


def test_a_batch_has_one_row_of_counters_however_often_it_is_settled(stage: Stage) -> None:
    stage.batch(9)
    hand = stage.hand()
    for _ in range(4):
        hand.settle([completed(item) for item in hand.take(2)])
    assert stage.rows("SELECT completed FROM batchline.counters") == [(8,)]


def test_a_late_verdict_beside_one_that_counts_is_not_in_the_audit_log(stage: Stage) -> None:
    batch = stage.batch(4)
    stage.db.execute("UPDATE batchline.batches SET submitted_by = 'user' WHERE id = %s", (batch.id,))
    anna, bert = stage.hand(), stage.hand()
    first, second = anna.take(2), anna.take(2)
    stage.lease(anna.id, -1)
    bert.settle([completed(item) for item in first])

    anna.settle([completed(item) for item in first + second])

    written = stage.rows(
        "SELECT sequence_no FROM batchline.audit_log WHERE batch_id = %s ORDER BY 1", batch.id
    )
    assert written == [(0,), (1,), (2,), (3,)]


def test_of_two_concludes_at_once_one_freezes_the_batch(stage: Stage) -> None:
    batch = stage.batch(4)
    anna, bert = stage.hand(), stage.hand()
    anna.close(batch.id, "cancel")

    with anna.holding():
        assert anna.conclude(batch.id)
        later = stage.meanwhile(bert, lambda: bert.conclude(batch.id))
        assert later.waits()

    assert not later.result()


def test_a_batch_that_is_not_closing_is_not_concluded(stage: Stage) -> None:
    batch = stage.batch(4)
    assert stage.rows("SELECT batchline.conclude_now_v2(%s)", batch.id) == [(False,)]
    assert not stage.finalizing(batch)


def test_a_cancelled_batch_keeps_how_far_its_lanes_were_claimed_and_leaves_no_cursor(stage: Stage) -> None:
    batch = stage.batch(9)
    hand = stage.hand()
    items = hand.take(4)
    hand.close(batch.id, "cancel")
    hand.settle([completed(item) for item in items])

    assert stage.finalizing(batch)
    assert stage.rows("SELECT next, drained FROM batchline.lanes") == [(4, False)]
    assert stage.rows("SELECT * FROM batchline.cursors") == []
    assert not stage.broken()


def test_a_verdict_after_the_end_of_a_cancelled_batch_is_dropped(stage: Stage) -> None:
    batch = stage.batch(4)
    zombie, other = stage.hand(), stage.hand()
    items = zombie.take(2)
    stage.lease(zombie.id, -1)
    other.close(batch.id, "cancel")
    assert other.conclude(batch.id)

    assert zombie.settle([completed(items[0]), retry(items[1])]) == []
    assert stage.counters(batch) == (0, 0)
    assert not stage.broken()


def test_concluding_waits_for_no_settle_that_waits_for_it(stage: Stage) -> None:
    """A worker long gone has its span locked when the batch is concluded: it concludes by itself."""
    batch = stage.batch(4)
    gate, concluder, late = stage.hand(), stage.hand(), stage.hand(lease=-1)
    items = late.take(2)
    stage.hand().close(batch.id, "cancel")

    with concluder.holding():
        concluder.connection.execute("SELECT FROM batchline.batches WHERE id = %s FOR UPDATE", (batch.id,))
        settling = stage.meanwhile(late, lambda: late.settle([completed(item) for item in items]))
        assert settling.waits()
        concluded = concluder.connection.execute("SELECT batchline.conclude_now_v2(%s)", (batch.id,))
        assert concluded.fetchall() == [(False,)]

    assert [row.finished for row in settling.result()] == [True]
    assert not gate.conclude(batch.id), "it is frozen already"
    assert stage.counters(batch) == (2, 0)
    assert not stage.broken()


def test_a_closing_batch_is_not_concluded_before_refused_verdicts_are_sent_again(stage: Stage) -> None:
    """Of a group one verdict comes too late. The others count, although the lease of their worker is over."""
    batch = stage.batch(6)
    hand, other = stage.hand(), stage.hand()
    items = hand.take(4)
    hand.settle([completed(items[0])])
    other.close(batch.id, "cancel")
    stage.lease(hand.id, -1)

    (row,) = hand.settle([completed(item) for item in items[:3]] + [failed(items[3])])

    assert (row.ended, row.finished, row.closing) == (3, False, True)
    assert other.conclude(batch.id)
    assert stage.counters(batch) == (3, 1)
    assert not stage.broken()


def test_eight_workers_finish_a_thousand_small_batches_once_each(stage: Stage) -> None:
    numbers = random.Random(4)
    batches = stage.batches([numbers.randint(1, 5) for _ in range(1000)])
    total = stage.value("SELECT sum(total) FROM batchline.batches")
    hands = [stage.hand() for _ in range(8)]
    finished: Counter[object] = Counter()
    lock = threading.Lock()
    judges: list[Judge] = [completed, completed, completed, failed, retry, deferred]

    def work(number: int) -> None:
        """Claims some, gives some back, retries some; settles across batches in an order of its own."""
        hand, dice = hands[number], random.Random(number)
        while items := hand.take(dice.randint(5, 60)) or (hand.poll().claimable and hand.take(60)):
            dice.shuffle(items)
            verdicts = [dice.choice(judges)(item) for item in items]
            middle = len(verdicts) // 2
            for part in (verdicts[:middle], verdicts[middle:]):
                ended = [row.batch_id for row in hand.settle(part) if row.finished]
                with lock:
                    finished.update(ended)

    with ThreadPoolExecutor(8) as producer:
        list(producer.map(work, range(8)))
    # Whatever the last ones put back while the others were leaving.
    work(0)

    assert set(finished.values()) == {1}
    assert finished.keys() == set(batches)
    assert stage.value("SELECT sum(completed + failed) FROM batchline.batches") == total
    assert stage.value("SELECT count(*) FROM batchline.results") == total
    assert stage.rows("SELECT * FROM batchline.spans") == []
    assert not stage.broken()
