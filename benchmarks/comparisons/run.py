"""`batchline run` as users run it, against its HTTP client in a bare loop.

The command, with the embedded database in a new folder, sends every line to `batchline simulate`, which
answers at once. All of them share the machine's cores. Its rate is that of the batch, from its creation to
the last settle, according to its row (`in_progress_at` to `finalizing_at`). A second figure is for the whole
command, which also creates the database, ingests the file and writes the output. The bare loop sends the same
requests with as many in flight, reads every answer and discards it. Each turn has a separate simulator.
"""

import tempfile
from pathlib import Path
from time import perf_counter

from psycopg import sql

from batchline.embedded import EmbeddedPostgres
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, Series, alternate, at_least, ratio
from benchmarks.inputs import write_jsonl
from benchmarks.processes import batchline, output_of, run, simulator
from benchmarks.server import execute

_CONCURRENCIES = (64, 256)
# Both use all cores, so other load on the machine matters: with three rounds the ratio varied from 0.56 to
# 0.77.
_ROUNDS = 7
_BATCH_SECONDS = sql.SQL(
    "SELECT extract(epoch FROM finalizing_at - in_progress_at)::float8 FROM batchline.batches"
)


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(60_000, quick=500)
    path = write_jsonl(bench.scratch / "run.jsonl", lines=lines)
    figures = []
    for concurrency in _CONCURRENCIES[: bench.size(2, quick=1)]:
        figures += await _at(bench, path, lines, concurrency)
    path.unlink()
    return figures


async def _at(bench: Bench, path: Path, lines: int, concurrency: int) -> list[Figure]:
    wholes: list[float] = []

    async def run_rate() -> float:
        with simulator() as upstream:
            batch_seconds, whole_seconds = run_batch(
                bench.scratch, path, upstream, "--concurrency", str(concurrency)
            )
        wholes.append(lines / whole_seconds)
        return lines / batch_seconds

    async def bare_rate() -> float:
        with simulator() as upstream:
            return float(output_of("benchmarks.bare.client", str(path), upstream, str(concurrency)))

    ours, bare = await alternate(
        bench.size(_ROUNDS, quick=1),
        Contestant("Batchline, the batch", "requests/s", run_rate),
        Contestant("bare client", "requests/s", bare_rate),
    )
    whole = Series("Batchline, the whole command", "requests/s", wholes)
    return [
        ratio(f"requests per second, {concurrency} in flight", ours, bare, at_least(0.7)),
        ratio(f"the whole command, {lines:,} lines, {concurrency} in flight", whole, bare),
    ]


def run_batch(scratch: Path, path: Path, upstream: str, *options: str) -> tuple[float, float]:
    """Run a batch, with these options. Return the seconds of the batch and of the whole command."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=scratch) as folder:
        data_dir = Path(folder, "data")
        command = batchline(
            *("run", str(path), "--upstream", upstream, "--json", *options),
            *("--data-dir", str(data_dir), "--output", str(Path(folder, "output.jsonl"))),
        )
        begun = perf_counter()
        try:
            run(command)
        finally:
            whole = perf_counter() - begun
            # This also stops a server that a killed command left.
            with EmbeddedPostgres.start(data_dir) as server:
                rows = execute(server.url, _BATCH_SECONDS)
    return rows[0][0], whole
