"""Extra memory to submit and to run many items of a Python operation instead of few.

A separate process submits the items from a generator, and `batchline worker` runs them with a handler that
does nothing. The figures are the differences of the peaks (VmHWM) of each. A round does both sizes.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, Series, alternate, below
from benchmarks.contestants.protocol import Payload, payloads
from benchmarks.library import app_at, until_run
from benchmarks.processes import app_worker, output_of
from benchmarks.python_app import app, nothing


async def compare(bench: Bench) -> list[Figure]:
    few, many = bench.size(10_000, quick=1_000), bench.size(1_000_000, quick=10_000)
    workers: dict[int, list[float]] = {few: [], many: []}

    async def peak(items: int) -> float:
        """The peak of the submitter. That of the worker is put down."""
        folder = bench.scratch / "python-memory"
        with bench.server.database() as url, app_worker(url, folder) as worker:
            said = await asyncio.to_thread(output_of, __name__, url, str(folder), str(items))
            await until_run(url)
            workers[items].append(_peak(worker.pid))
        return float(said)

    large, small = await alternate(
        bench.rounds,
        Contestant(f"submitter, {many:,} items", "MB", lambda: peak(many)),
        Contestant(f"submitter, {few:,} items", "MB", lambda: peak(few)),
    )
    ran_many = Series(f"worker, {many:,} items", "MB", workers[many])
    ran_few = Series(f"worker, {few:,} items", "MB", workers[few])
    return [
        Figure(f"growth of the peak, {name}", over.median - under.median, "MB", below(50), [over, under])
        for name, over, under in (("submitter", large, small), ("worker", ran_many, ran_few))
    ]


def _peak(process: int | str) -> float:
    """Peak memory of a process in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if "VmHWM" in line]
    return int(kilobytes) * 1024 / 1e6


def _items(count: int) -> Iterator[Payload]:
    (one,) = payloads(1)
    for nth in range(count):
        yield {"nth": nth, "text": one["text"]}


async def _submit(url: str, folder: str, count: str) -> None:
    async with app_at(url, Path(folder)):
        await app.submit(nothing, _items(int(count)))
    print(_peak("self"))


if __name__ == "__main__":
    asyncio.run(_submit(*sys.argv[1:]))
