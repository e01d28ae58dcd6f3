"""The listener alone: it hears of batches, and listens again after a lost connection."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from batchline.store import batches
from batchline.store.events import Event
from batchline.store.session import Session, StoreUnavailable
from batchline.worker import listener as listening
from batchline.worker.listener import Listener
from batchline.worker.pause import Pause
from tests.support.builders import a_batch, sql

PATIENCE = 120.0
END = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'batchline listener'
"""


async def test_it_hears_of_batches_and_listens_again_after_a_lost_connection(
    database_url: str, db: Session
) -> None:
    heard: asyncio.Queue[Event] = asyncio.Queue()
    listener = Listener(database_url, heard.put_nowait)
    running = asyncio.create_task(listener.run())
    async with asyncio.timeout(PATIENCE):
        assert await heard.get() == Event("listening")
        batch = await a_batch(db, 1)
        assert await heard.get() == Event("open", batch.id)
        await sql(db, END)
        assert await heard.get() == Event("listening")
        await batches.close(db, batch.id, "cancel")
        assert await heard.get() == Event("closed", batch.id)
    assert listener.idle.is_set()
    running.cancel()
    await asyncio.wait([running])


async def test_a_wake_up_ends_the_pause_before_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: asyncio.Queue[None] = asyncio.Queue()

    async def refused(url: str) -> AsyncIterator[Event]:
        tries.put_nowait(None)
        raise StoreUnavailable("the database cannot be reached")
        yield

    async def forever(pause: Pause) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(listening, "notifications", refused)
    monkeypatch.setattr(Pause, "wait", forever)
    listener = Listener("", lambda event: None)
    running = asyncio.create_task(listener.run())
    async with asyncio.timeout(PATIENCE):
        await tries.get()
        await asyncio.sleep(0)
        listener.wake()
        await tries.get()
    assert listener.idle.is_set()
    running.cancel()
    await asyncio.wait([running])
