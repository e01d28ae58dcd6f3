"""The round trip of `app.call` on an idle worker, against other queues' way to a handler.

A call submits one item, waits for its result and returns it. For the other queues, the time is from just
before a process with an open connection enqueues the item to the call of the handler, as in `queues-wake`:
they return no result. Contestants take turns. In each turn an idle worker is woken a few times unmeasured,
and then measured with a pause in between.
"""

import asyncio

from benchmarks.bench import Bench
from benchmarks.comparisons.queues_wake import PAUSE, WARM_UPS, wake
from benchmarks.contest import Figure, Series, at_most, ratio
from benchmarks.contestants.protocol import payloads
from benchmarks.contestants.roster import OTHERS
from benchmarks.library import app_at, warm_up
from benchmarks.match import plain_server, players
from benchmarks.processes import app_worker
from benchmarks.python_app import app, nothing
from benchmarks.server import BenchServer
from benchmarks.timing import milliseconds

_CALLS = 30


async def compare(bench: Bench) -> list[Figure]:
    present, missing = players(bench, OTHERS)
    ours: list[float] = []
    others: dict[str, list[float]] = {player.label: [] for player in present}
    with plain_server(bench.scratch) as server:
        for _ in range(bench.rounds):
            ours += await _calls(bench, server, bench.size(_CALLS, quick=3))
            for player in present:
                times = bench.size(player.entrant.wakes, quick=3)
                others[player.label] += await asyncio.to_thread(wake, server, player, times)
    calls = Series("app.call, with its result", "ms", ours)
    wakes = [Series(label, "ms", values) for label, values in others.items()]
    figures = [Figure("round trip of app.call, median", calls.median, "ms", None, [calls, *wakes], missing)]
    if wakes:
        fastest = min(wakes, key=lambda series: series.median)
        figures.append(
            ratio("the same, to the fastest contestant's way to a handler", calls, fastest, at_most(2))
        )
    return figures


async def _calls(bench: Bench, server: BenchServer, times: int) -> list[float]:
    folder = bench.scratch / "python-call"
    taken, (item,) = [], payloads(1)
    with server.database() as url, app_worker(url, folder):
        async with app_at(url, folder):
            await warm_up()
            for _ in range(WARM_UPS + times):
                await asyncio.sleep(PAUSE)
                call = app.call(nothing, item)
                taken.append(await milliseconds(call))
    return taken[WARM_UPS:]
