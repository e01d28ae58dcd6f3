"""Notices of ended batches reach who waits for them."""

import asyncio
from uuid import uuid4

from batchline.app.loops import EndNotices
from batchline.store.events import Event


async def test_a_notice_that_arrives_before_the_wait_is_not_missed() -> None:
    notices, batch_id = EndNotices(), uuid4()
    with notices.expected(batch_id) as notice:
        notice.clear()
        notices.heard(Event("ended", batch_id))
        async with asyncio.timeout(120):
            await notice.wait(600)
        notice.clear()
        await notice.wait(0.001)
    assert not notices._waiting
