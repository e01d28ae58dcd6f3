"""Accepting items and draining them with a handler that does nothing, against other queues on PostgreSQL.

Each contestant has a separate environment with exactly the versions of its lock
(`benchmarks/contestants/*.lock`), separate processes, and for each turn a new database on one PostgreSQL with
default settings. All accept the same items, 300 bytes each, in their fastest documented way. Batchline writes
them as lines, ingests these as a file, and creates a batch over it. Then one worker drains them, or two. The
time is from the first call of a handler until no item is unfinished. Batchline also keeps one result line per
item and writes an output file. Contestants that need much longer get fewer items, as the rows say, so that a
round ends.

The server counts the WAL (`pg_current_wal_lsn`), after a checkpoint before the items are accepted. CPU is
that of the worker, and that of all PostgreSQL processes. The time to the summary is from the last settle to
the end of the batch, with its output file written. The other queues have no batches, so they have no such
time.
"""

import time
from collections.abc import Callable

from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.contest import Bar, Figure, Series, at_least, at_most
from benchmarks.contestants.roster import PGQUEUER
from benchmarks.match import Cost, Player, accept, database, drain, plain_server, players
from benchmarks.server import BenchServer, execute

_TO_SUMMARY = sql.SQL("""
    SELECT extract(epoch FROM ended_at - finalizing_at)::float8 FROM batchline.batches
        WHERE ended_at IS NOT NULL
""")


class QueueScore:
    """The results of one contestant, round by round."""

    def __init__(self, player: Player, items: int) -> None:
        self.player = player
        self.items = items
        self.accepted: list[Cost] = []
        self.drained: dict[int, list[Cost]] = {1: [], 2: []}
        self.to_summary: list[float] = []

    def series(self, unit: str, costs: list[Cost], value: Callable[[Cost], float]) -> Series:
        return Series(f"{self.player.label}, {self.items:,} items", unit, [value(cost) for cost in costs])


async def compare(bench: Bench) -> list[Figure]:
    present, missing = players(bench)
    scores = [QueueScore(player, bench.size(player.entrant.items, quick=500)) for player in present]
    with plain_server(bench.scratch) as server:
        for nth in range(bench.rounds):
            for score in scores if nth % 2 == 0 else reversed(scores):
                for workers in (1, 2):
                    play(server, score, workers)
    return _figures(scores, missing)


def play(server: BenchServer, score: QueueScore, workers: int) -> None:
    with database(server, score.player) as url:
        score.accepted.append(accept(server, score.player, url, score.items))

        def summary() -> None:
            if score.player.entrant.is_ours:
                score.to_summary.append(_wait_for_summary(url))

        score.drained[workers].append(drain(server, score.player, url, score.items, workers, summary))


def _wait_for_summary(url: str) -> float:
    while not (rows := execute(url, _TO_SUMMARY)):
        time.sleep(0.02)
    return float(rows[0][0])


def row_of(
    name: str,
    unit: str,
    scores: list[QueueScore],
    costs: Callable[[QueueScore], list[Cost]],
    value: Callable[[Cost], float],
) -> "ScoreRow":
    return ScoreRow(name, [score.series(unit, costs(score), value) for score in scores], scores)


def _figures(scores: list[QueueScore], missing: str) -> list[Figure]:
    def row(
        name: str, unit: str, costs: Callable[[QueueScore], list[Cost]], value: Callable[[Cost], float]
    ) -> ScoreRow:
        return row_of(name, unit, scores, costs, value)

    def drained(workers: int) -> Callable[[QueueScore], list[Cost]]:
        return lambda score: score.drained[workers]

    def both(score: QueueScore) -> list[Cost]:
        return [
            Cost(a.items, a.seconds, a.wal + d.wal, a.client_cpu, a.server_cpu)
            for a, d in zip(score.accepted[::2], score.drained[1], strict=True)
        ]

    accepting = row(
        "items accepted per second", "items/s", lambda score: score.accepted, lambda cost: cost.rate
    )
    one = row("items drained per second, one worker", "items/s", drained(1), lambda cost: cost.rate)
    two = row("items drained per second, two workers", "items/s", drained(2), lambda cost: cost.rate)
    wal = row("bytes of WAL per item, accepted and drained", "bytes", both, lambda cost: cost.wal)
    wal_accepting = row(
        "bytes of WAL per item, accepted", "bytes", lambda score: score.accepted, lambda cost: cost.wal
    )
    worker = row("CPU per item, worker", "µs", drained(1), lambda cost: cost.client_cpu)
    postgres = row("CPU per item, PostgreSQL while draining", "µs", drained(1), lambda cost: cost.server_cpu)
    client = row(
        "CPU per item, accepting process", "µs", lambda score: score.accepted, lambda cost: cost.client_cpu
    )
    taking = row(
        "CPU per item, PostgreSQL while accepting",
        "µs",
        lambda score: score.accepted,
        lambda cost: cost.server_cpu,
    )
    figures = [
        *accepting.to_pgqueuer(at_least(3)),
        *one.to_pgqueuer(at_least(4)),
        *one.to_the_best_other(at_least(10)),
        *two.to_pgqueuer(at_least(4)),
        *two.to_the_best_other(at_least(10)),
        *wal.to_pgqueuer(at_most(1 / 3)),
        *wal_accepting.to_pgqueuer(None),
        *worker.to_pgqueuer(None),
        *postgres.to_pgqueuer(None),
        *client.to_pgqueuer(None),
        *taking.to_pgqueuer(None),
    ]
    ours, *_ = scores
    seconds = Series(f"Batchline, {ours.items:,} items", "s", ours.to_summary)
    none = "No other contestant has a batch that ends, so none has a summary."
    figures.append(
        Figure("from the last item to the finished summary", seconds.median, "s", None, [seconds], none)
    )
    return [*figures, Figure("contestants", len(scores), "", None, [], missing)]


class ScoreRow:
    def __init__(self, name: str, series: list[Series], scores: list[QueueScore]) -> None:
        self._name = name
        self._ours, *_ = series
        self._all = series
        self._by = dict(zip([score.player.entrant.module for score in scores], series, strict=True))

    def to_pgqueuer(self, bar: Bar | None) -> list[Figure]:
        """Compare with PgQueuer, with the series of all contestants. Empty if PgQueuer is missing."""
        if PGQUEUER.module not in self._by:
            return []
        value = self._ours.median / self._by[PGQUEUER.module].median
        return [Figure(f"{self._name}, to PgQueuer's", value, "×", bar, self._all)]

    def to_the_best_other(self, bar: Bar) -> list[Figure]:
        near = [series for module, series in self._by.items() if module == PGQUEUER.module]
        others = [series for series in self._all[1:] if series not in near]
        if not others:
            return []
        best = max(others, key=lambda series: series.median)
        name = f"{self._name}, to the fastest of the others"
        return [Figure(name, self._ours.median / best.median, "×", bar, [self._ours, best])]
