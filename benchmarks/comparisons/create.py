"""Creating a batch over a large file, against creating one over a small file.

`store.batches.create`, one call per turn, 200 turns each, on one connection. The lines of the large file are
in the database.
"""

from uuid import UUID

from batchline.store.session import Session
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_most, ratio
from benchmarks.inputs import a_batch, fill_file
from benchmarks.timing import milliseconds


async def compare(bench: Bench) -> list[Figure]:
    many = bench.size(1_000_000, quick=20_000)
    few = bench.size(1_000, quick=20)
    with bench.server.database() as url:
        large, small = fill_file(url, many), fill_file(url, few)
        bench.server.settle_down()
        async with Session(url, "benchmark") as session:

            async def create(file_id: UUID) -> float:
                return await milliseconds(a_batch(session, file_id))

            # Warm up: the first calls are not prepared statements yet.
            for file_id in (large, small) * 5:
                await create(file_id)
            over_many, over_few = await alternate(
                bench.size(200, quick=10),
                Contestant(f"over {many:,} lines", "ms", lambda: create(large)),
                Contestant(f"over {few:,} lines", "ms", lambda: create(small)),
            )
    return [ratio("time to create a batch, large file to small file", over_many, over_few, at_most(1.5))]
