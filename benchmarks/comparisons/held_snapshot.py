"""Draining a batch while another session holds a snapshot open, against the same without it.

A backup or an analyst's query holds a snapshot for minutes or hours, and PostgreSQL then keeps every old
version of every row. A REPEATABLE READ transaction holds one here from before the first claim until after the
last settle. Each connection claims 50 lines and settles a random 50 of the 200 it holds. The other queues
drain with one worker each, with as many items as take them about a minute.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from batchline.store.session import Session
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, Series, alternate, at_least, ratio
from benchmarks.contestants.roster import OTHERS, PGQUEUER
from benchmarks.drain import CursorAndSpans, Drained
from benchmarks.drain import drain as drain_chunks
from benchmarks.inputs import a_batch, fill_file
from benchmarks.match import Player, accept, database, drain, plain_server, players
from benchmarks.server import BenchServer

_CHUNK = 50
# As many as take each about a minute without a snapshot.
_ITEMS = {PGQUEUER.module: 400_000, "oban": 40_000}


@contextmanager
def snapshot(url: str, held: bool) -> Iterator[None]:
    if not held:
        yield
        return
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield


@dataclass(frozen=True, slots=True)
class _Curve:
    """The rate of a drain, and that of its last tenth to its first."""

    rate: float
    slope: float


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(1_000_000, quick=10_000)
    figures = []
    with bench.server.database() as url:
        file_id = fill_file(url, lines)
        for workers in (1, 2):
            curves: dict[bool, list[_Curve]] = {False: [], True: []}
            for nth in range(bench.rounds):
                for held in (False, True) if nth % 2 == 0 else (True, False):
                    async with Session(url, "benchmark") as session:
                        await a_batch(session, file_id)
                    bench.server.settle_down()
                    with snapshot(url, held):
                        curves[held].append(await _curve(url, workers))
            figures += _of_curves(f"{lines:,} lines in settles of {_CHUNK}, {workers} workers", curves)
    return [*figures, *await _others(bench)]


async def _curve(url: str, workers: int) -> _Curve:
    drained = await asyncio.gather(*(_drained(url) for _ in range(workers)))
    return _Curve(
        sum(one.items for one in drained) / max(sum(one.seconds) for one in drained),
        sum(one.tenth(9) for one in drained) / sum(one.tenth(0) for one in drained),
    )


async def _drained(url: str) -> Drained:
    async with Session(url, "benchmark") as session:
        return await drain_chunks(CursorAndSpans(session), _CHUNK)


def _of_curves(name: str, curves: dict[bool, list[_Curve]]) -> list[Figure]:
    free, held = curves[False], curves[True]
    return [
        ratio(
            f"{name}, held to free",
            Series("held", "lines/s", [curve.rate for curve in held]),
            Series("free", "lines/s", [curve.rate for curve in free]),
            at_least(0.9),
        ),
        ratio(
            f"{name}, last tenth to first, held to free",
            Series("held", "", [curve.slope for curve in held]),
            Series("free", "", [curve.slope for curve in free]),
            at_least(0.8),
        ),
    ]


async def _others(bench: Bench) -> list[Figure]:
    present, missing = players(bench, [entrant for entrant in OTHERS if entrant.module in _ITEMS])
    figures = []
    with plain_server(bench.scratch) as server:
        for player in present:
            items = bench.size(_ITEMS[player.entrant.module], quick=500)
            contestants = [_drains(server, player, items, held) for held in (False, True)]
            free, held = await alternate(bench.rounds, *contestants)
            figures.append(ratio(f"{player.label}, {items:,} items, held to free", held, free))
    return [*figures, Figure("other contestants", len(present), "", None, [], missing)]


def _drains(server: BenchServer, player: Player, items: int, held: bool) -> Contestant:
    async def measure() -> float:
        with database(server, player) as url:
            accept(server, player, url, items)
            with snapshot(url, held):
                return drain(server, player, url, items, 1).rate

    return Contestant("held" if held else "free", "items/s", measure)
