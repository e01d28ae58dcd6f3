"""Running an edited file, against ingesting a new file and writing the output of as many results.

The database holds one earlier batch with all its answers. A thousandth of its lines is changed. The edited
file is ingested, a batch is created that reuses the answers, the changed lines are claimed and settled, and
the output is written. Both files are hashed for the first time. The other contestant ingests the same file,
and writes the output of the earlier batch. Each turn has a separate copy of the database.
"""

from pathlib import Path
from time import perf_counter
from uuid import UUID

from psycopg import sql

from batchline.batches import creation, reuse
from batchline.batches.finalize import finalize_one
from batchline.files.ingest import InputSource, ingest
from batchline.files.objects import Objects
from batchline.model import DEFAULT_TENANT, Batch, Completed, RunSettings
from batchline.model.ids import new_id
from batchline.store import migrate, spans
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_most, ratio
from benchmarks.drain import LEASE
from benchmarks.inputs import OUTPUT, USAGE, a_batch, write_jsonl
from benchmarks.server import execute, vacuum

_UPSTREAM = "http://model.example"
_CLAIM = 500
# The answer part of an output line.
_ANSWER = OUTPUT[OUTPUT.index(b',"response":') :].decode()
_EARLIER = sql.SQL("SELECT id FROM batchline.batches")


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(1_000_000, quick=5_000)
    changed = lines // 1000
    path = write_jsonl(bench.scratch / "reuse.jsonl", lines=lines)
    edited = _edited(path, lines // changed)
    template = bench.server.template("reuse", lambda url: None)
    await _fill(bench, template, path)

    async def rerun() -> float:
        with bench.server.database(migrated=False, template=template) as url:
            bench.server.settle_down()
            begun = perf_counter()
            sent = await _rerun(url, edited, bench.scratch / "objects")
            taken = perf_counter() - begun
        assert sent == changed, f"{sent} lines were sent instead of {changed}"
        return taken

    async def fresh() -> float:
        with bench.server.database(migrated=False, template=template) as url:
            ((batch_id,),) = execute(url, _EARLIER)
            bench.server.settle_down()
            begun = perf_counter()
            await _ingest(url, edited)
            await _write(url, batch_id, bench.scratch / "objects")
            return perf_counter() - begun

    ours, usual = await alternate(
        bench.rounds,
        Contestant("edited file with reuse", "s", rerun),
        Contestant("ingest and output", "s", fresh),
    )
    for each in (path, edited):
        each.unlink()
    return [ratio(f"time for {lines:,} lines with {changed:,} changed", ours, usual, at_most(3))]


def _edited(path: Path, every: int) -> Path:
    """A copy of the file in which one of `every` lines is different."""
    edited = path.with_name("edited.jsonl")
    with path.open() as before, edited.open("w") as after:
        after.writelines(
            line.replace("matters little", "matters much", 1) if nth % every == 0 else line
            for nth, line in enumerate(before)
        )
    return edited


async def _fill(bench: Bench, template: str, path: Path) -> None:
    """Store the earlier batch, with an answer to every line, ready to be finalized."""
    url = bench.server.url_of(template)
    migrate.ensure(url)
    file_id = await _ingest(url, path)
    async with Session(url, "benchmark") as session:
        batch = await a_batch(session, file_id, _UPSTREAM)
    execute(
        url,
        sql.SQL("""
            WITH lane AS (
                UPDATE batchline.lanes SET next = total, drained = true WHERE batch_id = %(batch)s
                    RETURNING id, file_no, lane_no
            ),
            batch AS (
                UPDATE batchline.batches SET completed = total, finalizing_at = now() WHERE id = %(batch)s
            )
            INSERT INTO batchline.results
                (lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens,
                output_tokens, output)
            SELECT
                lane.id, line_no, ordinal, 'completed', 200, 1, 0, 0,
                '{"id":"batch_req_' || %(hex)s || '_' || line_no || '","custom_id":"' || custom_id || '"'
                    || %(answer)s
            FROM lane
            JOIN batchline.lines USING (file_no, lane_no)
            ORDER BY line_no
        """),
        {"batch": batch.id, "hex": batch.id.hex, "answer": _ANSWER},
    )
    vacuum(url)


async def _ingest(url: str, path: Path) -> UUID:
    sources = [InputSource(path.name, path)]
    return (await ingest(url, sources, tenant=DEFAULT_TENANT, filename=path.name)).id


async def _rerun(url: str, path: Path, folder: Path) -> int:
    """What `run` does with an edited file. Returns how many lines were sent."""
    file_id, settings = await _ingest(url, path), RunSettings(upstream=_UPSTREAM)
    async with Session(url, "benchmark") as session:
        plan = await reuse.plan(session, DEFAULT_TENANT, file_id, settings)
        await reuse.prepare(session, plan)
        batch = await creation.create(
            session, tenant=DEFAULT_TENANT, file_id=file_id, window="24h", settings=settings, plan=plan
        )
        sent = await _send(session, batch)
    await _write(url, batch.id, folder)
    return sent


async def _send(session: Session, batch: Batch) -> int:
    worker, sent = WorkerId(new_id(), "benchmark", LEASE), 0
    while claims := await spans.claim(session, worker, Scope(None, batch.id), _CLAIM):
        items = await spans.fetch(session, worker.id, claims)
        await spans.settle(session, worker.id, [Completed(item, 200, OUTPUT, USAGE) for item in items])
        sent += len(items)
    return sent


async def _write(url: str, batch_id: UUID, folder: Path) -> None:
    async with Session(url, "benchmark") as session:
        worker = WorkerId(new_id(), "benchmark", LEASE)
        assert await finalize_one(session, Objects.at(folder), worker, batch_id) is not None
