"""A batch that cannot be finalized waits for its own back-off, and every other batch comes to its end."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from batchline.batches.finalize import finalize_one
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.model import Batch, ids
from batchline.store import batches, doctor, spans
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.upstreams.retry import Backoff
from batchline.worker import finalizer as finalizing
from batchline.worker.worker import Worker
from tests.support.builders import (
    a_batch,
    a_worker,
    end_finalize_backoff,
    kill,
    on,
    read,
    run_to_the_end,
    sql,
    until,
)
from tests.support.executors import Answering
from tests.support.processes import batchline, simulated, start, write_requests
from tests.support.serving import serving
from tests.support.waiting import wait_for

LIMIT = 120.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


class Gate(Objects):
    """A store that refuses or holds what it is told to, and counts what it is asked to write."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Objects.at(folder)._store)
        self.held: set[Batch] = set()
        self.let_go = asyncio.Event()
        self.refuses_all = False
        self.writes = 0

    def holds(self, some: Iterable[Batch]) -> None:
        self.held = set(some)

    async def write(self, key: str, blocks: AsyncIterable[bytes]) -> int:
        self.writes += 1
        if self.refuses_all:
            raise ObjectStoreUnavailable("PUT https://store/b?token=hunter2: connection refused")
        if any(batch.id.hex in key for batch in self.held):
            await self.let_go.wait()
        return await super().write(key, blocks)


async def finished(db: Session, count: int = 1, *, tenant: str = "default", lines: int = 3) -> list[Batch]:
    """Batches whose lines are all done."""
    worker = a_worker()
    made = [await a_batch(db, lines, tenant=tenant) for _ in range(count)]
    await run_to_the_end(db, worker)
    return [await read(db, batch) for batch in made]


async def damage(db: Session, batch: Batch) -> None:
    """Lose one of its results."""
    await sql(
        db,
        """
        DELETE FROM batchline.results
        WHERE line_no = 1 AND lane_id IN (SELECT id FROM batchline.lanes WHERE batch_id = %(batch)s)
        """,
        batch=batch.id,
    )


def unwritable(folder: Path, batch: Batch) -> Path:
    """Something lies where the folder of its files should be."""
    location = folder / "outputs" / batch.id.hex
    location.parent.mkdir(parents=True, exist_ok=True)
    location.touch()
    return location


async def have_ended(db: Session, some: Iterable[Batch]) -> None:
    for batch in some:

        async def has_ended(batch: Batch = batch) -> bool:
            return (await read(db, batch)).ended_at is not None

        await until(has_ended)


async def has_failed(db: Session, batch: Batch, times: int = 1) -> Batch:
    async def fact() -> bool:
        return (await read(db, batch)).finalize_failures >= times

    await until(fact)
    return await read(db, batch)


@asynccontextmanager
async def a_running_worker(url: str, objects: Objects) -> AsyncIterator[Worker]:
    """A worker that is stopped gracefully, which must not take for ever."""
    worker = Worker(url, Answering(), objects, WorkerSettings(), Scope())
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(LIMIT):
            yield worker
            worker.stop()
            await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# --- One fails, the others end -----------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["damaged results", "an unwritable object"])
async def test_batches_of_all_tenants_end_beside_one_that_cannot(
    database_url: str, db: Session, folder: Path, cause: str
) -> None:
    (bad,) = await finished(db, tenant="a")
    others = await finished(db, 3, tenant="a") + await finished(db, 3, tenant="b")
    if cause == "damaged results":
        await damage(db, bad)
    else:
        unwritable(folder, bad)
    async with a_running_worker(database_url, Objects.at(folder)):
        await have_ended(db, others)
        bad = await has_failed(db, bad, times=2)
    assert bad.ended_at is None
    assert bad.finalize_error
    expected = "should have 3 output lines, but has 2" if cause == "damaged results" else bad.id.hex
    assert expected in bad.finalize_error


async def test_twenty_small_batches_end_while_one_is_being_written(
    database_url: str, db: Session, folder: Path
) -> None:
    first, *others = await finished(db, 20)
    store = Gate(folder)
    store.holds([first])
    async with a_running_worker(database_url, store) as worker:
        await have_ended(db, others)
        assert (await read(db, first)).ended_at is None
        assert worker.finalizer.holding, "the lease of the one that is left must be renewed"
        store.let_go.set()
        await have_ended(db, [first])


async def test_large_batches_leave_a_session_to_the_small_ones(
    database_url: str, db: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalizing, "_SMALL", 3)
    large = await finished(db, 6, lines=4)
    store = Gate(folder)
    store.holds(large)
    async with a_running_worker(database_url, store) as worker:

        async def three_are_held() -> bool:
            return store.writes == 3

        await until(three_are_held)
        small = await finished(db, 5, lines=3)
        worker.finalizer.wake()
        await have_ended(db, small)
        assert store.writes == 3 + 5
        store.let_go.set()
        await have_ended(db, large)


async def test_tenants_take_turns(db: Session) -> None:
    await finished(db, 5, tenant="a")
    await finished(db, 1, tenant="b")
    await finished(db, 2, tenant="c")
    worker, taken = a_worker(), list[Batch]()
    while batch := await batches.claim_finalizing(
        db,
        worker,
        under_way=[each.id for each in taken],
        after_tenant=taken[-1].tenant if taken else "",
    ):
        taken.append(batch)
    assert "".join(batch.tenant for batch in taken) == "abcacaaa"


# --- The back-off ------------------------------------------------------------------------------------------


async def test_a_failure_is_kept_with_the_batch_and_puts_it_off_longer_each_time(db: Session) -> None:
    (batch,) = await finished(db)
    worker = a_worker()
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 day'")
    for failures, longest in enumerate((1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300), start=1):
        assert await batches.claim_finalizing(db, worker)
        delay = await batches.put_off_finalizing(db, worker.id, batch.id, "no room")
        assert delay is not None
        assert 0.75 * longest <= delay <= longest
        assert (await read(db, batch)).finalize_failures == failures
        if longest >= 64:
            assert await batches.claim_finalizing(db, worker) is None, "too soon"
            seen = await spans.poll(db, worker.id, Scope())
            assert not seen.finalizable
            assert seen.next_due is not None
            assert 0 < seen.next_due <= delay
        await end_finalize_backoff(db)
        assert (await spans.poll(db, worker.id, Scope())).finalizable


async def test_a_batch_ends_by_itself_once_the_cause_is_gone(
    database_url: str, db: Session, folder: Path
) -> None:
    (batch,) = await finished(db)
    blocker = unwritable(folder, batch)
    async with a_running_worker(database_url, Objects.at(folder)):
        failed = await has_failed(db, batch, times=2)
        assert failed.finalize_after is not None
        blocker.unlink()
        await have_ended(db, [batch])
    ended = await read(db, batch)
    assert (ended.finalize_failures, ended.finalize_after, ended.finalize_error) == (0, None, None)


async def test_a_batch_that_cannot_even_be_put_off_is_left_alone_for_a_while(
    database_url: str, db: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bad,) = await finished(db, tenant="a")
    unwritable(folder, bad)
    refusals = 0

    async def refused(*_: object) -> None:
        nonlocal refusals
        refusals += 1
        raise LookupError("no such thing")

    monkeypatch.setattr(batches, "put_off_finalizing", refused)
    monkeypatch.setattr(finalizing, "_LEFT_ALONE", 0.5)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with a_running_worker(database_url, Objects.at(folder)):
        # Others end meanwhile, each of which wakes the finalizer.
        for tenant in ("a", "b", "c"):
            await have_ended(db, await finished(db, 2, tenant=tenant))
        before = refusals

        async def tried_again() -> bool:
            return refusals > before

        await until(tried_again)
    assert refusals <= 1 + (loop.time() - began) / 0.5, "it is not tried as fast as the machine can"


async def test_a_worker_wakes_up_for_a_batch_that_another_one_failed_to_finalize(
    database_url: str, db: Session, folder: Path
) -> None:
    (batch,) = await finished(db)
    blocker = unwritable(folder, batch)
    with pytest.raises(ObjectStoreUnavailable):
        await finalize_one(db, Objects.at(folder), a_worker("another"))
    blocker.unlink()
    # Nothing else would make it look again during this test.
    settings = WorkerSettings(poll_min=3600.0, poll_max=3600.0)
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 day'")
    await sql(db, "UPDATE batchline.batches SET finalize_after = now() + interval '2 seconds'")
    worker = Worker(database_url, Answering(), Objects.at(folder), settings, Scope())
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(LIMIT):
        await have_ended(db, [batch])
        worker.stop()
        await running


async def test_an_unreachable_object_store_is_not_tried_for_every_batch(
    database_url: str, db: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time is left out: it is left alone for an hour, which then passes in a moment.
    monkeypatch.setattr(finalizing._Outage, "_BACKOFF", Backoff(minimum=7200.0, maximum=7200.0))
    waiting = await finished(db, 30)
    store = Gate(folder)
    store.refuses_all = True
    async with a_running_worker(database_url, store) as worker:

        async def rests() -> bool:
            return worker.finalizer.waiting and not worker.finalizer.holding

        await until(rests)
        requested = store.writes
        assert requested <= 2 + 4, "two may be of one bad batch each; then those that are under way"
        for _ in range(20):
            worker.finalizer.wake()
            await asyncio.sleep(0)
        assert not worker.finalizer.holding, "it is left alone for a while, whoever calls"
        assert store.writes == requested
        store.refuses_all = False
        timer = worker.finalizer._timers[None]
        assert timer.when() - asyncio.get_running_loop().time() > 3000
        timer._run()
        timer.cancel()
        await have_ended(db, waiting)


async def test_a_drained_worker_waits_for_its_own_failure_and_leaves_when_that_takes_long(
    database_url: str, db: Session, folder: Path
) -> None:
    async def drain() -> None:
        settings = WorkerSettings(drain=True)
        async with asyncio.timeout(LIMIT):
            await Worker(database_url, Answering(), Objects.at(folder), settings, Scope()).run()

    (batch,) = await finished(db)
    blocker = unwritable(folder, batch)
    draining = asyncio.create_task(drain())
    await has_failed(db, batch)
    blocker.unlink()
    await draining
    assert (await read(db, batch)).ended_at is not None

    (hopeless,) = await finished(db)
    await damage(db, hopeless)
    await sql(db, "UPDATE batchline.batches SET finalize_failures = 20 WHERE id = %(id)s", id=hopeless.id)
    await drain()
    assert (await read(db, hopeless)).finalize_failures == 21


# --- Killed ------------------------------------------------------------------------------------------------

KILLED = """
import asyncio, sys
from pathlib import Path
from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.store.spans import Scope
from batchline.worker.worker import Worker
from tests.support.executors import Answering

url, folder = sys.argv[1:]

class Stuck(Objects):
    writing = 0

    async def write(self, key, blocks):
        self.writing += 1
        if self.writing == 4:
            print("writing", flush=True)
        return await super().write(key, self.stuck(blocks))

    async def stuck(self, blocks):
        async for block in blocks:
            yield block
            await asyncio.Event().wait()

async def main():
    objects, settings = Stuck(Objects.at(folder)._store), WorkerSettings(lease=600.0)
    await Worker(url, Answering(), objects, settings, Scope()).run()

asyncio.run(main())
"""


async def test_a_worker_that_is_killed_in_the_middle_of_four_costs_its_lease(
    database_url: str, db: Session, folder: Path
) -> None:
    waiting = await finished(db, 6)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, database_url, str(folder), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT):
            assert await process.stdout.readline() == b"writing\n"
    finally:
        process.kill()
        await process.wait()
    ((taken,),) = await sql(db, "SELECT count(*) FROM batchline.batches WHERE finalizer IS NOT NULL")
    assert taken == 4
    await sql(db, "UPDATE batchline.workers SET lease_until = now() - interval '1 second'")
    async with a_running_worker(database_url, Objects.at(folder)):
        await have_ended(db, waiting)
    assert await sql(db, "SELECT count(*), count(DISTINCT batch_id) FROM batchline.outbox") == [(6, 6)]


async def test_a_finalizer_that_lost_its_lease_puts_nothing_off(db: Session, folder: Path) -> None:
    (batch,) = await finished(db)
    slow, quick = a_worker("slow"), a_worker("quick")
    assert await batches.claim_finalizing(db, slow)
    await kill(db, slow)
    assert await batches.claim_finalizing(db, quick)
    assert await batches.put_off_finalizing(db, slow.id, batch.id, "too late") is None
    assert await finalize_one(db, Objects.at(folder), quick, batch.id) is not None


# --- Who is told -------------------------------------------------------------------------------------------


def test_operators_see_why_and_tenants_do_not(database_url: str, tmp_path: Path) -> None:
    async def fail(db: Session) -> Batch:
        (batch,) = await finished(db)
        store = Gate(tmp_path / "data" / "objects")
        store.refuses_all = True
        with pytest.raises(ObjectStoreUnavailable):
            await finalize_one(db, store, a_worker())
        (note,) = (await doctor.examine(db)).notes
        assert note.check == "finalize_failed"
        assert "connection refused" in note.message
        return await read(db, batch)

    batch = on(database_url, fail)
    name = ids.show(ids.BATCH, batch.id)
    assert batch.finalize_error is not None
    assert "hunter2" not in batch.finalize_error
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    for command in (("status", name), ("list",), ("list", "--json"), ("status", name, "--json")):
        assert "connection refused" in batchline(*command, *location).stdout
    with serving(database_url, tmp_path) as server, server.http(server.key()) as http:
        for path in (f"/v1/batches/{name}", "/v1/batches"):
            displayed = http.get(path)
            assert displayed.status_code == 200
            assert name in displayed.text
            assert "connection refused" not in displayed.text


def failures(database: str) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT max(finalize_failures) FROM batchline.batches").fetchone()
    return (row and row[0]) or 0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_that_cannot_end_says_why_and_can_be_run_again(
    database_url: str, tmp_path: Path, as_json: bool
) -> None:
    blocker = tmp_path / "data" / "objects" / "outputs"
    blocker.parent.mkdir(parents=True)
    blocker.touch()
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    with simulated() as upstream:
        options = ("--json",) if as_json else ()
        command = ("run", str(inputs), "--upstream", upstream.url, *location, *options)
        process = start(*command)
        try:
            wait_for("a failure", lambda: failures(database_url))
            with psycopg.connect(database_url) as connection:
                connection.execute("UPDATE batchline.batches SET finalize_failures = 5")
            said, complained = process.communicate(timeout=LIMIT)
        finally:
            process.send_signal(signal.SIGKILL)
        assert process.returncode == 1
        assert "cannot write the batch's files" in complained
        assert "outputs" in complained
        assert not as_json or "cannot write the batch's files" in error_of(said)
        blocker.unlink()
        assert batchline(*command).returncode == 0, "the same command goes on, and does not wait"
        assert upstream.stats()["executed"] == 3


def error_of(said: str) -> str:
    document: dict[str, Any] = json.loads(said)
    return str(document["error"]["message"])
