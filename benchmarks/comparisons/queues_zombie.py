"""A late report of a worker that was blocked for longer than its lease: what happens to the item?

One item, two workers. The first call of the handler blocks the whole process for 45 seconds: no heartbeat, no
renewal. If the second worker takes over the item meanwhile, its handler runs equally long without blocking
anything, so it still runs when the first worker wakes up and reports. Two seconds after that report, a query
from outside checks whether the item counts as finished although the second worker runs it, and at the end how
many outcomes it has.

With Batchline the first correct answer counts, whichever worker reports it: the late report is accepted, the
second worker's is dropped, and there is one result. With a queue that matches on the id alone, the late
report deletes the row that the second worker is running, and nothing would notice if that one failed. If no
worker takes over in time, the item waits for the worker that has it.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

from benchmarks.bench import Bench
from benchmarks.contest import Figure, at_most
from benchmarks.contestants.roster import BATCHLINE
from benchmarks.match import Player, accept, database, driving, plain_server, players, until_finished
from benchmarks.server import BenchServer

_REPORTED_AFTER = 2.0


async def compare(bench: Bench) -> list[Figure]:
    # A quick run ends before any worker could take over.
    seconds = bench.size(45, quick=3)
    present, missing = players(bench)
    with plain_server(bench.scratch) as server:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(present)))
        turns = [asyncio.to_thread(_block, bench, server, player, seconds) for player in present]
        reported = await asyncio.gather(*turns)
    rows = [
        f"| {player.label} | {what[1]} | {what[2]} |" for player, what in zip(present, reported, strict=True)
    ]
    table = "\n".join(
        [
            "| contestant | calls of the handler | two seconds after the late report |",
            "| --- | --- | --- |",
            *rows,
        ]
    )
    outcomes, _, _ = reported[0]
    note = "\n\n".join(part for part in (table, missing) if part)
    return [Figure("outcomes of the item at the end, Batchline", outcomes, "", at_most(1), [], note)]


def _block(bench: Bench, server: BenchServer, player: Player, seconds: float) -> tuple[int, int, str]:
    """Return outcomes at the end, calls of the handler, and the state after the late report."""
    with (
        tempfile.NamedTemporaryFile(prefix="notes-", dir=bench.scratch) as file,
        database(server, player) as url,
    ):
        notes = Path(file.name)
        accept(server, player, url, 1)
        settings = ("block", seconds, notes, 50)
        with (
            driving(player, "work", url, *settings, 1) as first,
            driving(player, "work", url, *settings, 2) as second,
        ):
            first.go()
            _wait(lambda: "begin" in notes.read_text(), 30)
            # Start at once: some contestants look for abandoned items only every half minute.
            second.go()
            _wait(lambda: "end" in notes.read_text(), seconds + 30)
            time.sleep(_REPORTED_AFTER)
            calls = notes.read_text().count("begin")
            seen = _seen(calls, until_finished(player, url, 0) is not None)
            _wait(lambda: notes.read_text().count("end") == notes.read_text().count("begin"), 2 * seconds)
            time.sleep(_REPORTED_AFTER)
            outcomes = _outcomes(player, url)
    return outcomes, calls, seen


def _seen(calls: int, finished: bool) -> str:
    match calls > 1, finished:
        case True, True:
            return "finished by the late report while the second worker runs it"
        case True, False:
            return "still the second worker's; the late report was refused"
        case False, True:
            return "finished; no worker had taken it over"
        case _:
            return "unfinished; no worker had taken it over"


def _outcomes(player: Player, url: str) -> int:
    if player.entrant.module != BATCHLINE.module:
        return 0
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM batchline.results").fetchone()
    assert row is not None
    return int(row[0])


def _wait(fact: Callable[[], bool], limit: float) -> None:
    """Wait until `fact` is true, at most `limit` seconds."""
    deadline = time.monotonic() + limit
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.1)
