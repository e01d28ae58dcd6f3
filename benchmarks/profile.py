"""Profile of an item's life: `python -m benchmarks.profile [ITEMS] [--report docs/performance.md]`.

Measures the life of ITEMS items in three ways, on PostgreSQL with its default settings:

- each phase alone, for all items, in the sizes that a worker uses: elapsed time, CPU of this process, and CPU
  of all PostgreSQL processes, which includes writing WAL and checkpoints. In a worker the phases overlap, so
  the sums are more than a drain takes;
- the WAL of each phase by kind of record, next to that of PgQueuer with fewer items;
- where a whole worker spends its CPU while it drains a batch with a handler that does nothing.

With --report, the tables are written into the page, between its marks.
"""

import argparse
import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time

import uvloop

from batchline.batches.finalize import finalize_one
from batchline.batches.output import answered_line
from batchline.config.settings import WorkerSettings
from batchline.files.ingest import InputSource, ingest
from batchline.files.objects import Objects
from batchline.model import DEFAULT_TENANT, Completed, Item, Verdict
from batchline.model.ids import new_id
from batchline.store import migrate, spans
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from batchline.worker.worker import Worker
from benchmarks import machine, marked, wal
from benchmarks.contestants.batchline import HandlerExecutor, as_lines
from benchmarks.contestants.environments import Unavailable, python_of
from benchmarks.contestants.protocol import payloads
from benchmarks.contestants.roster import PGQUEUER
from benchmarks.drain import LEASE
from benchmarks.inputs import a_batch
from benchmarks.match import Meter, Player, accept, database, drain, plain_server
from benchmarks.sampling import Sampler, Spot
from benchmarks.server import BenchServer
from benchmarks.wal import Record

# The same values as in `worker/claimer.py` and `config/settings.py`.
_CLAIM = 2_000
_SETTLE = 500
# The kernel samples about every four milliseconds: one batch alone would yield only a few hundred samples.
_BATCHES = 3
# Few enough that no checkpoint, which would add page images, happens during its drain.
_PGQUEUER_ITEMS = 20_000
# Smaller rows are summed up.
_MIN_BYTES = 1.0
_MIN_SHARE = 0.015

_WAL_PHASES = ("accept", "claim", "settle", "finalize")
_MEANS = {
    "Btree/DEDUP": "entries of one key merged",
    "Btree/INSERT_LEAF": "an index entry",
    "Btree/INSERT_POST": "an index entry among others of its key",
    "Btree/INSERT_UPPER": "an entry of a page in the page above",
    "Btree/SPLIT_L": "a full index page is split",
    "Btree/SPLIT_R": "a full index page is split",
    "Heap/DELETE": "a row deleted",
    "Heap/HOT_UPDATE": "a row's new version on its own page",
    "Heap/INSERT": "a row",
    "Heap/INSERT+INIT": "the first row of a page",
    "Heap/LOCK": "a row locked",
    "Heap/UPDATE": "a row's new version on another page",
    "Heap/UPDATE+INIT": "a row's new version, the first row of a page",
    "Heap2/MULTI_INSERT": "rows of COPY, many at once",
    "Heap2/MULTI_INSERT+INIT": "rows of COPY, a whole page",
    "Heap2/PRUNE_ON_ACCESS": "dead versions removed from a page",
    "Sequence/LOG": "numbers of a sequence reserved",
    "Transaction/COMMIT": "a commit",
}


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: elapsed and CPU microseconds per item, and the WAL records of all items."""

    name: str
    clock: float
    own: float
    server: float
    records: list[Record]


class Profile:
    def __init__(self, server: BenchServer, items: int) -> None:
        self._server = server
        self._items = items
        self.phases: list[Phase] = []

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        meter, position = Meter(self._server), wal.position(self._server)
        begun, cpu = perf_counter(), process_time()
        yield
        clock, own = perf_counter() - begun, process_time() - cpu
        _, server = meter.spent()
        records = wal.read(self._server, position, wal.position(self._server))
        micros = 1e6 / self._items
        self.phases.append(Phase(name, clock * micros, own * micros, server * micros, records))


@dataclass(frozen=True, slots=True)
class ProfiledDrain:
    """A whole worker: CPU microseconds per item, and the samples."""

    cpu: float
    spots: Counter[Spot]


async def by_phase(scratch: Path, server: BenchServer, path: Path, items: int) -> list[Phase]:
    found = Profile(server, items)
    with server.database(migrated=False) as url:
        migrate.ensure(url)
        server.settle_down()
        async with Session(url, "profile") as session:
            worker = WorkerId(new_id(), "profile", LEASE)
            async with found.phase("accept"):
                source = InputSource(path.name, path)
                file = await ingest(url, [source], tenant=DEFAULT_TENANT, filename=path.name)
                batch = await a_batch(session, file.id)
            claims = []
            async with found.phase("claim"):
                while claimed := await spans.claim(session, worker, Scope(), _CLAIM):
                    claims.append(claimed)
            fetched: list[Item] = []
            async with found.phase("fetch"):
                for claimed in claims:
                    fetched += await spans.fetch(session, worker.id, claimed)
            verdicts: list[Verdict] = []
            async with found.phase("run (nothing but an answer's line)"):
                verdicts += [await _run(item) for item in fetched]
            async with found.phase("settle"):
                for start in range(0, len(verdicts), _SETTLE):
                    await spans.settle(session, worker.id, verdicts[start : start + _SETTLE])
            async with found.phase("finalize"):
                await finalize_one(session, Objects.at(scratch / "objects"), worker, batch.id)
    return found.phases


async def _run(item: Item) -> Verdict:
    return Completed(item, 200, answered_line(item, 200, item.idempotency_key, b"null"))


async def by_location(scratch: Path, server: BenchServer, path: Path, items: int) -> ProfiledDrain:
    """Sample a worker in this process, from its start until some batches have ended."""

    async def nothing(nth: int) -> None:
        pass

    with server.database() as url:
        file = await ingest(url, [InputSource(path.name, path)], tenant=DEFAULT_TENANT, filename=path.name)
        async with Session(url, "profile") as session:
            for _ in range(_BATCHES):
                await a_batch(session, file.id)
        objects = Objects.at(scratch / "drained")
        worker = Worker(url, HandlerExecutor(nothing), objects, WorkerSettings(drain=True), Scope())
        cpu = process_time()
        with Sampler() as sampler:
            await worker.run()
        return ProfiledDrain(1e6 * (process_time() - cpu) / (_BATCHES * items), sampler.spots)


def of_pgqueuer(server: BenchServer, items: int) -> dict[str, list[Record]]:
    player = Player(PGQUEUER, python_of(PGQUEUER, make=True))
    with database(server, player) as url:
        server.settle_down()
        positions = [wal.position(server)]
        accept(server, player, url, items)
        positions.append(wal.position(server))
        drain(server, player, url, items, 1)
        positions.append(wal.position(server))
    names = ("PgQueuer, accept", "PgQueuer, drain")
    return {
        name: wal.read(server, *between) for name, between in zip(names, pairwise(positions), strict=True)
    }


def phases_table(phases: Sequence[Phase], items: int) -> str:
    head = ["phase", "clock", "CPU, worker", "CPU, PostgreSQL", "WAL bytes"]
    rows = [
        [
            phase.name,
            *(f"{value:.1f}" for value in (phase.clock, phase.own, phase.server)),
            f"{sum(record.size + record.images for record in phase.records) / items:.0f}",
        ]
        for phase in phases
    ]
    return _table(head, rows)


def wal_table(columns: Mapping[str, tuple[list[Record], int]]) -> str:
    """Table of bytes per item, one row per kind of record. Columns have their records and number of items."""
    sizes = {
        name: {record.kind: record.size / items for record in records}
        for name, (records, items) in columns.items()
    }
    kinds = sorted(
        {kind for column in sizes.values() for kind, size in column.items() if size >= _MIN_BYTES},
        key=lambda kind: -max(column.get(kind, 0.0) for column in sizes.values()),
    )
    rows = [
        [f"`{kind}`", _MEANS.get(kind, ""), *(_bytes(column.get(kind, 0.0)) for column in sizes.values())]
        for kind in kinds
    ]
    others = [sum(size for kind, size in column.items() if kind not in kinds) for column in sizes.values()]
    images = [wal.images(records) / items for records, items in columns.values()]
    counts = [sum(record.count for record in records) / items for records, items in columns.values()]
    wholes = [sum(column.values()) + image for column, image in zip(sizes.values(), images, strict=True)]
    rows += [
        ["others", "", *map(_bytes, others)],
        ["page images", "whole pages, at their first change after a checkpoint", *map(_bytes, images)],
        ["**all**", "", *(f"**{whole:.1f}**" for whole in wholes)],
        ["records per item", "", *(f"{count:.2f}" for count in counts)],
    ]
    return _table(["record", "what it is", *columns], rows)


def worker_table(drained: ProfiledDrain) -> str:
    total = sum(drained.spots.values())
    rows = [
        [spot.role, spot.location, spot.library, f"{100 * share:.0f} %", f"{share * drained.cpu:.2f}"]
        for spot, share in _shares(drained.spots, total)
    ]
    small = 1 - sum(share for _, share in _shares(drained.spots, total))
    rows.append(["others", "", "", f"{100 * small:.0f} %", f"{small * drained.cpu:.2f}"])
    rows.append(["**all**", "", "", "", f"**{drained.cpu:.2f}**"])
    return _table(["role", "in", "calling", "share", "µs per item"], rows)


def _shares(spots: Counter[Spot], total: int) -> Iterator[tuple[Spot, float]]:
    for spot, count in spots.most_common():
        if count / total >= _MIN_SHARE:
            yield spot, count / total


def _bytes(value: float) -> str:
    return "" if value < 0.05 else f"{value:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def profile(scratch: Path, server: BenchServer, items: int) -> dict[str, str]:
    """Create the tables, by the names of their marks on the page."""
    # The same items as in the contests, so that the figures are comparable with `queues`.
    path = scratch / "profile.jsonl"
    path.write_bytes(as_lines(payloads(items)))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        phases = runner.run(by_phase(scratch, server, path, items))
        drained = runner.run(by_location(scratch, server, path, items))
    columns = {phase.name: (phase.records, items) for phase in phases if phase.name in _WAL_PHASES}
    few = min(items, _PGQUEUER_ITEMS)
    try:
        columns |= {name: (records, few) for name, records in of_pgqueuer(server, few).items()}
        missing = ""
    except Unavailable as error:
        missing = f"\n\n{error}"
    return {
        "phases": phases_table(phases, items),
        "wal": wal_table(columns) + missing,
        "worker": worker_table(drained),
    }


def _facts(scratch: Path, items: int, command: str) -> str:
    made = f"{items:,} items, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, by `{command}`."
    where = ", ".join(f"{name}: {value}" for name, value in machine.describe(scratch).items())
    # Other processes used more than half a core.
    busy = " The machine was busy: CPU and WAL are still valid, elapsed times are not."
    return f"{made} {where}.{busy if os.getloadavg()[0] > 0.5 else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile")
    parser.add_argument("items", nargs="?", type=int, default=200_000, metavar="ITEMS")
    parser.add_argument("--report", type=Path, metavar="FILE.md", help="a page with marks for the tables")
    options = parser.parse_args()
    report = f" --report {options.report}" if options.report else ""
    with tempfile.TemporaryDirectory(prefix="batchline-profile-") as folder:
        scratch = Path(folder)
        facts = _facts(scratch, options.items, f"python -m benchmarks.profile {options.items}{report}")
        with plain_server(scratch, **wal.KEEP) as server:
            tables = profile(scratch, server, options.items)
    parts = {f"profile {name}": table for name, table in {"facts": facts, **tables}.items()}
    for name, content in parts.items():
        print(f"{name}\n\n{content}\n")
    if options.report is not None:
        page = options.report.read_text()
        for name, content in parts.items():
            page = marked.renewed(page, name, content)
        options.report.write_text(page)


if __name__ == "__main__":
    main()
