"""The claim while a provider has many tasks: `python -m benchmarks.parked [TASKS]`.

Measures claims of 500 lines on PostgreSQL with its default settings: with no task, and with TASKS (100,000)
parked tasks of the same upstream, which are not due, then due; each without and with a limit of tasks. Claims
of fresh lines are rolled back, so that all of them find the same; those of due tasks are committed, and each
takes the next. Then the status of the batch is read: with these tasks, and with as many retries, each in a
span of its own. Prints the median and the 99th percentile in milliseconds.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from uuid import UUID

import psycopg

from batchline.embedded import EmbeddedPostgres
from batchline.model.ids import new_id
from batchline.store import batches, migrate
from batchline.store.session import Session, run
from batchline.store.spans import Scope
from batchline.store.statements import statement

_CLAIM = 500
_ROUNDS = 60
_KEY = "http://provider"
_LANE = """
WITH batch AS (
    INSERT INTO batchline.batches
        (id, tenant, file_id, endpoint, completion_window, settings, total, in_progress_at, expires_at)
    VALUES (gen_random_uuid(), 't', gen_random_uuid(), '/v1/responses', '24h', '{}', 2000000, now(),
            now() + interval '1 day')
    RETURNING *
)
INSERT INTO batchline.lanes (batch_id, tenant, key, deadline, file_no, lane_no, model, url, total, next)
SELECT id, tenant, %s, expires_at, 1, 0, 'model', endpoint, total, 1000000 FROM batch
RETURNING batch_id
"""
_PARK = """
INSERT INTO batchline.spans (lane_id, batch_id, outstanding, upstream, task_id, available_at)
SELECT n.id, n.batch_id, int4multirange(int4range(g, g + 1)), n.key, 'task-' || g, now() + interval '1 hour'
FROM batchline.lanes AS n
CROSS JOIN generate_series(0, %s - 1) AS g
"""
_DUE = "UPDATE batchline.spans SET available_at = now() - interval '1 minute'"
_RETRIES = """
UPDATE batchline.spans
SET upstream = NULL, task_id = NULL, worker_id = NULL, attempt = 2, available_at = now() + interval '1 hour'
"""


class _Undo(Exception):
    pass


async def _claims(session: Session, max_tasks: int | None, keep: bool) -> tuple[int, list[float]]:
    """How many lines a claim takes, and how long each of them takes, in milliseconds."""
    params = {
        **Scope((_KEY,)).params(),
        "worker": new_id(),
        "name": "bench",
        "lease": timedelta(minutes=1),
        "limit": _CLAIM,
        "max_tasks": max_tasks,
    }
    took, lines = [], 0
    for _ in range(_ROUNDS):
        try:
            async with session.transaction() as connection:
                begun = perf_counter()
                rows = await run(connection, statement("claim"), params)
                took.append(1000 * (perf_counter() - begun))
                lines = sum(row[5] for row in rows)
                if not keep:
                    raise _Undo
        except _Undo:
            continue
    return lines, took


async def _measure(url: str, tasks: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(_LANE, (_KEY,)).fetchone()
        assert row is not None
        async with Session(url, "bench") as session:
            await _report(session, "no tasks", tasks)
            connection.execute(_PARK, (tasks,))
            connection.execute("VACUUM ANALYZE batchline.spans")
            await _report(session, f"{tasks:,} tasks, not due", tasks)
            connection.execute(_DUE)
            connection.execute("VACUUM ANALYZE batchline.spans")
            await _report(session, f"{tasks:,} tasks, due", tasks, keep=True)
            await _report_status(session, row[0], f"{tasks:,} tasks")
            connection.execute(_RETRIES)
            connection.execute("VACUUM ANALYZE batchline.spans")
            await _report_status(session, row[0], f"{tasks:,} retries")


async def _report(session: Session, what: str, tasks: int, *, keep: bool = False) -> None:
    for max_tasks in (None, 10_000, 2 * tasks):
        lines, took = await _claims(session, max_tasks, keep)
        limit = "no limit" if max_tasks is None else f"limit {max_tasks:,}"
        median, worst = _percentiles(took)
        print(f"{what:26} {limit:14} {lines:4} lines   median {median:6.2f} ms   99 % {worst:6.2f} ms")


async def _report_status(session: Session, batch_id: UUID, what: str) -> None:
    took = []
    for _ in range(_ROUNDS):
        begun = perf_counter()
        await batches.get(session, batch_id)
        took.append(1000 * (perf_counter() - begun))
    median, worst = _percentiles(took)
    print(f"{what:26} {'status':25}   median {median:6.2f} ms   99 % {worst:6.2f} ms")


def _percentiles(took: Sequence[float]) -> tuple[float, float]:
    parts = quantiles(took, n=100)
    return parts[49], parts[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="?", type=int, default=100_000)
    tasks = parser.parse_args().tasks
    with (
        tempfile.TemporaryDirectory(prefix="batchline-bench-") as folder,
        EmbeddedPostgres.start(Path(folder)) as server,
    ):
        migrate.up(server.url)
        asyncio.run(_measure(server.url, tasks))


if __name__ == "__main__":
    main()
