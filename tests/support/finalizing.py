"""Batches that wait to be finalized, and what finalizing leaves of them."""

import random
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from uuid import UUID

from batchline.files.objects import Objects
from batchline.model import Batch, Completed, Item
from batchline.store import batches, spans
from batchline.store.session import Session
from batchline.store.spans import WorkerId
from tests.support.builders import a_batch, a_worker, completed, failed, read, sql, take

AT_ONCE = timedelta(0)


async def settle(
    db: Session, worker: WorkerId, items: Iterable[Item], *, fail: Callable[[Item], bool]
) -> None:
    """Settle items in random order, a few at a time, and conclude the batch if it is closing."""
    shuffled = random.sample(list(items), k=len(list(items)))
    for start in range(0, len(shuffled), 7):
        verdicts = [failed(item) if fail(item) else completed(item) for item in shuffled[start : start + 7]]
        for settled in await spans.settle(db, worker.id, verdicts):
            if settled.closing:
                await batches.conclude(db, settled.batch_id)


async def a_finished_batch(
    db: Session, lanes: dict[str, int] | int = 30, *, fail: Callable[[Item], bool] = lambda _: False
) -> Batch:
    worker = a_worker()
    batch = await a_batch(db, lanes)
    await settle(db, worker, await take(db, worker), fail=fail)
    return await read(db, batch)


async def a_large_batch(db: Session) -> Batch:
    """Its output file is an upload of three parts."""
    worker = a_worker()
    batch = await a_batch(db, 200)
    items = await take(db, worker)
    await spans.settle(db, worker.id, [Completed(item, 200, b'"%s"' % (b"x" * 100_000)) for item in items])
    return await read(db, batch)


async def recorded(db: Session, objects: Objects, file_id: UUID | None) -> list[bytes]:
    """The lines of a file that is recorded, which must be what its row says."""
    rows = await sql(
        db, "SELECT object_key, bytes, line_count FROM batchline.files WHERE id = %(id)s", id=file_id
    )
    ((key, size, count),) = rows
    text = b"".join([block async for block in objects.read(key)])
    assert (len(text), text.count(b"\n")) == (size, count)
    return text.splitlines()


async def ended(work: Awaitable[Batch | None]) -> Batch:
    batch = await work
    assert batch is not None, "this finalizer should have ended the batch"
    return batch


def answers(*line_nos: int) -> list[bytes]:
    return [b'{"answer": %d}' % n for n in line_nos]
