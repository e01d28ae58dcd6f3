"""A worker that starts ends the leases of dead processes of its machine, and of no others."""

import subprocess
import sys
from datetime import timedelta

import psutil
import pytest

from batchline.model.ids import new_id
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import WorkerId
from batchline.worker.local_workers import expire_dead_local_workers, name_of_this_process
from tests.support.builders import a_batch, a_worker, take


def a_dead_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


async def worker_named(db: Session, name: str) -> WorkerId:
    """A worker of this name that holds a line."""
    worker = WorkerId(new_id(), name, timedelta(seconds=60))
    assert await take(db, worker, 1)
    return worker


async def test_only_the_lease_of_a_dead_process_of_this_machine_ends(db: Session) -> None:
    await a_batch(db, 10)
    alive = name_of_this_process()
    host, _, rest = alive.partition(":")
    _, _, machine = rest.partition("@")
    pid = a_dead_process()
    await worker_named(db, f"{host}:{pid}@{machine}")
    living = [
        await worker_named(db, alive),
        await worker_named(db, f"{host}:{pid}@elsewhere/1"),
        await worker_named(db, "a name of another form"),
    ]
    assert await expire_dead_local_workers(db) == 1
    assert {worker_id for worker_id, _ in await spans.live_workers(db)} == {each.id for each in living}
    items = await take(db, a_worker(), 10)
    assert len(items) == 7, "the fresh lines and the dead worker's"
    assert await expire_dead_local_workers(db) == 0


async def test_a_live_process_stays_alive_when_the_clock_is_set(
    db: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psutil's time of a process's start moves with the clock."""
    await a_batch(db, 1)
    await worker_named(db, name_of_this_process())
    created = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: created(process) + 1.0)
    assert await expire_dead_local_workers(db) == 0


async def test_a_process_with_the_number_of_a_dead_one_is_another_process(db: Session) -> None:
    await a_batch(db, 1)
    name, _, _ = name_of_this_process().rpartition("/")
    await worker_named(db, f"{name}/1")
    assert await expire_dead_local_workers(db) == 1
