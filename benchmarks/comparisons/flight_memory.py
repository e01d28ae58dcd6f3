"""Memory of a worker with 2,000 requests in flight.

`batchline worker` runs a batch of 10,000 lines of 500 bytes. The upstream takes two seconds per request, so
2,000 are in flight all the time. The figure is the worker's peak (VmHWM) when the batch has ended.
"""

import asyncio
import time
from pathlib import Path

import psutil
from psycopg import sql

from batchline.store.session import Session
from benchmarks.bench import Bench
from benchmarks.comparisons.ingest import take_in
from benchmarks.contest import Figure, Series, below
from benchmarks.inputs import a_batch, write_jsonl
from benchmarks.processes import batchline, running, simulator
from benchmarks.server import execute

_UNENDED = sql.SQL("SELECT 1 FROM batchline.batches WHERE ended_at IS NULL")
_FILE = sql.SQL("SELECT id FROM batchline.files")


async def compare(bench: Bench) -> list[Figure]:
    concurrency = bench.size(2_000, quick=100)
    path = write_jsonl(bench.scratch / "flight.jsonl", lines=5 * concurrency)
    peaks = [await asyncio.to_thread(_peak, bench, path, concurrency) for _ in range(bench.rounds)]
    path.unlink()
    series = Series(f"worker, {concurrency:,} in flight", "MB", peaks)
    return [Figure("peak memory of a worker", series.median, "MB", below(300), [series])]


def _peak(bench: Bench, path: Path, concurrency: int) -> float:
    with bench.server.database() as url, simulator(bench.size(2_000, quick=100)) as upstream:
        asyncio.run(_submit(url, path, upstream))
        command = batchline(
            *("worker", "--database", url, "--data-dir", str(bench.scratch / "flight")),
            *("--concurrency", str(concurrency)),
        )
        with running(command) as process:
            while execute(url, _UNENDED):
                time.sleep(0.1)
            status = Path(f"/proc/{process.pid}/status")
            if not status.exists():
                return psutil.Process(process.pid).memory_info().rss / 1e6
            (kilobytes,) = [line.split()[1] for line in status.read_text().splitlines() if "VmHWM" in line]
    return int(kilobytes) * 1024 / 1e6


async def _submit(url: str, path: Path, upstream: str) -> None:
    await take_in(url, path)
    async with Session(url, "benchmark") as session:
        await a_batch(session, execute(url, _FILE)[0][0], upstream=upstream)
