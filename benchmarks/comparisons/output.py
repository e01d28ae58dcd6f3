"""Writing the output file, against a bare COPY of the same rows that discards them.

`batches.finalize.finalize_one` runs on a batch with all its results. The time is from taking the batch until
both files are in the object store, a folder on the same disk. By then the output is in input order and on
disk (fsync). The bare COPY sends the column in the order of the table to psycopg, which counts the bytes.
"""

from pathlib import Path
from time import perf_counter
from uuid import UUID

import psycopg
from psycopg import sql

from batchline.batches.finalize import finalize_one
from batchline.files.objects import Objects
from batchline.model.ids import new_id
from batchline.store.session import Session
from batchline.store.spans import WorkerId
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_least, ratio
from benchmarks.drain import LEASE
from benchmarks.inputs import OUTPUT, a_batch, add_file
from benchmarks.server import execute, vacuum


async def compare(bench: Bench) -> list[Figure]:
    results = bench.size(1_000_000, quick=20_000)
    folder = bench.scratch / "objects"
    with bench.server.database() as url:
        async with Session(url, "benchmark") as session:
            batch = await a_batch(session, add_file(url, results))
            _fill_results(url, batch.id)
            vacuum(url)

            async def upload() -> float:
                _reopen(url, batch.id, folder)
                bench.server.settle_down()
                watch = _Watch()
                worker = WorkerId(new_id(), "benchmark", LEASE)
                await finalize_one(session, Objects.at(folder), worker, batch.id, watch)
                return _size(folder) / 1e6 / watch.seconds

            async def throw_away() -> float:
                bench.server.settle_down()
                return _copied(url)

            ours, bare = await alternate(
                bench.rounds,
                Contestant("Batchline", "MB/s", upload),
                Contestant("bare COPY", "MB/s", throw_away),
            )
    return [ratio(f"bytes per second of {results:,} results", ours, bare, at_least(0.6))]


class _Watch:
    """Measures the time between two points of the finalizer."""

    async def reached(self, point: str) -> None:
        match point:
            case "claimed":
                self._begun = perf_counter()
            case "uploaded":
                self.seconds = perf_counter() - self._begun


def _fill_results(url: str, batch_id: UUID) -> None:
    """Complete all items of the batch, so that it waits for finalizing."""
    execute(
        url,
        sql.SQL("""
            WITH lane AS (
                UPDATE batchline.lanes SET next = total, drained = true WHERE batch_id = %(batch)s
                    RETURNING id, total
            ),
            batch AS (
                UPDATE batchline.batches SET completed = total WHERE id = %(batch)s
            )
            INSERT INTO batchline.results
                (lane_id, line_no, ordinal, outcome, attempt, input_tokens, output_tokens, output)
            SELECT lane.id, g + 1, g, 'completed', 1, 70, 6, %(output)s
            FROM lane CROSS JOIN generate_series(0, lane.total - 1) AS g
        """),
        {"batch": batch_id, "output": OUTPUT.decode()},
    )


def _reopen(url: str, batch_id: UUID, folder: Path) -> None:
    """Undo the last finalizing."""
    for path in _objects(folder):
        path.unlink()
    execute(
        url,
        sql.SQL("""
            UPDATE batchline.batches
            SET finalizing_at = now(), completed_at = NULL, finalizer = NULL, output_file_id = NULL
            WHERE id = %(batch)s
        """),
        {"batch": batch_id},
    )


def _objects(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in _objects(folder))


def _copied(url: str) -> float:
    """Copy the outputs, and return MB per second."""
    query = "COPY batchline.results (output) TO STDOUT"
    begun, size = perf_counter(), 0
    with psycopg.connect(url) as connection, connection.cursor() as cursor, cursor.copy(query) as copy:
        for row in copy:
            size += len(row)
    return size / 1e6 / (perf_counter() - begun)
