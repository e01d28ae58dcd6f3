"""Two workers under one budget, for a minute.

Two `batchline worker` processes with the same `batchline.toml` send to `batchline simulate`, which answers
after 50 ms: first with a budget of 3,000 requests per minute, then with one of 200,000 tokens. Each of them
alone could send ten times as much. When both are at work, results and their tokens are counted in the
database, for 60 seconds by its clock. The figures are what was used, divided by the budget for that time.
Both bars apply to the same number: it must be within 2 percent.
"""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, at_least, at_most
from benchmarks.inputs import write_jsonl
from benchmarks.processes import batchline, run, running, simulator
from benchmarks.server import execute

_LATENCY = 50
_LONGEST_START = 120.0
_USED = sql.SQL(
    "SELECT extract(epoch FROM clock_timestamp())::float8, completed, input_tokens + output_tokens"
    " FROM batchline.current_batches"
)
_WORKERS = sql.SQL(
    "SELECT count(DISTINCT s.worker_id) FROM batchline.spans AS s"
    " JOIN batchline.workers AS w ON w.id = s.worker_id"
)


async def compare(bench: Bench) -> list[Figure]:
    path = write_jsonl(bench.scratch / "budget.jsonl", lines=20_000)
    figures = []
    for column, unit, per_minute in ((1, "requests", 3_000), (2, "tokens", 200_000)):
        used = await _used(bench, path, column, unit, per_minute)
        series = [Series("two workers", f"{unit} per minute", [used * per_minute])]
        name = f"{unit} per minute of two workers, to their budget of {per_minute:,}"
        figures += [
            Figure(name, used, "×", at_most(1.02), series),
            Figure(f"{name}, again", used, "×", at_least(0.98), series),
        ]
    path.unlink()
    return figures


async def _used(bench: Bench, path: Path, column: int, unit: str, per_minute: int) -> float:
    """What was used, as a part of the budget."""
    with bench.server.database() as database, simulator(_LATENCY) as upstream, ExitStack() as stack:
        config, data = bench.scratch / "budget.toml", bench.scratch / f"budget-{unit}"
        config.write_text(
            f'[[upstreams]]\nname = "sim"\nbase_url = "{upstream}"\n{unit}_per_minute = {per_minute}\n'
        )
        where = ("--database", database, "--data-dir", str(data))
        for _ in range(2):
            command = batchline("worker", "--quiet", "--config", str(config), *where)
            stack.enter_context(running(command))
        run(batchline("submit", str(path), "--upstream", upstream, *where))
        await _both_at_work(database)
        # The first requests for a model are estimated by what they may use at most.
        await asyncio.sleep(bench.size(5, quick=1))
        before = execute(database, _USED)[0]
        await asyncio.sleep(bench.size(60, quick=2))
        after = execute(database, _USED)[0]
    seconds, used = float(after[0] - before[0]), float(after[column] - before[column])
    return used * 60 / seconds / per_minute


async def _both_at_work(database: str) -> None:
    deadline = monotonic() + _LONGEST_START
    while execute(database, _WORKERS)[0][0] < 2 or execute(database, _USED)[0][1] == 0:
        if monotonic() > deadline:
            raise RuntimeError(f"the workers did not begin within {_LONGEST_START:g} s")
        await asyncio.sleep(0.1)
