"""python -m benchmarks.profile [ITEMS]: where each microsecond of an item goes, phase by phase.

Each phase is done alone and for all items, in the sizes in which a worker does it: what it takes by the
clock, what CPU this process spends and what CPU PostgreSQL's processes spend (all of them, so also that of
writing WAL and of checkpoints). In a worker the phases overlap, so the sums are more than a drain takes.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter, process_time

from batchline.engine.finalize import finalize_one
from batchline.engine.ingest import Source, ingest
from batchline.engine.objects import Objects
from batchline.engine.output import answered_line
from batchline.ids import new_id
from batchline.model import DEFAULT_TENANT, Completed, Item, Verdict
from batchline.store import migrate, spans
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from benchmarks import machine
from benchmarks.bench import Bench
from benchmarks.drain import LEASE
from benchmarks.inputs import a_batch, write_jsonl
from benchmarks.match import Meter, plain_server
from benchmarks.server import Server

# As `worker/claimer.py` and `config.py` have them.
_CLAIM = 2_000
_SETTLE = 500


class Profile:
    def __init__(self, server: Server, items: int) -> None:
        self._server = server
        self._items = items
        self.rows: list[tuple[str, float, float, float, float]] = []

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[None]:
        meter = Meter(self._server)
        begun, cpu = perf_counter(), process_time()
        yield
        wall, own = perf_counter() - begun, process_time() - cpu
        wal, server = meter.spent()
        a_million = 1e6 / self._items
        self.rows.append((name, wall * a_million, own * a_million, server * a_million, wal / self._items))


async def profile(bench: Bench, server: Server, items: int) -> Profile:
    found = Profile(server, items)
    path = write_jsonl(bench.scratch / "profile.jsonl", lines=items, line_bytes=400)
    with server.database(migrated=False) as url:
        migrate.ensure(url)
        server.settle_down()
        async with Session(url, "profile") as session:
            worker = WorkerId(new_id(), "profile", LEASE)
            async with found.phase("accept"):
                source = Source(path.name, path)
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
                objects = Objects.at(bench.scratch / "profile-objects")
                await finalize_one(session, objects, worker, batch.id)
    return found


async def _run(item: Item) -> Verdict:
    return Completed(item, 200, answered_line(item, 200, item.idempotency_key, b"null"))


def main(items: int) -> None:
    with tempfile.TemporaryDirectory(prefix="batchline-profile-") as folder:
        # Without the server of the comparisons: this one has PostgreSQL's own defaults.
        bench = Bench(server=None, scratch=Path(folder), quick=False)  # type: ignore[arg-type]
        print(", ".join(f"{name}: {value}" for name, value in machine.describe(bench.scratch).items()))
        with plain_server(bench) as server:
            found = asyncio.run(profile(bench, server, items))
    print(f"\n{items:,} items, microseconds an item\n")
    print("| phase | clock | CPU, worker | CPU, PostgreSQL | WAL bytes |\n| --- | --- | --- | --- | --- |")
    for name, wall, own, theirs, wal in found.rows:
        print(f"| {name} | {wall:.1f} | {own:.1f} | {theirs:.1f} | {wal:.0f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
