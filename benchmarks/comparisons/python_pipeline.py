"""A pipeline of three stages against three batches with as many items, with handlers that do nothing.

Each item of the first stage emits one for the second, and that one for the third. The three batches have the
same items, submitted by the same process. One `batchline worker benchmarks.python_app:app` runs them. The
time is from the first call of `app.submit` until all items have ended, of all stages or of all batches.
"""

from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_least, ratio
from benchmarks.contestants.protocol import payloads
from benchmarks.library import app_at, until_run, warm_up
from benchmarks.processes import app_worker
from benchmarks.python_app import app, first, nothing
from benchmarks.timing import seconds

_STAGES = 3


async def compare(bench: Bench) -> list[Figure]:
    count = bench.size(50_000, quick=500)
    items = payloads(count)

    async def pipeline(url: str) -> None:
        await app.submit(first, items)
        await until_run(url)

    async def batches(url: str) -> None:
        for _ in range(_STAGES):
            await app.submit(nothing, items)
        await until_run(url)

    async def rate(kind: str) -> float:
        folder = bench.scratch / "python-pipeline"
        with bench.server.database() as url, app_worker(url, folder):
            async with app_at(url, folder):
                await warm_up()
                bench.server.settle_down()
                return _STAGES * count / await seconds((pipeline if kind == "stages" else batches)(url))

    stages, separate = await alternate(
        bench.rounds,
        Contestant(f"three stages, {count:,} items each", "items/s", lambda: rate("stages")),
        Contestant(f"three batches, {count:,} items each", "items/s", lambda: rate("batches")),
    )
    return [ratio("items per second of a pipeline, to three batches", stages, separate, at_least(0.8))]
