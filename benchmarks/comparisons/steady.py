"""Claim, fetch and settle at the end of a large batch, against the same at its beginning.

One connection claims 500 lines, reads them, and settles a random 500 of the 2,000 lines that it holds. The
rates are those of the last and the first tenth of one drain. A round is a whole drain of a new batch.
"""

from batchline.store.session import Session
from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, at_least, ratio
from benchmarks.drain import CursorAndSpans, drain
from benchmarks.inputs import a_batch, fill_file


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(1_000_000, quick=20_000)
    first, last = [], []
    with bench.server.database() as url:
        file_id = fill_file(url, lines)
        async with Session(url, "benchmark") as session:
            for _ in range(bench.rounds):
                await a_batch(session, file_id)
                bench.server.settle_down()
                drained = await drain(CursorAndSpans(session))
                first.append(drained.tenth(0))
                last.append(drained.tenth(9))
    return [
        ratio(
            f"items per second of {lines:,}, last tenth to first",
            Series("last tenth", "items/s", last),
            Series("first tenth", "items/s", first),
            at_least(0.8),
        )
    ]
