"""Time until an idle worker calls the handler of a new item, against other queues on PostgreSQL.

From just before a process with an open connection submits the item to the call of the handler in an idle
worker. Batchline creates a new batch over a file of one line, ingested before; the others enqueue one item.
Contestants take turns. In each turn a worker is started, woken a few times unmeasured, and then woken 30
times (DBOS 8) with a pause in between.
"""

import time

from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, at_most, ratio
from benchmarks.match import Player, database, driving, plain_server, players, working
from benchmarks.server import BenchServer

WARM_UPS = 3
PAUSE = 0.15


async def compare(bench: Bench) -> list[Figure]:
    present, missing = players(bench)
    waits: dict[str, list[float]] = {player.label: [] for player in present}
    with plain_server(bench.scratch) as server:
        for nth in range(bench.rounds):
            for player in present if nth % 2 == 0 else reversed(present):
                waits[player.label] += wake(server, player, bench.size(player.entrant.wakes, quick=3))
    series = [Series(label, "ms", values) for label, values in waits.items()]
    ours, *others = series
    late = [
        Series(f"{one.name}, 99th percentile", "ms", [one.percentile(99)])
        for one in series
        if len(one.values) > 1
    ]
    figures = [
        Figure(
            "milliseconds to the call of the handler, Batchline's median",
            ours.median,
            "ms",
            None,
            series,
            missing,
        )
    ]
    if others:
        fastest = min(others, key=lambda other: other.median)
        figures.append(ratio("the same, to the fastest other contestant's", ours, fastest, at_most(1.25)))
    return [*figures, Figure("the same, 99th percentile", ours.percentile(99), "ms", None, late)]


def wake(server: BenchServer, player: Player, times: int) -> list[float]:
    with (
        database(server, player) as url,
        driving(player, "submit", url) as submitter,
        working(player, url, "tell") as worker,
    ):
        waits = []
        for _ in range(WARM_UPS + times):
            submitter.go()
            begun = submitter.read()
            waits.append(1000 * (worker.read() - begun))
            time.sleep(PAUSE)
    return waits[WARM_UPS:]
