"""The maintenance service alone: it runs what is due when it is woken, and keeps no connection."""

import asyncio
from pathlib import Path

import pytest

from batchline.batches import maintenance
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.store.session import Session, StoreUnavailable
from batchline.worker.maintenance import Maintenance
from tests.support.builders import a_batch, overrun, read, sql

PATIENCE = 120.0


async def maintained(service: Maintenance) -> None:
    running = asyncio.create_task(service.run())
    service.wake()
    async with asyncio.timeout(PATIENCE):
        await service.idle.wait()
    running.cancel()
    await asyncio.wait([running])


async def test_it_closes_overdue_batches_and_then_its_connection(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, 3)
    await overrun(db, batch.id)
    session = Session(database_url, "maintenance")
    await maintained(Maintenance(session, Objects.at(tmp_path), WorkerSettings()))
    assert (await read(db, batch)).finalizing_at is not None
    assert session._connection is None


async def test_it_is_idle_again_when_the_database_is_unreachable(
    db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()

    async def run_due(*_: object, on_found: object) -> None:
        calls.append(1)
        raise StoreUnavailable("away")

    monkeypatch.setattr(maintenance, "run_due", run_due)
    await maintained(Maintenance(db, Objects.at(tmp_path), WorkerSettings()))
    assert calls == [1]


async def test_it_deletes_delivered_events_after_the_time_in_its_settings(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    await sql(
        db,
        """
        INSERT INTO batchline.outbox (id, batch_id, type, delivered_at)
        VALUES (gen_random_uuid(), gen_random_uuid(), 'batch.completed', now() - interval '2 days')
        """,
    )
    for settings, left in ((WorkerSettings(), 1), (WorkerSettings(events_retention=86_400.0), 0)):
        await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now()")
        session = Session(database_url, "maintenance")
        await maintained(Maintenance(session, Objects.at(tmp_path), settings))
        assert await sql(db, "SELECT count(*) FROM batchline.outbox") == [(left,)]
