"""What a worker holds without knowing it is freed, and is not run after that; what its lease covers is."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from batchline.config import WorkerSettings
from batchline.store import batches, spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.lease import Lease
from batchline.worker.strays import Strays
from tests.builders import a_batch, a_worker, equals, held, on, read, take, until

PATIENCE = 60.0


class Lost:
    """A worker that has lost track of what it has claimed, and what it would do about it."""

    def __init__(self, db: Session) -> None:
        self.lease = Lease(WorkerSettings(), lambda: 0.0, lambda: 0)
        self.known: set[int] = set()
        self.told = 0
        self.strays = Strays(db, self.lease, lambda: self.known, asyncio.Lock(), self.tell)
        self.strays.lost_track()

    def tell(self) -> None:
        self.told += 1

    async def claim(self, db: Session, limit: int = 1) -> int:
        (claim,) = await spans.claim(db, self.lease.worker, Scope(), limit)
        return claim.span_id


def test_what_was_freed_before_the_word_of_it_came_is_not_taken_up(database_url: str) -> None:
    async def scenario(db: Session) -> None:
        lost = Lost(db)
        await a_batch(db, 3)
        stray, known = await lost.claim(db), await lost.claim(db, 2)
        lost.known = {known}
        assert not lost.strays.may_take(99), "it may be freed any moment"
        await lost.strays.release()
        assert not lost.strays.busy
        assert await held(db) == [(None, 1), (lost.lease.worker.id, 2)]
        assert lost.told == 1, "somebody should look for what was freed"
        assert not lost.strays.may_take(stray)
        assert lost.strays.may_take(known)

    on(database_url, scenario)


def turned_away(lost: Lost, span_id: int) -> None:
    assert not lost.strays.may_take(span_id)


def lost_again(lost: Lost, _: int) -> None:
    lost.strays.lost_track()


@pytest.mark.parametrize("happens", [turned_away, lost_again])
def test_what_is_turned_away_or_lost_while_strays_are_freed_is_freed_after_them(
    database_url: str, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Lost, int], None]
) -> None:
    true_strays, rounds = spans.strays, list[int]()

    async def scenario(db: Session) -> None:
        lost = Lost(db)

        async def strays(session: Session, worker_id: UUID, known: set[int]) -> set[int]:
            found = await true_strays(session, worker_id, known)
            rounds.append(len(found))
            if len(rounds) == 1:
                happens(lost, await lost.claim(db))
            return found

        monkeypatch.setattr(spans, "strays", strays)
        await a_batch(db, 1)
        running = asyncio.create_task(lost.strays.run())
        async with asyncio.timeout(PATIENCE):
            await until(lambda: equals(asyncio.sleep(0, lost.strays.busy), False))
        running.cancel()
        assert rounds == [0, 1]
        assert await held(db) == [(None, 1)]

    on(database_url, scenario)


def test_what_was_freed_without_an_answer_is_not_taken_up_either(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_release, failures = spans.release, iter([True])

    async def release(session: Session, worker_id: UUID, some: set[int] | None = None) -> list[UUID]:
        concerned = await true_release(session, worker_id, some)
        if next(failures, False):
            raise StoreUnavailable("the answer was lost")
        return concerned

    monkeypatch.setattr(spans, "release", release)

    async def scenario(db: Session) -> None:
        lost = Lost(db)
        await a_batch(db, 1)
        stray = await lost.claim(db)
        with pytest.raises(StoreUnavailable):
            await lost.strays.release()
        await lost.strays.release()
        assert not lost.strays.busy
        assert len(await take(db, a_worker())) == 1
        assert not lost.strays.may_take(stray), "another one has it"

    on(database_url, scenario)


def test_strays_of_a_batch_that_was_cancelled_let_it_end(database_url: str) -> None:
    async def scenario(db: Session) -> None:
        lost, batch = Lost(db), await a_batch(db, 1)
        await lost.claim(db)
        await batches.close(db, batch.id, "cancel")
        assert (await read(db, batch)).finalizing_at is None
        await lost.strays.release()
        assert (await read(db, batch)).finalizing_at is not None

    on(database_url, scenario)


def test_more_in_the_database_than_is_known_here_twice_in_a_row_is_a_loss(database_url: str) -> None:
    async def scenario(db: Session) -> None:
        lost = Lost(db)
        await lost.strays.release()
        lost.known = {1, 2}
        for held_there, known_before, busy in [
            (3, 2, False),
            (2, 2, False),
            (3, 3, False),
            (3, 2, False),
            (3, 2, True),
        ]:
            lost.strays.compare(held_there, known_before)
            assert lost.strays.busy is busy

    on(database_url, scenario)
