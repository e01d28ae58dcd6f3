"""The outbox alone: each event becomes deliveries once. test_webhooks.py tests how webhooks are sent."""

import asyncio

from batchline.store import hooks
from batchline.store.session import Session
from batchline.webhooks.sender import Sender
from batchline.worker.outbox import Outbox
from tests.support.builders import sql
from tests.support.webhooks import an_ended_batch

PATIENCE = 120.0


async def test_an_event_becomes_a_delivery_to_each_hook_once_and_then_the_outbox_is_idle(db: Session) -> None:
    woken = list[bool]()
    working = Outbox(db, Sender(), lambda: woken.append(working.idle.is_set()))
    await hooks.register(db, ["report:send", "tell-0a1b2c3d"])
    batches = [await an_ended_batch(db) for _ in range(2)]
    running = asyncio.create_task(working.run())
    async with asyncio.timeout(PATIENCE):
        for _ in range(2):
            await sql(db, "UPDATE batchline.outbox SET delivered_at = NULL, available_at = now()")
            working.wake()
            await working.idle.wait()
    running.cancel()
    await asyncio.wait([running])
    found = await hooks.deliveries(db, limit=10)
    assert sorted((each.hook, each.batch_id) for each in found) == sorted(
        (hook, batch.id) for hook in ("report:send", "tell-0a1b2c3d") for batch in batches
    )
    # The runner is woken for new deliveries only, before the outbox is idle.
    assert woken == [False, False]
    assert await sql(db, "SELECT count(*) FROM batchline.outbox WHERE delivered_at IS NULL") == [(0,)]
