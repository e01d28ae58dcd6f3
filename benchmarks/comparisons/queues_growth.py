"""Accepting and draining with ten to a hundred times as many items, for all queues on PostgreSQL.

As in `queues`, with one worker. Batchline and PgQueuer go from 10,000 to 1,000,000 items. The others accept
and drain some hundreds or thousands of items per second, so a million would take each of them from ten
minutes to hours per round. They go up tenfold, to what they manage in about ten seconds. Larger numbers were
not measured; the table says how far each went.
"""

from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, ratio
from benchmarks.match import Cost, Player, accept, database, drain, plain_server, players
from benchmarks.numbers import number
from benchmarks.server import BenchServer

_HEAD = (
    "contestant",
    "items",
    "accepted, items/s",
    "drained, items/s",
    "WAL, bytes per item",
    "CPU of the worker, µs per item",
    "CPU of PostgreSQL, µs per item",
)


class Climb:
    """One contestant at one number of items, round by round."""

    def __init__(self, player: Player, items: int) -> None:
        self.player = player
        self.items = items
        self.accepted: list[Cost] = []
        self.drained: list[Cost] = []

    def play(self, server: BenchServer) -> None:
        with database(server, self.player) as url:
            self.accepted.append(accept(server, self.player, url, self.items))
            self.drained.append(drain(server, self.player, url, self.items, 1))

    def rates(self, costs: list[Cost]) -> Series:
        return Series(f"{self.items:,} items", "items/s", [cost.rate for cost in costs])

    def row(self) -> list[str]:
        both = list(zip(self.accepted, self.drained, strict=True))
        values = [
            [accepted.rate for accepted, _ in both],
            [drained.rate for _, drained in both],
            [accepted.wal + drained.wal for accepted, drained in both],
            [drained.client_cpu for _, drained in both],
            [accepted.server_cpu + drained.server_cpu for accepted, drained in both],
        ]
        medians = [number(Series("", "", found).median) for found in values]
        return [self.player.label, f"{self.items:,}", *medians]


async def compare(bench: Bench) -> list[Figure]:
    present, missing = players(bench)
    pairs = [
        tuple(Climb(player, bench.size(items, quick=quick)) for items, quick in _sizes(player))
        for player in present
    ]
    climbs = [climb for pair in pairs for climb in pair]
    with plain_server(bench.scratch) as server:
        for nth in range(bench.rounds):
            for climb in climbs if nth % 2 == 0 else reversed(climbs):
                climb.play(server)
    note = "\n\n".join(part for part in (table(climbs), missing) if part)
    figures = [Figure("contestants", len(present), "", None, [], note)]
    for few, many in pairs:
        name = f"{few.player.label}, {many.items:,} to {few.items:,}"
        accepted = ratio(
            f"items accepted per second, {name}", many.rates(many.accepted), few.rates(few.accepted)
        )
        drained = ratio(f"items drained per second, {name}", many.rates(many.drained), few.rates(few.drained))
        figures += [accepted, drained]
    return figures


def _sizes(player: Player) -> list[tuple[int, int]]:
    return list(zip(player.entrant.growth, (100, 1_000), strict=True))


def table(climbs: list[Climb]) -> str:
    lines = [list(_HEAD), ["---"] * len(_HEAD), *(climb.row() for climb in climbs)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
