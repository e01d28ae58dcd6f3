"""The lines of a killed worker are run by another, on the oldest PostgreSQL too.

PostgreSQL before 17 refuses to subtract infinite times; a lease ended with '-infinity' stopped every poll.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchline.model import PollResult
from batchline.store import batches, migrate, spans
from batchline.store.session import Session
from tests.support.builders import ANYTHING, a_batch, a_database, a_worker, sql, take
from tests.support.external import postgresql_15
from tests.support.processes import (
    batchline,
    kill,
    read_lines,
    simulated,
    start,
    wait_for_executions,
    write_requests,
)


@pytest.fixture(scope="module")
def oldest() -> Iterator[str]:
    with postgresql_15() as url:
        yield url


@pytest.fixture
def database(oldest: str) -> Iterator[str]:
    with a_database(oldest) as url:
        migrate.up(url)
        yield url


async def expire_as_before(db: Session) -> None:
    """What a version before 0.2 left in the table."""
    await sql(db, "UPDATE batchline.workers SET lease_until = '-infinity'")


async def poll_after(database: str, *, legacy: bool, cancelled: bool = False) -> PollResult:
    async with Session(database, "test") as db:
        dead, batch = a_worker("dead"), await a_batch(db)
        await take(db, dead)
        if cancelled:
            await batches.close(db, batch.id, "cancel")
            await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 hour'")
        await (expire_as_before(db) if legacy else spans.expire(db, dead.id))
        return await spans.poll(db, a_worker("other").id, ANYTHING)


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_poll_finds_the_lines_of_a_worker_known_to_be_dead(database: str, legacy: bool) -> None:
    assert (await poll_after(database, legacy=legacy)).claimable


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_poll_finds_a_cancelled_batch_that_only_a_dead_worker_held(
    database: str, legacy: bool
) -> None:
    assert (await poll_after(database, legacy=legacy, cancelled=True)).maintenance_due


def test_a_run_that_was_killed_continues(database: str, tmp_path: Path) -> None:
    inputs, output = write_requests(tmp_path / "in.jsonl", 300), tmp_path / "out.jsonl"
    location = ("--database", database, "--data-dir", str(tmp_path / "data"))
    with simulated("--latency", "200") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "-o", str(output), "-c", "16", *location)
        first = start(*command)
        wait_for_executions(upstream, 50)
        kill(first, signal.SIGKILL)
        second = batchline(*command)
    assert second.returncode == 0, second.stderr
    assert [line["custom_id"] for line in read_lines(output)] == [f"q-{number}" for number in range(300)]
