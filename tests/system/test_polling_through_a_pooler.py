"""Without notifications, a worker finds a second batch soon after the first: then it polls often.

PgBouncer in transaction mode passes no notifications on, so the worker has only its polls.
"""

import asyncio
from pathlib import Path

from batchline.model import Batch
from batchline.store.session import Session
from tests.support.builders import a_batch, read, sql, until
from tests.support.pgbouncer import pooled
from tests.support.processes import simulated, working

# Pauses of 0.5, 1, 2, 4, 8 and 16 s, instead of 0.75 to 15 s.
PAUSES = {"BATCHLINE_WORKER_POLL_MIN": "0.5s", "BATCHLINE_WORKER_POLL_MAX": "60s"}
IN_THE_PAUSE_OF_8_S = """
SELECT now() - max(query_start) > interval '5 seconds'
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%%/* poll */%%'
"""


async def test_a_second_batch_does_not_wait_for_the_rest_of_a_long_pause(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    async def idle() -> bool:
        return await sql(db, IN_THE_PAUSE_OF_8_S) == [(True,)]

    async def run_to_its_end() -> None:
        batch: Batch = await a_batch(db, 3, upstream=upstream.url)

        async def ended() -> bool:
            return (await read(db, batch)).ended_at is not None

        await until(ended)

    loop = asyncio.get_running_loop()
    # There is no maintenance that would make it poll.
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now() + interval '1 day'")
    with (
        pooled(database_url, tmp_path / "pgbouncer") as pooler,
        simulated() as upstream,
        working(pooler, tmp_path / "data", **PAUSES),
    ):
        await until(idle)
        await run_to_its_end()
        # A stalled machine may delay one of them. A worker that went on with its pauses would delay them all.
        took: list[float] = []
        while len(took) < 3 and min(took, default=8.0) >= 8.0:
            began = loop.time()
            await run_to_its_end()
            took.append(loop.time() - began)
    assert min(took) < 8.0, "the pause after the poll that found the first batch would be 16 s"
