"""A batch whose event is in the outbox, and an outbox that delivers it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from batchline.model import DEFAULT_TENANT, Batch
from batchline.store.session import Session
from batchline.webhooks.sender import Sender
from batchline.worker.outbox import Outbox
from tests.support.builders import a_batch, a_worker, finalize, run_to_the_end

ALLOWED = {"BATCHLINE_SERVER_ALLOW_PRIVATE_WEBHOOKS": "true"}


async def an_ended_batch(db: Session, tenant: str = DEFAULT_TENANT) -> Batch:
    """A batch that has completed, and its event in the outbox."""
    worker = a_worker()
    batch = await a_batch(db, 1, tenant=tenant)
    await run_to_the_end(db, worker)
    return await finalize(db, worker, batch)


@asynccontextmanager
async def outbox(db: Session, *, timeout: float = 25.0) -> AsyncIterator[Outbox]:
    """A running outbox that may send to this machine. It waits for almost as long as its lease lasts."""
    working = Outbox(db, Sender(allow_private=True, timeout=timeout))
    task = asyncio.create_task(working.run())
    try:
        yield working
    finally:
        task.cancel()
        await asyncio.wait([task])


async def settled(working: Outbox) -> None:
    await working.idle.wait()
