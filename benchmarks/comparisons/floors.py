"""Batchline, against the minimum that PostgreSQL needs on this machine.

Draining is compared with the minimum for a queue with one row per item (`benchmarks/bare/claimer.py`): claim
a thousand rows with their bodies and mark them as done, on one connection and on two, each in a separate
process. It runs nothing, keeps no results and cannot recover. Batchline's worker calls a handler that does
nothing, keeps one result line per item, and ends the batch. Both use PostgreSQL with its default settings,
and 300 bytes per item. The floor for accepting is a bare COPY; `ingest` compares with it.
"""

import subprocess
from contextlib import ExitStack

from psycopg import sql

from benchmarks.bare import claimer
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, ratio
from benchmarks.contestants.roster import BATCHLINE
from benchmarks.match import Player, accept, database, drain, plain_server, players
from benchmarks.processes import module
from benchmarks.server import BenchServer, execute, vacuum


async def compare(bench: Bench) -> list[Figure]:
    items = bench.size(100_000, quick=2_000)
    (ours,), _ = players(bench, (BATCHLINE,))
    figures = []
    with plain_server(bench.scratch) as server:
        for workers in (1, 2):
            batchline, floor = await alternate(
                bench.rounds,
                Contestant("Batchline", "items/s", lambda: _drain(server, ours, items, workers)),  # noqa: B023
                Contestant("claim and done", "items/s", lambda: _floor(server, items, workers)),  # noqa: B023
            )
            who = "one worker" if workers == 1 else "two workers"
            name = f"items drained per second, {who}, to the floor"
            figures.append(ratio(name, batchline, floor))
    return figures


async def _drain(server: BenchServer, player: Player, items: int, workers: int) -> float:
    with database(server, player) as url:
        accept(server, player, url, items)
        return drain(server, player, url, items, workers).rate


async def _floor(server: BenchServer, items: int, connections: int) -> float:
    with server.database(migrated=False) as url:
        execute(url, sql.SQL(claimer.SCHEMA))
        execute(url, sql.SQL(claimer.FILL), {"items": items})
        vacuum(url)
        server.settle_down()
        times = _claim_all(url, connections)
    return items / (max(ended for _, ended in times) - min(begun for begun, _ in times))


def _claim_all(url: str, connections: int) -> list[tuple[float, float]]:
    """Run all claimers at once, and return when each began and ended."""
    with ExitStack() as stack:
        command = module("benchmarks.bare.claimer", url)
        producer = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(connections)
        ]
        for process in producer:
            assert process.stdout is not None
            process.stdout.readline()
        for process in producer:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        reported = [process.communicate()[0].split() for process in producer]
    return [(float(begun), float(ended)) for begun, ended in reported]
