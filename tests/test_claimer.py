"""The worker's own losses: what it claimed without knowing, what it may no longer send."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from batchline.config import WorkerSettings
from batchline.engine.objects import Objects
from batchline.engine.output import answered_line
from batchline.executors.executor import Fence
from batchline.model import Claim, Completed, Item, Verdict
from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.builders import a_batch, on, read, sql

SETTINGS = WorkerSettings(concurrency=4, drain=True, lease=5.0)


class Answering:
    """An executor that answers at once, and remembers what it was given."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    async def run(self, item: Item) -> Verdict:
        self.sent.append(item.line_no)
        return Completed(item, 200, answered_line(item, 200, "r", b"{}"))

    def fenced_by(self, fence: Fence) -> None:
        return

    def wind_down(self) -> None:
        return

    async def close(self) -> None:
        return


def test_spans_whose_claim_got_lost_on_the_way_are_found_again(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is committed, but its answer or its lines never arrive: the heartbeat would keep the spans
    alive for ever, and nobody would run them."""
    true_fetch, failures = spans.fetch, iter([True])

    async def fetch(session: Session, worker_id: UUID, claims: Sequence[Claim]) -> list[Item]:
        if next(failures, False):
            raise StoreUnavailable("the connection was cut")
        return await true_fetch(session, worker_id, claims)

    monkeypatch.setattr(spans, "fetch", fetch)
    executor = Answering()

    async def scenario(db: Session) -> None:
        batch = await a_batch(db, {"m": 30})
        worker = Worker(database_url, executor, Objects.at(tmp_path / "objects"), SETTINGS, Scope())
        async with asyncio.timeout(60):
            await worker.run()
        assert (await read(db, batch)).completed == 30
        assert await sql(db, "SELECT count(*) FROM spans") == [(0,)]

    on(database_url, scenario)
    assert sorted(executor.sent) == list(range(1, 31)), "each line is sent once"


def test_a_worker_whose_lease_is_over_sends_nothing_and_goes_on_under_a_new_name(
    database_url: str, tmp_path: Path
) -> None:
    """Its own clock jumps past the lease while items wait to be sent, as that of a frozen process does."""
    executor, jump = Answering(), [0.0]
    workers: list[Worker] = []

    class Jumping(Answering):
        async def run(self, item: Item) -> Verdict:
            if len(workers[0].crews[0].buffer) > 3:
                jump[0] = 100.0
            return await executor.run(item)

    async def scenario(db: Session) -> None:
        loop = asyncio.get_running_loop()
        batch = await a_batch(db, {"m": 300})
        worker = Worker(
            database_url,
            Jumping(),
            Objects.at(tmp_path / "objects"),
            WorkerSettings(concurrency=1, lease=1.0),
            Scope(),
            on_ended=lambda _: workers[0].stop(),
            clock=lambda: loop.time() + jump[0],
        )
        workers.append(worker)
        first_name = worker.lease.worker.id
        async with asyncio.timeout(60):
            await worker.run()
        assert worker.lease.worker.id != first_name
        assert (await read(db, batch)).completed == 300

    on(database_url, scenario)
    assert sorted(executor.sent) == list(range(1, 301)), "what was given up is sent once, by its new holder"
