"""Stages that collect the results of another one, when everything else has ended."""

import msgspec

from batchline.model import Batch, Completed, Item, RunSettings
from batchline.model.batch import Collecting
from batchline.model.emission import Emission
from batchline.model.ids import new_id
from batchline.store import batches, doctor, feeding, spans
from batchline.store.batches import NewBatch
from batchline.store.session import Session
from tests.support.builders import a_worker, completed, failed, finalize, kill, read, sql, take

READ, PARSE, MERGE, REPORT = "python:read", "python:parse", "python:merge", "python:report"


async def a_pipeline(db: Session, collects: tuple[Collecting, ...], lines: int = 3) -> Batch:
    """A batch over `read`, whose other stages are fed."""
    file_id, urls = new_id(), [READ, PARSE, MERGE, REPORT]
    await sql(
        db,
        """
        WITH file AS (
            INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count)
            VALUES (%(file)s, 'default', 'batch', 'read', 0, %(lines)s)
            RETURNING no
        ),
        part AS (
            INSERT INTO batchline.file_lanes (file_no, lane_no, model, url, total)
            SELECT no, nth - 1, url, url, CASE WHEN nth = 1 THEN %(lines)s ELSE 0 END
            FROM file CROSS JOIN unnest(%(urls)s::text[]) WITH ORDINALITY AS stage (url, nth)
        )
        INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
        SELECT no, 0, nth - 1, nth, nth::text, 'null'
        FROM file CROSS JOIN generate_series(1, %(lines)s) AS nth
        """,
        file=file_id,
        lines=lines,
        urls=urls,
    )
    settings = RunSettings(stages=tuple(urls), collects=collects)
    return await batches.create(db, NewBatch(new_id(), "default", file_id, "24h", None, settings))


def emitting(item: Item, *keys: bytes) -> Completed:
    emitted = tuple(Emission(PARSE, key, b'"page"') for key in keys)
    return Completed(item, 200, b"{}", emitted=emitted)


async def healthy(db: Session, batch: Batch) -> None:
    assert (await doctor.examine(db, batch_id=batch.id)).findings == ()


async def test_a_stage_collects_when_all_others_have_ended(db: Session) -> None:
    batch = await a_pipeline(db, (Collecting(REPORT, PARSE),))
    worker = a_worker()
    first, second, third = await take(db, worker)
    await spans.settle(db, worker.id, [emitting(first, b"a"), failed(second)])
    (page,) = await take(db, worker)
    (settled,) = await spans.settle(db, worker.id, [completed(page)])
    assert not settled.finished
    assert await take(db, worker) == []
    (settled,) = await spans.settle(db, worker.id, [completed(third)])
    assert not settled.finished, "the report is to be made"
    await healthy(db, batch)
    (report,) = await take(db, worker)
    assert (report.claim.url, report.body, report.line_no) == (REPORT, b"null", 5)
    (settled,) = await spans.settle(db, worker.id, [completed(report)])
    assert settled.finished
    ended = await finalize(db, worker, batch)
    assert (ended.total, ended.completed, ended.failed) == (5, 4, 1)
    await healthy(db, batch)


async def test_a_stage_collects_completed_items_key_by_key(db: Session) -> None:
    batch = await a_pipeline(db, (Collecting(MERGE, PARSE, by_key=True), Collecting(REPORT, MERGE)))
    worker = a_worker()
    first, second, third = await take(db, worker)
    verdicts = [emitting(first, b"x", b"y"), emitting(second, b"x"), emitting(third, b"z")]
    await spans.settle(db, worker.id, verdicts)
    pages = await take(db, worker)
    assert [page.custom_id for page in pages] == [b"x", b"y", b"x", b"z"]
    await spans.settle(db, worker.id, [*map(completed, pages[:3]), failed(pages[3])])
    merges = await take(db, worker)
    numbers = [page.line_no for page in pages]
    assert [(each.custom_id, msgspec.json.decode(each.body)) for each in merges] == [
        (b"x", [numbers[0], numbers[2]]),
        (b"y", [numbers[1]]),
    ]
    await spans.settle(db, worker.id, [completed(merges[0]), failed(merges[1])])
    (report,) = await take(db, worker)
    assert report.claim.url == REPORT
    await spans.settle(db, worker.id, [completed(report)])
    await finalize(db, worker, batch)
    await healthy(db, batch)


async def test_a_stage_without_anything_to_collect_is_passed_over(db: Session) -> None:
    batch = await a_pipeline(db, (Collecting(MERGE, PARSE, by_key=True),), lines=1)
    worker = a_worker()
    (item,) = await take(db, worker)
    (settled,) = await spans.settle(db, worker.id, [completed(item)])
    assert settled.finished
    await finalize(db, worker, batch)
    await healthy(db, batch)


async def test_a_cancelled_batch_collects_nothing(db: Session) -> None:
    batch = await a_pipeline(db, (Collecting(REPORT, READ),), lines=1)
    worker = a_worker()
    (item,) = await take(db, worker)
    assert await batches.close(db, batch.id, "cancel")
    (settled,) = await spans.settle(db, worker.id, [completed(item)])
    assert settled.finished
    assert (await read(db, batch)).total == 1


async def test_two_workers_that_settle_the_last_items_collect_once(db: Session) -> None:
    """A second settle of the same item, by a worker that was thought dead, collects nothing."""
    batch = await a_pipeline(db, (Collecting(REPORT, READ),), lines=1)
    dead, alive = a_worker(), a_worker()
    (item,) = await take(db, dead)
    await kill(db, dead)
    (again,) = await take(db, alive)
    await spans.settle(db, alive.id, [completed(again)])
    await spans.settle(db, dead.id, [completed(item)])
    assert (await read(db, batch)).total == 2
    assert len(await take(db, alive)) == 1


async def test_a_released_batch_collects(db: Session) -> None:
    batch = await a_pipeline(db, (Collecting(REPORT, PARSE),), lines=0)
    await sql(db, "UPDATE batchline.batches SET accepting = true WHERE id = %(batch)s", batch=batch.id)
    worker = a_worker()
    assert await feeding.append(db, batch.id, PARSE, [(b"k", b"1"), (b"k", b"2")]) == 0
    await spans.settle(db, worker.id, [completed(item) for item in await take(db, worker)])
    assert await take(db, worker) == []
    assert await feeding.release(db, batch.id)
    (report,) = await take(db, worker)
    assert report.claim.url == REPORT
    await spans.settle(db, worker.id, [completed(report)])
    assert (await finalize(db, worker, batch)).completed == 3
    await healthy(db, batch)
