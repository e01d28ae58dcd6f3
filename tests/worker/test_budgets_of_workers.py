"""Workers with budgets, as processes and over HTTP. Slower than a budget is always allowed, so these tests
look only at what must take time."""

import asyncio
from pathlib import Path

import psycopg

from batchline.config.settings import WorkerSettings
from batchline.executors.http import HttpExecutor
from batchline.files.objects import Objects
from batchline.model import Batch
from batchline.model.rate_budget import BudgetScope, RateBudget
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.rate_budgets import RateBudgets
from batchline.worker.producer import ProducerScope
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, read
from tests.support.processes import batchline, simulated, working, write_requests
from tests.support.waiting import wait_for


def seconds_of(database_url: str) -> float:
    """From the start to the end of the only batch; 0: it has not ended."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT extract(epoch FROM finalizing_at - created_at)::float8 FROM batchline.batches"
        ).fetchone()
    assert row is not None
    return row[0] or 0.0


def test_run_keeps_to_requests_per_minute(tmp_path: Path, database_url: str) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 40)
    with simulated() as upstream:
        done = batchline(
            *("run", str(inputs), "--upstream", upstream.url, "--rpm", "600"),
            *("--database", database_url, "--data-dir", str(tmp_path / "data")),
        )
    assert done.returncode == 0, done.stderr
    # Ten per second, and at most one second's worth at once.
    assert seconds_of(database_url) >= (40 - 10) / 10


def test_two_workers_share_one_budget(tmp_path: Path, database_url: str) -> None:
    inputs, data = write_requests(tmp_path / "in.jsonl", 100), tmp_path / "data"
    location = ("--database", database_url, "--data-dir", str(data))
    with simulated() as upstream:
        config = tmp_path / "batchline.toml"
        config.write_text(
            f'[[upstreams]]\nname = "sim"\nbase_url = "{upstream.url}"\nrequests_per_minute = 1200\n'
        )
        with (
            working(database_url, data, "--config", str(config)),
            working(database_url, data, "--config", str(config)),
        ):
            done = batchline("submit", str(inputs), "--upstream", upstream.url, *location)
            assert done.returncode == 0, done.stderr
            wait_for("the end of the batch", lambda: seconds_of(database_url) > 0)
    assert seconds_of(database_url) >= (100 - 20) / 20


def test_contradictory_options_are_refused(tmp_path: Path) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    done = batchline("run", str(inputs), "--upstream", "http://a", "--rpm", "60", "--tpm", "59")
    assert done.returncode == 2
    assert "--tpm 59 is less than --rpm 60" in done.stderr


async def test_a_tenant_that_has_used_up_its_budget_leaves_the_slots_to_others(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    with simulated() as upstream:
        url = upstream.url
        slow = await a_batch(db, {"m": 100}, tenant="slow", upstream=url)
        quick = await a_batch(db, {"m": 100}, tenant="quick", upstream=url)
        budgets = RateBudgets([RateBudget(BudgetScope(tenant="slow"), requests=1)])
        upstreams, ends = Upstreams(budgets=budgets), asyncio.Queue[Batch]()
        executor = HttpExecutor(upstreams)
        worker = Worker(
            database_url,
            executor,
            Objects.at(tmp_path / "objects"),
            WorkerSettings(),
            Scope(),
            WorkerOptions(
                producers=[ProducerScope(Scope(), 4, url)], upstreams=upstreams, on_ended=ends.put_nowait
            ),
        )
        working = asyncio.create_task(worker.run())
        assert (await ends.get()).id == quick.id
        worker.stop()
        await working
        await executor.close()
        # Its lines are given back when the worker stops.
        assert (await read(db, slow.id)).counts.in_progress == 0
        assert (await read(db, slow.id)).ended_at is None
