"""Workers go on with actions on many batches: when they are notified, and after a worker was killed."""

import asyncio
import os
import signal
from pathlib import Path

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.governance import bulk_actions
from batchline.governance.access import Actor
from batchline.model import DEFAULT_TENANT, Role
from batchline.model.bulk_action import BatchFilter, BulkAction, BulkKind
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, on, read, sql, until
from tests.support.executors import Answering
from tests.support.governance import some_rules
from tests.support.processes import working
from tests.support.waiting import wait_for

# A server without keys: nobody can revoke them.
ANYBODY = Actor(DEFAULT_TENANT, "local", Role.ADMIN, alone=True)
RULES = some_rules()


async def started(db: Session) -> BulkAction:
    return await bulk_actions.start(db, ANYBODY, BulkKind.PRIORITY, BatchFilter(), 3)


async def test_a_worker_does_an_action_as_soon_as_it_is_started(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    made = [await a_batch(db, 1, upstream="http://nowhere") for _ in range(3)]
    worker = Worker(
        database_url,
        Answering(),
        Objects.at(tmp_path / "objects"),
        WorkerSettings(lease=30.0),
        Scope(keys=("none of these",)),
        WorkerOptions(continue_action=lambda session: bulk_actions.continue_one(RULES, session)),
    )

    async def ended() -> bool:
        return (await bulk_actions.find(db, ANYBODY, action.id)).ended_at is not None

    async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        action = await started(db)
        await until(ended)
        worker.stop()
    assert [(await read(db, batch)).priority for batch in made] == [3, 3, 3]


async def test_a_worker_without_rules_leaves_actions_to_others(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    await a_batch(db, 1)
    action = await started(db)
    settings = WorkerSettings(lease=30.0, drain=True)
    worker = Worker(
        database_url, Answering(), Objects.at(tmp_path / "objects"), settings, Scope(keys=("none of these",))
    )
    async with asyncio.timeout(300):
        await worker.run()
    assert (await bulk_actions.find(db, ANYBODY, action.id)).turns == 0


def test_an_action_goes_on_after_its_worker_was_killed(database_url: str, tmp_path: Path) -> None:
    """Each batch is done once, whenever the worker dies."""
    count = 40

    async def made(db: Session) -> BulkAction:
        for _ in range(count):
            # Nothing runs: the action alone is of interest.
            await a_batch(db, 1, reserved=True, upstream="http://nowhere")
        return await started(db)

    action = on(database_url, made)

    async def now(db: Session) -> BulkAction:
        return await bulk_actions.find(db, ANYBODY, action.id)

    with working(database_url, tmp_path / "first") as process:
        wait_for("some batches", lambda: on(database_url, now).done > 0)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert on(database_url, now).done > 0

    async def no_lease(db: Session) -> None:
        await sql(db, "UPDATE batchline.bulk_actions SET due_at = now() WHERE ended_at IS NULL")

    on(database_url, no_lease)
    with working(database_url, tmp_path / "second"):
        wait_for("the end of the action", lambda: on(database_url, now).ended_at is not None)
    ended = on(database_url, now)
    assert (ended.done, ended.failed_count) == (count, 0)

    async def acts(db: Session) -> int:
        ((changes,),) = await sql(
            db, "SELECT count(*) FROM batchline.audit_log WHERE action = 'batch.changed'"
        )
        return int(changes)

    assert on(database_url, acts) == count
