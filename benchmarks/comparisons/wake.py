"""Time until an idle worker sends the first request of a new batch, against the minimum for any process.

From just before this process creates a batch of one line to the first byte of its request at the upstream,
which is also in this process. `batchline worker` is idle before each, and opens a new connection to the
upstream. The minimum is from just before a bare NOTIFY to the end of one committed UPDATE of one row, by
another process that waited for it. Each has a separate database on the same server. Before each turn all are
idle for a tenth of a second: back to back, processors and caches are warm, and everything takes half as long.
"""

import asyncio
import subprocess
import time
from time import perf_counter
from uuid import UUID

import psycopg
from psycopg import sql

from batchline.store.session import Session
from benchmarks.bare import waker
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, below, ratio
from benchmarks.doorbell import Doorbell
from benchmarks.inputs import a_batch, fill_file
from benchmarks.processes import module, running, worker
from benchmarks.server import execute

_WARM_UPS = 5
_UNENDED = "SELECT FROM batchline.batches WHERE id = %(batch)s AND ended_at IS NULL"
# Seconds after the end of a batch until the worker and all other processes are idle.
_IDLE_AFTER = 0.1


async def compare(bench: Bench) -> list[Figure]:
    with bench.server.database() as url, bench.server.database(migrated=False) as bare_url:
        file_id = fill_file(url, 1)
        execute(bare_url, sql.SQL(waker.SCHEMA))
        with (
            Doorbell() as doorbell,
            worker(url, bench.scratch / "wake"),
            running(module("benchmarks.bare.waker", bare_url)) as process,
            psycopg.connect(bare_url, autocommit=True) as connection,
        ):
            _next_line(process)
            async with Session(url, "benchmark") as session:

                async def wake_worker() -> float:
                    begun = perf_counter()
                    batch = await a_batch(session, file_id, upstream=doorbell.url)
                    elapsed = doorbell.rung() - begun
                    _wait_until_idle(url, batch.id)
                    return 1000 * elapsed

                async def wake_bare() -> float:
                    begun = perf_counter()
                    connection.execute(f"NOTIFY {waker.CHANNEL}")
                    elapsed = float(_next_line(process)) - begun
                    await asyncio.sleep(_IDLE_AFTER)
                    return 1000 * elapsed

                # The first warm-up also waits for the worker to start.
                for _ in range(_WARM_UPS):
                    await wake_worker()
                ours, bare = await alternate(
                    bench.size(200, quick=10),
                    Contestant("Batchline", "ms", wake_worker),
                    Contestant("bare NOTIFY and claim", "ms", wake_bare),
                )
    return [
        ratio("time from submission to the first byte, median", ours, bare),
        Figure("the same, 99th percentile", ours.percentile(99), "ms", below(20), [ours]),
    ]


def _wait_until_idle(url: str, batch_id: UUID) -> None:
    """Wait until the worker has ended the batch, and a moment longer."""
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(_UNENDED, {"batch": batch_id}).fetchone():
            time.sleep(0.02)
    time.sleep(_IDLE_AFTER)


def _next_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()
