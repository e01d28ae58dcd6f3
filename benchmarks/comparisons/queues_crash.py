"""Recovery from a killed worker, against other queues on PostgreSQL: time, and items that ran twice.

300 items of one second each, 50 at once per worker. The worker is killed (SIGKILL) half a second after its
101st call of a handler, so that items are in flight. A second worker starts at once, in a process that has
already imported everything. The time is from there until no item is unfinished, with a limit of 140 seconds.
Handlers record each call in a file, which survives the kill: an item with two calls ran twice. Every
contestant uses its default settings for recovery. DBOS's second worker has the first one's name, as its
documentation requires. All sleep most of the time, so all rounds of all contestants run side by side, each
with a separate database on one server.

Batchline's second worker is on the same machine and sees that the first one's process is gone. On another
machine it would wait for the lease to expire, at most 15 seconds. Besides the items in flight, items also run
again if their handler had returned but their result was not yet settled at the kill: a worker collects
results for up to 40 ms and commits them together. Each runs again with the same Idempotency-Key, so an
upstream that supports it replays its answer. Here the kill comes half a second into a second of sleep, so
there are none.
"""

import asyncio
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, at_most
from benchmarks.match import Player, accept, database, driving, plain_server, players, until_finished
from benchmarks.server import BenchServer

_CONCURRENCY = 50
_LONGEST_START = 120.0
# Batchline's lease, the five seconds of work that are left after it, and a margin.
_RECOVERED_WITHIN = 15 + 8


@dataclass(frozen=True, slots=True)
class _Recovery:
    # None: not within the limit.
    seconds: float | None
    twice: int


async def compare(bench: Bench) -> list[Figure]:
    items = bench.size(300, quick=100)
    limit = bench.size(140, quick=25)
    present, missing = players(bench)
    with plain_server(bench.scratch) as server:
        turns = [
            asyncio.to_thread(_crash, bench, server, player, items, limit)
            for _ in range(bench.rounds)
            for player in present
        ]
        # One thread per turn; the loop's default pool may have fewer.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(turns)))
        done = await asyncio.gather(*turns)
    recoveries = {player.label: done[nth :: len(present)] for nth, player in enumerate(present)}
    return _figures(recoveries, items, limit, missing)


def _crash(bench: Bench, server: BenchServer, player: Player, items: int, limit: float) -> _Recovery:
    with (
        tempfile.NamedTemporaryFile(prefix="notes-", dir=bench.scratch) as file,
        database(server, player) as url,
    ):
        notes = Path(file.name)
        accept(server, player, url, items)
        settings = ("sleep", 1, notes, _CONCURRENCY, 0)
        with (
            driving(player, "work", url, *settings) as first,
            driving(player, "work", url, *settings) as second,
        ):
            first.go()
            _wait_for_calls(notes, bench.size(2 * _CONCURRENCY, quick=_CONCURRENCY) + 1)
            time.sleep(0.5)
            first.kill()
            second.go()
            seconds = until_finished(player, url, limit)
        calls = Counter(notes.read_text().split())
    return _Recovery(seconds, sum(1 for count in calls.values() if count > 1))


def _wait_for_calls(notes: Path, count: int) -> None:
    deadline = time.monotonic() + _LONGEST_START
    while len(notes.read_text().split()) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} handlers were not called within {_LONGEST_START:g} s")
        time.sleep(0.02)


def _figures(recoveries: dict[str, list[_Recovery]], items: int, limit: float, missing: str) -> list[Figure]:
    seconds = [
        Series(label, "s", [limit if recovery.seconds is None else recovery.seconds for recovery in turns])
        for label, turns in recoveries.items()
    ]
    twice = [
        Series(label, "items", [float(recovery.twice) for recovery in turns])
        for label, turns in recoveries.items()
    ]
    never = [
        label for label, turns in recoveries.items() if any(recovery.seconds is None for recovery in turns)
    ]
    note = f"Not finished within {limit:g} s, so the limit is listed: {', '.join(never)}." if never else ""
    return [
        Figure(
            "seconds from the second worker's start to the last item, Batchline",
            seconds[0].median,
            "s",
            at_most(_RECOVERED_WITHIN),
            seconds,
            "\n\n".join(part for part in (note, missing) if part),
        ),
        Figure(
            f"items of {items} that ran twice, Batchline",
            twice[0].maximum,
            "",
            at_most(_CONCURRENCY),
            twice,
            f"{_CONCURRENCY} were in flight; items that were finished but not settled run again too.",
        ),
    ]
