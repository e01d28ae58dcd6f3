"""`batchline run` with Parquet output, against the same command with JSON Lines.

The whole command, from the start of its process to the finished file, with the embedded database in a new
folder. The upstream is `batchline simulate` with a latency of 50 ms, and 256 requests are in flight.
"""

import tempfile
from pathlib import Path
from time import perf_counter

from batchline.embedded import EmbeddedPostgres
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_most, ratio
from benchmarks.inputs import write_jsonl
from benchmarks.processes import batchline, run, simulator

_LATENCY = 50
_IN_FLIGHT = 256


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(60_000, quick=500)
    path = write_jsonl(bench.scratch / "tables.jsonl", lines=lines)

    def command(output: str) -> Contestant:
        async def seconds() -> float:
            with simulator(_LATENCY) as upstream:
                return _seconds(bench.scratch, path, upstream, output)

        return Contestant(output, "s", seconds)

    parquet, jsonl = await alternate(bench.rounds, command("output.parquet"), command("output.jsonl"))
    path.unlink()
    return [ratio(f"seconds of the whole command, {lines:,} lines", parquet, jsonl, at_most(1.1))]


def _seconds(scratch: Path, path: Path, upstream: str, output: str) -> float:
    with tempfile.TemporaryDirectory(prefix="tables-", dir=scratch) as folder:
        data_dir = Path(folder, "data")
        begun = perf_counter()
        try:
            run(
                batchline(
                    *("run", str(path), "--upstream", upstream, "--concurrency", str(_IN_FLIGHT), "--json"),
                    *("--data-dir", str(data_dir), "--output", str(Path(folder, output))),
                )
            )
        finally:
            seconds = perf_counter() - begun
            # This also stops a server that a killed command left.
            with EmbeddedPostgres.start(data_dir):
                pass
    return seconds
