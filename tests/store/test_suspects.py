"""Lines that were in flight at crashes: counted by settles, and known to all workers while one holds them."""

from batchline.model import Deferred, Retried
from batchline.store import spans, suspects
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, sql, take


async def test_a_crash_is_counted_with_the_line_until_an_attempt_ends_otherwise(db: Session) -> None:
    await a_batch(db, {"m": 1})
    worker = a_worker()
    for crashes in range(3):
        (item,) = await take(db, worker)
        assert (item.claim.crashes, item.claim.attempt) == (crashes, 1)
        await spans.settle(db, worker.id, [Deferred(item, crashed=True)])
    (item,) = await take(db, worker)
    await spans.settle(db, worker.id, [Deferred(item)])
    (item,) = await take(db, worker)
    assert item.claim.crashes == 3, "a deferral says nothing about it"
    await spans.settle(db, worker.id, [Retried(item, "http_500", "no", 0.0)])
    (item,) = await take(db, worker)
    assert (item.claim.crashes, item.claim.attempt) == (0, 2), "it was answered"


async def test_a_suspect_is_known_to_other_workers_while_it_is_held(db: Session) -> None:
    await a_batch(db, {"m": 1})
    one, other = a_worker(), a_worker()
    for crashes in range(3):
        (item,) = await take(db, one)
        assert await suspects.held_elsewhere(db, other.id, 2) is (crashes >= 2)
        assert not await suspects.held_elsewhere(db, one.id, 2), "its own does not count"
        await spans.settle(db, one.id, [Deferred(item, crashed=True)])
    assert not await suspects.held_elsewhere(db, other.id, 2), "nobody holds it"


async def test_a_suspect_of_a_lost_worker_counts_until_its_lease_has_expired(db: Session) -> None:
    """Nobody takes it over if its batch is paused, so it must not stop all other suspects."""
    await a_batch(db, {"m": 1})
    lost, other = a_worker(), a_worker()
    for _ in range(2):
        (item,) = await take(db, lost)
        await spans.settle(db, lost.id, [Deferred(item, crashed=True)])
    await take(db, lost)
    assert await suspects.held_elsewhere(db, other.id, 2)

    await sql(db, "UPDATE batchline.workers SET lease_until = now() - interval '1 hour'")

    assert not await suspects.held_elsewhere(db, other.id, 2)
