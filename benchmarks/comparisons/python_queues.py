"""The Python library with a handler that does nothing, against other queues on PostgreSQL.

As in `queues`, but Batchline takes part with its public Python API only: `app.submit` streams the items from
an iterator, and a worker of the app calls the handler. Each item is checked against the operation's type, and
gets a result that can be read.
"""

from benchmarks.bench import Bench
from benchmarks.comparisons.queues import QueueScore, play, row_of
from benchmarks.contest import Figure, at_least
from benchmarks.contestants.roster import LIBRARY, OTHERS
from benchmarks.match import plain_server, players


async def compare(bench: Bench) -> list[Figure]:
    present, missing = players(bench, (LIBRARY, *OTHERS))
    scores = [QueueScore(player, bench.size(player.entrant.items, quick=500)) for player in present]
    with plain_server(bench.scratch) as server:
        for nth in range(bench.rounds):
            for score in scores if nth % 2 == 0 else reversed(scores):
                for workers in (1, 2):
                    play(server, score, workers)
    submitted = row_of(
        "items submitted per second", "items/s", scores, lambda score: score.accepted, lambda cost: cost.rate
    )
    one, two = (
        row_of(
            f"items run per second, {name}",
            "items/s",
            scores,
            lambda score, workers=workers: score.drained[workers],  # type: ignore[misc]
            lambda cost: cost.rate,
        )
        for workers, name in ((1, "one worker"), (2, "two workers"))
    )
    return [
        *submitted.to_pgqueuer(at_least(2)),
        *one.to_pgqueuer(at_least(4)),
        *one.to_the_best_other(at_least(8)),
        *two.to_pgqueuer(at_least(4)),
        *two.to_the_best_other(at_least(8)),
        Figure("contestants", len(scores), "", None, [], missing),
    ]
