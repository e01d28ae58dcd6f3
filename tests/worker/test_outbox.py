"""The outbox alone: listeners hear of each event once. test_webhooks.py tests how webhooks are sent."""

import asyncio

from batchline.store.maintenance import OutboxEvent
from batchline.store.session import Session
from tests.support.webhooks import an_ended_batch, outbox

PATIENCE = 60.0


async def test_a_listener_hears_of_each_event_once_and_then_the_outbox_is_idle(db: Session) -> None:
    heard = list[OutboxEvent]()

    async def listen(event: OutboxEvent) -> None:
        assert not working.idle.is_set()
        heard.append(event)

    batches = [await an_ended_batch(db) for _ in range(2)]
    async with asyncio.timeout(PATIENCE), outbox(db, listen) as working:
        for _ in range(2):
            working.wake()
            await working.idle.wait()
    assert [event.batch_id for event in heard] == [batch.id for batch in batches]
