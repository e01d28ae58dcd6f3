"""Every service of a worker becomes idle again after a wake-up, so a stop waits for none in vain."""

import asyncio
from pathlib import Path

import pytest

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.store.spans import Scope
from batchline.worker.service import Service
from batchline.worker.worker import Worker
from tests.support.executors import Answering
from tests.support.waiting import eventually

PATIENCE = 120.0
SERVICES = (
    "bulk runner",
    "chunk collectors",
    "claimer",
    "dispatcher",
    "escalation",
    "finalizer",
    "health watch",
    "heartbeat",
    "hooks",
    "listener",
    "load watch",
    "maintenance",
    "outbox",
    "poller",
    "rate leaser",
    "reconciler",
    "schedules",
    "settler",
    "spending",
    "task canceller",
)


def services_of(worker: Worker) -> dict[str, Service]:
    """Those that the worker has started."""
    return {service.name: service for service in worker._supervisor._tasks}


@pytest.mark.parametrize("name", SERVICES)
async def test_a_service_without_work_is_idle_after_a_wake_up_and_stops(
    database_url: str, tmp_path: Path, name: str
) -> None:
    worker = Worker(database_url, Answering(), Objects.at(tmp_path), WorkerSettings(), Scope())
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(PATIENCE):
        await eventually("all services", lambda: sorted(services_of(worker)) == sorted(SERVICES))
        service = services_of(worker)[name]
        await service.idle.wait()
        service.wake()
        await service.idle.wait()
        worker.stop()
        await running
