"""What a worker holds without knowing it, because the answer to a claim was lost, is freed."""

import asyncio
from uuid import UUID

import pytest

from batchline.config.settings import WorkerSettings
from batchline.store import batches, spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.lease import Lease
from batchline.worker.reconciler import Reconciler
from tests.support.builders import a_batch, a_worker, held, read, take

PATIENCE = 120.0


class Lost:
    """A worker that has lost track of what it has claimed."""

    def __init__(self, db: Session) -> None:
        self.lease = Lease(WorkerSettings(), lambda: 0.0, lambda: 0)
        self.known: set[int] = set()
        self.calls = 0
        self.reconciler = Reconciler(db, self.lease, lambda: self.known, self.freed)
        self.reconciler.wake()

    def freed(self) -> None:
        self.calls += 1

    async def claim(self, db: Session, limit: int = 1) -> int:
        (claim,) = await spans.claim(db, self.lease.worker, Scope(), limit)
        return claim.span_id

    async def release(self) -> None:
        running = asyncio.create_task(self.reconciler.run())
        async with asyncio.timeout(PATIENCE):
            await self.reconciler.idle.wait()
        running.cancel()


async def test_the_reconciler_frees_only_spans_that_the_worker_does_not_know(db: Session) -> None:
    lost = Lost(db)
    await a_batch(db, 3)
    await lost.claim(db)
    lost.known = {await lost.claim(db, 2)}
    await lost.release()
    assert await held(db) == [(None, 1), (lost.lease.worker.id, 2)]
    assert lost.calls == 1, "a claim should look for what was freed"


async def test_a_release_without_an_answer_is_tried_again(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_release, failures = spans.release, iter([True])

    async def release(
        session: Session, worker_id: UUID, some: set[int] | None = None, *, sent: bool = True
    ) -> list[UUID]:
        concerned = await true_release(session, worker_id, some, sent=sent)
        if next(failures, False):
            raise StoreUnavailable("the answer was lost")
        return concerned

    monkeypatch.setattr(spans, "release", release)
    lost = Lost(db)
    await a_batch(db, 1)
    await lost.claim(db)
    await lost.release()
    assert next(failures, None) is None
    assert len(await take(db, a_worker())) == 1


async def test_unknown_spans_of_a_cancelled_batch_are_freed_so_that_it_ends(db: Session) -> None:
    lost, batch = Lost(db), await a_batch(db, 1)
    await lost.claim(db)
    await batches.close(db, batch.id, "cancel")
    assert (await read(db, batch)).finalizing_at is None
    await lost.release()
    assert (await read(db, batch)).finalizing_at is not None
