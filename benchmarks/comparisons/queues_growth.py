"""How accepting and draining change from 10,000 to 1,000,000 items, Batchline and PgQueuer.

As in `queues`, with one worker. The other contestants are left out: at their rates a round of a million items
takes between 10 minutes (Oban, Chancy) and more than an hour (Procrastinate, DBOS).
"""

from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, ratio
from benchmarks.contestants.roster import BATCHLINE, PGQUEUER
from benchmarks.match import Cost, accept, database, drain, plain_server, players


async def compare(bench: Bench) -> list[Figure]:
    sizes = (bench.size(10_000, quick=100), bench.size(1_000_000, quick=1_000))
    present, missing = players(bench, (BATCHLINE, PGQUEUER))
    turns = [(player, items) for player in present for items in sizes]
    accepted: dict[tuple[str, int], list[Cost]] = {(player.label, items): [] for player, items in turns}
    drained: dict[tuple[str, int], list[Cost]] = {(player.label, items): [] for player, items in turns}
    with plain_server(bench) as server:
        for nth in range(bench.rounds):
            for player, items in turns if nth % 2 == 0 else reversed(turns):
                with database(server, player) as url:
                    accepted[player.label, items].append(accept(server, player, url, items))
                    drained[player.label, items].append(drain(server, player, url, items, 1))
    figures = []
    for what, costs in (("accepted", accepted), ("drained", drained)):
        for player in present:
            few, many = (_series(f"{size:,} items", costs[player.label, size]) for size in sizes)
            figures.append(ratio(f"items {what} a second, {player.label}, many to few", many, few))
    return [*figures, Figure("contestants", len(present), "", None, [], missing)]


def _series(name: str, costs: list[Cost]) -> Series:
    return Series(name, "items/s", [cost.rate for cost in costs])
