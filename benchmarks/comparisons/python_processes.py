"""Two processes of `batchline worker` against one, with a Python handler that uses a millisecond of CPU.

The batch is submitted and held while `batchline worker benchmarks.python_app:app --processes N` starts and
runs some items. The time is from its release until all items have ended. The machine needs two idle cores,
and PostgreSQL needs a part of them.
"""

from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_least, ratio
from benchmarks.library import app_at, until_run, warm_up
from benchmarks.processes import app_worker
from benchmarks.python_app import app, burn
from benchmarks.timing import seconds


async def compare(bench: Bench) -> list[Figure]:
    items = bench.size(10_000, quick=200)

    async def rate(processes: int) -> float:
        folder = bench.scratch / "python-processes"
        with bench.server.database() as url:
            async with app_at(url, folder):
                batch = await app.submit(burn, range(items), hold=True)
                with app_worker(url, folder, "--processes", str(processes)):
                    await warm_up()

                    async def run() -> None:
                        await batch.release()
                        await until_run(url)

                    return items / await seconds(run())

    two, one = await alternate(
        bench.rounds,
        Contestant(f"two processes, {items:,} items", "items/s", lambda: rate(2)),
        Contestant(f"one process, {items:,} items", "items/s", lambda: rate(1)),
    )
    return [ratio("items per second with two processes, to one", two, one, at_least(1.8))]
