"""The heartbeat alone: silent while nothing is held. What it renews is tested in test_lease.py."""

import asyncio
from collections.abc import Sequence

import pytest

from batchline.config.settings import WorkerSettings
from batchline.model import KeyLoad
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import WorkerId
from batchline.worker.heartbeat import Heartbeat
from batchline.worker.lease import Lease

PATIENCE = 120.0


@pytest.mark.parametrize("holding", [True, False])
async def test_it_renews_the_lease_while_something_is_held_and_releases_it_otherwise(
    monkeypatch: pytest.MonkeyPatch, holding: bool
) -> None:
    beats, done = list[str](), asyncio.Event()

    def beat(kind: str) -> None:
        beats.append(kind)
        if len(beats) == 3:
            done.set()

    async def renew(session: Session, worker: WorkerId, loads: Sequence[KeyLoad]) -> None:
        beat("renewed")

    monkeypatch.setattr(spans, "renew", renew)
    settings = WorkerSettings(lease=0.03)
    lease = Lease(WorkerSettings(), lambda: 0.0, lambda: 0)
    monkeypatch.setattr(lease, "release", lambda: beat("released"))
    heartbeat = Heartbeat(Session("", "renew"), lease, settings, lambda: holding)
    running = asyncio.create_task(heartbeat.run())
    async with asyncio.timeout(PATIENCE):
        await done.wait()
    running.cancel()
    assert set(beats) == {"renewed" if holding else "released"}
    assert heartbeat.idle.is_set()


async def test_a_wake_up_renews_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = asyncio.Event()

    async def renew(session: Session, worker: WorkerId, loads: Sequence[KeyLoad]) -> None:
        renewed.set()

    monkeypatch.setattr(spans, "renew", renew)
    settings = WorkerSettings(lease=3600.0)
    lease = Lease(settings, lambda: 0.0, lambda: 0)
    heartbeat = Heartbeat(Session("", "renew"), lease, settings, lambda: True)
    running = asyncio.create_task(heartbeat.run())
    heartbeat.wake()
    assert heartbeat.idle.is_set()
    async with asyncio.timeout(PATIENCE):
        await renewed.wait()
    running.cancel()
