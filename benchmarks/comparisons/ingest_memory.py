"""Extra memory to ingest a large file instead of a small one.

A separate process ingests each file. The figure is the difference of their peaks (VmHWM). A round ingests
both.
"""

import asyncio
import resource
import sys
from pathlib import Path

from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.comparisons.ingest import take_in
from benchmarks.contest import Contestant, Figure, alternate, below
from benchmarks.inputs import write_jsonl
from benchmarks.processes import output_of
from benchmarks.server import execute

_LINE = 500


async def compare(bench: Bench) -> list[Figure]:
    small, large = bench.size(10, quick=1), bench.size(1000, quick=10)
    files = {
        size: write_jsonl(bench.scratch / f"{size}.jsonl", lines=size * 10**6 // _LINE, line_bytes=_LINE)
        for size in (small, large)
    }
    with bench.server.database() as url:

        async def peak(size: int) -> float:
            execute(url, sql.SQL("TRUNCATE batchline.lines, batchline.files, batchline.file_lanes"))
            return float(await asyncio.to_thread(output_of, __name__, url, str(files[size])))

        of_large, of_small = await alternate(
            bench.rounds,
            Contestant(f"{large:,} MB of input", "MB", lambda: peak(large)),
            Contestant(f"{small:,} MB of input", "MB", lambda: peak(small)),
        )
    for path in files.values():
        path.unlink()
    growth = of_large.median - of_small.median
    return [Figure("growth of the peak memory", growth, "MB", below(100), [of_large, of_small])]


def _peak() -> float:
    """Peak memory of this process in MB. On Linux, getrusage would include the parent's before the exec."""
    status = Path("/proc/self/status")
    if status.exists():
        (kilobytes,) = [line.split()[1] for line in status.read_text().splitlines() if "VmHWM" in line]
        return int(kilobytes) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    asyncio.run(take_in(sys.argv[1], Path(sys.argv[2])))
    print(_peak())
