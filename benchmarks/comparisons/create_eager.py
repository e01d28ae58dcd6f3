"""Creating a batch, against inserting one row per line.

The eager design inserts its rows with one INSERT … SELECT in the server. Batchline's turn is the median of 25
creations. The lines of both files are in the database.
"""

import statistics

from psycopg import sql

from batchline.store.session import Session
from benchmarks.baselines.eager import Eager
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_least, ratio
from benchmarks.inputs import a_batch, fill_file
from benchmarks.server import execute
from benchmarks.timing import milliseconds


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(1_000_000, quick=20_000)
    with bench.server.database() as url, bench.server.database(migrated=False) as eager_url:
        file_id = fill_file(url, lines)
        Eager.set_up(eager_url, lines)
        # Inserting a million rows takes long.
        async with Session(url, "benchmark") as session, Session(eager_url, "eager", timeout=600) as eager:

            async def batch_row() -> float:
                return statistics.median([await milliseconds(a_batch(session, file_id)) for _ in range(25)])

            async def row_for_each() -> float:
                execute(eager_url, sql.SQL("TRUNCATE requests, batches"))
                bench.server.settle_down()
                return await milliseconds(Eager(eager).create())

            ours, theirs = await alternate(
                bench.rounds,
                Contestant("Batchline", "ms", batch_row),
                Contestant("a row for each line", "ms", row_for_each),
            )
    return [ratio(f"times faster to create a batch over {lines:,} lines", theirs, ours, at_least(1000))]
