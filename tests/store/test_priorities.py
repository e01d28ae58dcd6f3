"""Of a tenant's batches, a claim takes those with the highest priority first, and then by deadline."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.support import scenes
from tests.support.scenes import Hand, Meanwhile, Stage, completed, retry
from tests.support.scenes import change as changed


@pytest.fixture(scope="module")
def stage_url(server_url: str, template: str) -> Iterator[str]:
    with scenes.database(server_url, template) as url:
        yield url


@pytest.fixture
def stage(stage_url: str) -> Iterator[Stage]:
    with Stage(stage_url) as stage:
        yield stage


def change(hand: Hand, batch: UUID, **values: object) -> bool:
    return bool(hand.run("change_batch", changed(batch, **values)))


def order(hand: Hand, limit: int = 100) -> list[UUID]:
    """Claim, and say from which batches, in the order in which they are sent."""
    return [claim.batch_id for claim in hand.claim(limit)]


def test_a_higher_priority_comes_before_an_earlier_deadline(stage: Stage) -> None:
    hand = stage.hand()
    soon, late, last = stage.batch(2, seconds=60), stage.batch(2, seconds=900), stage.batch(2, seconds=30)
    assert change(hand, late.id, priority=10)
    assert change(hand, last.id, priority=-10)

    assert order(hand, 3) == [late.id, soon.id]
    assert order(hand) == [soon.id, last.id]
    assert not stage.broken()


def test_batches_of_one_priority_go_by_deadline(stage: Stage) -> None:
    hand = stage.hand()
    later, soon = stage.batch(1, seconds=900), stage.batch(1, seconds=60)
    for batch in (later, soon):
        change(hand, batch.id, priority=7)

    assert order(hand) == [soon.id, later.id]


def test_lines_that_were_claimed_before_keep_to_the_priority_too(stage: Stage) -> None:
    hand = stage.hand()
    low, high = stage.batch(3, seconds=60), stage.batch(3, seconds=900)
    hand.settle([retry(item) for item in hand.take(6)])
    change(hand, high.id, priority=1)

    assert [claim.batch_id for claim in hand.claim(3)] == [high.id]
    assert [claim.batch_id for claim in hand.claim(3)] == [low.id]


def test_a_high_priority_takes_nothing_from_other_tenants(stage: Stage) -> None:
    hand = stage.hand()
    anna, bert = stage.batch(100, tenant="anna"), stage.batch(100, tenant="bert")
    change(hand, anna.id, priority=100)

    sizes = {claim.batch_id: claim.size for claim in hand.claim(50)}
    assert sizes == {anna.id: 25, bert.id: 25}


def test_a_priority_holds_across_the_keys_of_a_tenant(stage: Stage) -> None:
    hand = stage.hand()
    stage.batch(5, keys=("a",), seconds=60)
    high = stage.batch(5, keys=("b",), seconds=900)
    change(hand, high.id, priority=1)

    assert order(hand, 5) == [high.id]


def test_the_next_claim_follows_a_priority_that_has_changed(stage: Stage) -> None:
    hand = stage.hand()
    first, second = stage.batch(10, seconds=60), stage.batch(10, seconds=900)
    assert order(hand, 4) == [first.id]
    change(hand, second.id, priority=1)
    assert order(hand, 4) == [second.id]
    change(hand, second.id, priority=-1)
    assert order(hand, 4) == [first.id]


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_beyond_the_limits_is_refused(stage: Stage, priority: int) -> None:
    hand, batch = stage.hand(), stage.batch(1)
    with pytest.raises(Exception, match="priority_check"):
        change(hand, batch.id, priority=priority)


# Concurrency


def test_a_claim_takes_no_more_lines_of_a_batch_than_its_concurrency(stage: Stage) -> None:
    hand = stage.hand()
    limited, other = stage.batch(100, seconds=60), stage.batch(100, seconds=900)
    change(hand, limited.id, concurrency=3)

    claims = hand.claim(10)
    assert [(claim.batch_id, claim.size) for claim in claims] == [(limited.id, 3), (other.id, 7)]
    assert [claim.concurrency for claim in claims] == [3, None]


def test_a_claim_takes_no_more_retries_of_a_batch_than_its_concurrency(stage: Stage) -> None:
    hand = stage.hand()
    limited = stage.batch(10)
    hand.settle([retry(item) for item in hand.take(10)])
    change(hand, limited.id, concurrency=3)

    assert sum(claim.size for claim in hand.claim(10)) == 3
    assert not stage.broken()


def test_the_first_claim_of_a_new_batch_keeps_to_its_concurrency(stage: Stage) -> None:
    hand, batch = stage.hand(), stage.batch(10)
    change(hand, batch.id, concurrency=2)
    assert hand.claim_new(10, batch.id) == 2


def test_a_worker_of_one_batch_claims_as_many_lines_as_it_wants(stage: Stage) -> None:
    hand, batch = stage.hand(), stage.batch(10)
    change(hand, batch.id, concurrency=2)
    (claim,) = hand.claim(10, batch=batch.id)
    assert (claim.size, claim.concurrency) == (10, 2)


def test_a_batch_that_a_worker_has_enough_of_is_left_out(stage: Stage) -> None:
    hand = stage.hand()
    full, other = stage.batch(10, seconds=60), stage.batch(10, seconds=900)
    hand.settle([retry(item) for item in hand.take(4)])

    assert {claim.batch_id for claim in hand.claim(20, without=[full.id])} == {other.id}
    assert hand.claim(20, without=[full.id]) == [], "and nothing else is found for its tenant"
    assert sum(claim.size for claim in hand.claim(20)) == 10


def test_a_poll_tells_of_a_concurrency_that_the_worker_does_not_know(stage: Stage) -> None:
    hand, batch, other = stage.hand(), stage.batch(10), stage.batch(10)
    change(hand, batch.id, concurrency=4)

    result = hand.poll(held={batch.id: None, other.id: None})
    assert (list(result.changed), list(result.limits)) == ([batch.id], [4])
    assert list(hand.poll(held={batch.id: 4}).changed) == []
    change(hand, batch.id, concurrency=0)
    result = hand.poll(held={batch.id: 4})
    assert (list(result.changed), list(result.limits)) == ([batch.id], [None])
    assert list(hand.poll().changed) == [], "of batches that it holds nothing of, it need not know"


# Deadlines


def test_a_later_deadline_lets_a_batch_run_on(stage: Stage) -> None:
    hand, batch = stage.hand(), stage.batch(3, seconds=-5)
    assert hand.claim(3) == []
    assert change(hand, batch.id, seconds=60.0)
    assert sum(claim.size for claim in hand.claim(3)) == 3


def test_a_batch_may_lose_its_deadline(stage: Stage) -> None:
    hand, first, other = stage.hand(), stage.batch(1, seconds=10), stage.batch(1, seconds=900)
    assert change(hand, first.id, no_deadline=True)
    assert stage.value("SELECT expires_at FROM batchline.batches WHERE id = %s", first.id) is None
    assert order(hand) == [other.id, first.id]


def test_a_deadline_that_has_passed_changes_nothing(stage: Stage) -> None:
    hand, batch = stage.hand(), stage.batch(1)
    assert not change(hand, batch.id, priority=5, deadline=datetime.now(UTC) - timedelta(seconds=5))
    assert stage.value("SELECT priority FROM batchline.batches WHERE id = %s", batch.id) == 0


# Concurrency of statements


@pytest.mark.parametrize("closing", ["cancel", "pause"])
def test_a_change_and_a_close_meet_without_deadlock(stage: Stage, closing: str) -> None:
    batch = stage.batch(10, 10)
    anna, bert = stage.hand(), stage.hand()
    with anna.holding():
        assert change(anna, batch.id, priority=5)
        later: Meanwhile[bool] = stage.meanwhile(
            bert, lambda: bert.close(batch.id, "cancel" if closing == "cancel" else "pause")
        )
        assert later.waits()
    assert later.result()
    assert stage.value("SELECT bool_or(open) FROM batchline.lanes WHERE batch_id = %s", batch.id) is False


def test_a_change_of_a_batch_that_is_cancelled_meanwhile_changes_nothing(stage: Stage) -> None:
    batch = stage.batch(10)
    anna, bert = stage.hand(), stage.hand()
    with anna.holding():
        assert anna.close(batch.id, "cancel")
        later = stage.meanwhile(bert, lambda: change(bert, batch.id, priority=5))
        assert later.waits()
    assert not later.result()
    assert stage.value("SELECT max(priority) FROM batchline.lanes") == 0


def test_a_change_waits_for_a_claim_and_a_claim_for_a_change(stage: Stage) -> None:
    batch = stage.batch(10, 10)
    anna, bert = stage.hand(), stage.hand()
    with anna.holding():
        anna.claim(15)
        later = stage.meanwhile(bert, lambda: change(bert, batch.id, priority=5, concurrency=2))
        assert later.waits(), "for the lanes"
    assert later.result()
    with bert.holding():
        change(bert, batch.id, concurrency=0)
        then = stage.meanwhile(anna, lambda: sum(claim.size for claim in anna.claim(5)))
        assert then.waits()
    # It chose two lines before it waited, and looks again only if it finds less than that.
    assert then.result() in (2, 5)
    assert not stage.broken()


def test_a_change_during_a_settle_waits_for_nothing_but_the_batch_row(stage: Stage) -> None:
    batch = stage.batch(10)
    anna, bert = stage.hand(), stage.hand()
    items = anna.take(5)
    with anna.holding():
        anna.settle([completed(item) for item in items])
        later = stage.meanwhile(bert, lambda: change(bert, batch.id, priority=5))
        assert later.waits()
    assert later.result()
    assert stage.value("SELECT completed FROM batchline.current_batches WHERE id = %s", batch.id) == 5
