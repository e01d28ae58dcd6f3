"""The finalizer alone: it ends batches when it is woken. How it copes with failures is tested in
test_one_failing_finalization_holds_up_no_other.py."""

import asyncio
from pathlib import Path

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Batch
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.finalizer import Finalizer
from batchline.worker.lease import Lease
from tests.support.builders import a_batch, a_worker, read, run_to_the_end

PATIENCE = 120.0


async def test_it_ends_all_finished_batches_and_is_idle_only_after_the_last(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    finished = [await a_batch(db, 2) for _ in range(6)]
    await run_to_the_end(db, a_worker())
    unfinished = await a_batch(db, 1)
    ended, idle = list[Batch](), list[bool]()

    def on_ended(batch: Batch) -> None:
        ended.append(batch)
        idle.append(finalizer.idle.is_set())

    lease = Lease(WorkerSettings(), lambda: 0.0, lambda: 0)
    finalizer = Finalizer(database_url, lease, Scope(), Objects.at(tmp_path), on_ended)
    running = asyncio.create_task(finalizer.run())
    finalizer.wake()
    assert finalizer.holding
    async with asyncio.timeout(PATIENCE):
        await finalizer.idle.wait()
    assert not finalizer.holding
    running.cancel()
    await asyncio.wait([running])
    assert {batch.id for batch in ended} == {batch.id for batch in finished}
    assert idle == [False] * 6
    assert (await read(db, unfinished)).ended_at is None
