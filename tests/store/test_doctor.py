"""The doctor finds nothing on a sound database, whatever state it is in, and names every kind of damage."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from batchline.model import Batch
from batchline.model.ids import BATCH, FILE, show
from batchline.store import batches, doctor, spans
from batchline.store.doctor import Finding
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from tests.support.builders import (
    LATER,
    a_batch,
    a_database,
    a_pipeline,
    a_worker,
    completed,
    deferred,
    emitting,
    failed,
    finalize,
    kill,
    park,
    read,
    retry,
    run_to_the_end,
    sql,
    take,
    wipe,
)


async def half_run(db: Session, worker: WorkerId) -> Batch:
    """A batch with items in every state: completed, failed, held, parked, retrying, released, pending."""
    batch = await a_batch(db, {"small": 16, "large": 10})
    first = await take(db, worker, 10, Scope(batch_id=batch.id))
    await spans.settle(
        db,
        worker.id,
        [
            completed(first[0]),
            failed(first[1]),
            retry(first[2]),
            deferred(first[3], LATER),
            completed(first[7]),
        ],
    )
    (again,) = await take(db, worker, 1, Scope(batch_id=batch.id))
    await spans.settle(db, worker.id, [retry(again, LATER)])
    rest = await take(db, worker, 12, Scope(batch_id=batch.id))
    large = [item for item in rest if item.claim.model == "large"]
    await park(db, worker, large[:2], f"task of {batch.id}")
    await spans.release(db, worker.id, [large[-1].claim.span_id])
    return batch


async def findings(db: Session) -> list[Finding]:
    return list((await doctor.examine(db)).findings)


async def test_an_empty_database_is_clean(db: Session) -> None:
    report = await doctor.examine(db)
    assert report == doctor.Report(batches=0, lanes=0, spans=0, results=0, findings=(), notes=())


async def test_a_half_run_database_is_clean_and_is_counted(db: Session) -> None:
    worker = a_worker()
    batch = await half_run(db, worker)
    await half_run(db, worker)
    whole, part = await doctor.examine(db), await doctor.examine(db, batch_id=batch.id)
    assert (whole.findings, whole.notes) == ((), ())
    assert (whole.batches, whole.lanes, whole.results) == (2, 4, 6)
    assert part.findings == ()
    assert (part.batches, part.lanes, part.results, part.spans) == (1, 2, 3, whole.spans / 2)


@pytest.mark.parametrize("reason", ["cancel", "expire", "pause"])
async def test_closing_frozen_and_ended_batches_are_clean(db: Session, reason: str) -> None:
    worker = a_worker()
    batch = await half_run(db, worker)
    await batches.close(db, batch.id, reason)  # type: ignore[arg-type]
    assert await findings(db) == [], "after close"
    if reason == "pause":
        await batches.resume(db, batch.id)
        assert await findings(db) == [], "after resume"
        await sql(db, "UPDATE batchline.spans SET available_at = now()")
        await spans.release(db, worker.id)
        await run_to_the_end(db, worker)
    else:
        await spans.release(db, worker.id)
        assert await batches.conclude(db, batch.id), "nobody holds anything any more"
    assert await findings(db) == [], "while finalizing"
    await finalize(db, worker, batch)
    assert await findings(db) == [], "after the end"


async def test_every_moment_of_a_running_database_is_clean(database_url: str, db: Session) -> None:
    """Four workers run two batches, one of them fails often; the doctor looks on all the while."""

    async def work(batch_ids: set[object]) -> None:
        worker = a_worker()
        async with Session(database_url, worker.name) as db:
            while batch_ids:
                items = await take(db, worker, 37)
                verdicts = [
                    retry(i) if (i.line_no + i.claim.attempt) % 5 == 0 else completed(i) for i in items
                ]
                for start in range(0, len(verdicts), 10):
                    settled = await spans.settle(db, worker.id, verdicts[start : start + 10])
                    batch_ids -= {s.batch_id for s in settled if s.finished}

    running: set[object] = {(await a_batch(db, {"small": 400, "large": 300})).id for _ in range(2)}
    workers = asyncio.gather(*(work(running) for _ in range(4)))
    while not workers.done():
        assert await findings(db) == []
    await workers
    report = await doctor.examine(db)
    assert (report.findings, report.results, report.spans) == ((), 1400, 0)


@dataclass(frozen=True)
class Damage:
    """What is done to the database, and the check that must name it."""

    check: str
    damage: str
    # The half-run batch is brought here first.
    state: str = "running"

    @property
    def name(self) -> str:
        return f"{self.check}: {self.damage}"


SMALL = "(SELECT id FROM batchline.lanes WHERE model = 'small')"
LARGE = "(SELECT id FROM batchline.lanes WHERE model = 'large')"
RESULT = f"lane_id = {SMALL} AND line_no = (SELECT min(line_no) FROM batchline.results)"
SPAN = "id = (SELECT max(id) FROM batchline.spans)"
COUNTED = "batch_id, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens"
COUNTED_ON_BATCH = COUNTED.replace("batch_id", "id") + " FROM batchline.batches"

DAMAGES = [
    # The invariant.
    Damage("partition", "UPDATE batchline.cursors SET next = next + 1"),
    Damage("partition", f"UPDATE batchline.lanes SET next = next - 1, drained = false WHERE id = {SMALL}"),
    Damage("partition", f"DELETE FROM batchline.results WHERE {RESULT}"),
    Damage("partition", f"DELETE FROM batchline.spans WHERE {SPAN}"),
    Damage("span_range", f"UPDATE batchline.spans SET outstanding = '{{[90,95)}}' WHERE {SPAN}"),
    Damage("span_range", f"UPDATE batchline.spans SET outstanding = '{{[-2,1)}}' WHERE {SPAN}"),
    Damage(
        "span_overlap",
        f"INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt) "
        f"SELECT lane_id, batch_id, outstanding, attempt FROM batchline.spans WHERE {SPAN}",
    ),
    Damage(
        "result_outstanding",
        f"UPDATE batchline.spans SET outstanding = outstanding + '{{[0,1)}}' "
        f"WHERE id = (SELECT max(id) FROM batchline.spans WHERE lane_id = {SMALL})",
    ),
    Damage("result_range", f"UPDATE batchline.results SET ordinal = 99 WHERE {RESULT}"),
    Damage("result_line", f"UPDATE batchline.results SET ordinal = ordinal + 1 WHERE {RESULT}"),
    Damage("result_line", f"UPDATE batchline.results SET line_no = 999 WHERE {RESULT}"),
    Damage("drained", f"UPDATE batchline.lanes SET drained = NOT drained WHERE id = {SMALL}"),
    Damage("drained", f"UPDATE batchline.lanes SET drained = NOT drained WHERE id = {LARGE}"),
    Damage(
        "cursors",
        "INSERT INTO batchline.cursors (lane_id, next) SELECT lane_id, next - 1 FROM batchline.cursors",
    ),
    Damage("cursors", f"INSERT INTO batchline.cursors (lane_id, next) VALUES ({SMALL}, 1)"),
    # Spans and their batch.
    Damage("span_lane", f"UPDATE batchline.spans SET batch_id = gen_random_uuid() WHERE {SPAN}"),
    Damage("span_lane", f"UPDATE batchline.spans SET lane_id = 999 WHERE {SPAN}"),
    Damage("span_chunk", f"UPDATE batchline.spans SET task_id = 'chunk:gone' WHERE {SPAN}"),
    Damage(
        "span_frozen",
        "INSERT INTO batchline.spans (lane_id, batch_id, outstanding) SELECT id, batch_id, '{[9,10)}'"
        " FROM batchline.lanes",
        "frozen",
    ),
    # Lanes and their file.
    Damage("lane_open", f"UPDATE batchline.lanes SET open = false WHERE id = {LARGE}"),
    Damage("lane_open", f"UPDATE batchline.lanes SET open = true WHERE id = {LARGE}", "cancelling"),
    Damage("lane_open", f"UPDATE batchline.lanes SET open = true WHERE id = {LARGE}", "paused"),
    Damage("lane_total", f"UPDATE batchline.lanes SET total = total + 1, drained = false WHERE id = {SMALL}"),
    Damage("lane_total", "UPDATE batchline.lanes SET lane_no = 7"),
    Damage("batch_total", "UPDATE batchline.batches SET total = total + 1"),
    Damage("batch_total", f"DELETE FROM batchline.lanes WHERE id = {LARGE}"),
    Damage("batch_file", "DELETE FROM batchline.files"),
    Damage("file_lines", "UPDATE batchline.files SET line_count = line_count + 1"),
    Damage("file_lines", "DELETE FROM batchline.lines WHERE ordinal = 9"),
    Damage("file_lanes", "DELETE FROM batchline.lines WHERE ordinal = 9"),
    Damage("file_lanes", "UPDATE batchline.lines SET ordinal = 99 WHERE ordinal = 9"),
    Damage("file_lanes", "DELETE FROM batchline.file_lanes WHERE lane_no = 1"),
    Damage("file_numbers", "UPDATE batchline.lines SET line_no = 26 WHERE ordinal = 9"),
    # Counters.
    Damage("counters", "UPDATE batchline.counters SET completed = completed + 1"),
    Damage("counters", "UPDATE batchline.counters SET failed = failed + 1, completed = completed - 1"),
    Damage("counters", "UPDATE batchline.counters SET input_tokens = input_tokens - 1"),
    Damage("counters", "UPDATE batchline.counters SET output_tokens = 0"),
    Damage("counters", "DELETE FROM batchline.counters"),
    Damage(
        "counters", f"INSERT INTO batchline.counters ({COUNTED}) SELECT {COUNTED} FROM batchline.counters"
    ),
    Damage("counters", f"INSERT INTO batchline.counters ({COUNTED}) SELECT {COUNTED_ON_BATCH}", "frozen"),
    Damage("counters", f"UPDATE batchline.results SET outcome = 'failed' WHERE {RESULT}"),
    Damage("counters", f"DELETE FROM batchline.results WHERE {RESULT}", "frozen"),
    # Counts by cause.
    Damage("causes", "UPDATE batchline.cause_counts SET failed = failed + 1"),
    Damage("causes", "DELETE FROM batchline.cause_counts"),
    Damage("causes", "UPDATE batchline.failure_causes SET failed = failed + 1", "frozen"),
    Damage(
        "causes",
        "INSERT INTO batchline.cause_counts (batch_id, key, failed) SELECT batch_id, key, failed"
        " FROM batchline.failure_causes",
        "frozen",
    ),
    # Lanes that are fed.
    Damage("batch_total", "UPDATE batchline.counters SET added = added + 1", "fed"),
    Damage("batch_total", "UPDATE batchline.cursors SET next = next + 1", "fed"),
    Damage("partition", "UPDATE batchline.cursors SET next = next + 1", "fed"),
    Damage("partition", "DELETE FROM batchline.spans WHERE worker_id IS NULL", "fed"),
    Damage("cursors", "INSERT INTO batchline.cursors SELECT lane_id, next - 1 FROM batchline.cursors", "fed"),
    Damage(
        "cursors", "INSERT INTO batchline.cursors SELECT id, 1 FROM batchline.lanes WHERE fed", "fed_ended"
    ),
    Damage("drained", "UPDATE batchline.lanes SET drained = false WHERE fed", "fed"),
    Damage("file_lines", "DELETE FROM batchline.lines WHERE custom_id = 'a'", "fed"),
    Damage("file_lanes", "DELETE FROM batchline.lines WHERE custom_id = 'a'", "fed"),
    Damage("file_numbers", "UPDATE batchline.lines SET line_no = 1 WHERE custom_id = 'a'", "fed"),
    Damage("lane_total", "UPDATE batchline.file_lanes SET total = total + 1 WHERE lane_no = 1", "fed_ended"),
    Damage("file_lines", "UPDATE batchline.files SET line_count = 2 WHERE object_key IS NULL", "fed_ended"),
    # The way to the end.
    Damage("finalizing", "UPDATE batchline.batches SET finalizing_at = now()"),
    Damage("finalizing", "UPDATE batchline.batches SET accepting = false", "accepting"),
    Damage(
        "finalizing",
        "UPDATE batchline.counters AS c SET completed = b.total - c.failed FROM batchline.batches AS b",
    ),
    Damage("finalizing", "UPDATE batchline.batches SET finalizing_at = NULL", "completed"),
    Damage("end", "UPDATE batchline.batches SET finalizing_at = NULL", "completed"),
    Damage("end", "UPDATE batchline.batches SET cancelled_at = now()", "completed"),
    Damage("end", "UPDATE batchline.batches SET completed_at = NULL, expired_at = now()", "completed"),
    Damage("end", "UPDATE batchline.batches SET completed_at = now(), cancelled_at = NULL", "cancelled"),
    Damage("end_files", "UPDATE batchline.batches SET output_file_id = NULL", "completed"),
    Damage("end_files", "UPDATE batchline.batches SET error_file_id = NULL", "cancelled"),
    Damage("end_files", "UPDATE batchline.batches SET output_file_id = file_id"),
    Damage(
        "end_files",
        "UPDATE batchline.batches SET error_file_id = output_file_id, completed = total, failed = 0",
        "completed",
    ),
    Damage(
        "end_files",
        "DELETE FROM batchline.files WHERE id = (SELECT output_file_id FROM batchline.batches)",
        "completed",
    ),
    Damage(
        "end_files", "UPDATE batchline.files SET line_count = 1 WHERE object_key IS NOT NULL", "completed"
    ),
    # The history of attempts.
    Damage("attempts", "DELETE FROM batchline.retry_attempts WHERE attempt = 1"),
    Damage("attempts", "DELETE FROM batchline.retry_attempts WHERE attempt = 2"),
    Damage("attempts", "UPDATE batchline.retry_attempts SET attempt = 1"),
    Damage("attempts", "UPDATE batchline.spans SET attempt = attempt + 1 WHERE attempt = 3"),
    Damage("attempts", f"UPDATE batchline.spans SET attempt = 2 WHERE {SPAN}"),
    Damage("attempts", f"UPDATE batchline.results SET attempt = 2 WHERE {RESULT}"),
    Damage("attempts", "UPDATE batchline.results SET attempt = 1 WHERE attempt = 3", "completed"),
]


async def bring_fed(db: Session, state: str) -> None:
    """A batch whose items emit: one has, and one runs; or all have ended. Or one that accepts items."""
    worker = a_worker()
    if state == "accepting":
        await a_pipeline(db, "fetch", accepting=True)
        return
    batch = await a_pipeline(db, "fetch", "parse", items=2)
    first, second = await take(db, worker)
    await spans.settle(db, worker.id, [emitting(first, "parse", "a", "b")])
    if state == "fed_ended":
        await spans.settle(db, worker.id, [emitting(second, "parse", "c")])
        await run_to_the_end(db, worker)
        await finalize(db, worker, batch)


async def bring(db: Session, state: str) -> None:
    if state in ("fed", "fed_ended", "accepting"):
        return await bring_fed(db, state)
    worker = a_worker()
    batch = await half_run(db, worker)
    match state:
        case "paused":
            await batches.close(db, batch.id, "pause")
        case "cancelling" | "frozen" | "cancelled":
            await batches.close(db, batch.id, "cancel")
            if state != "cancelling":
                await spans.release(db, worker.id)
                await batches.conclude(db, batch.id)
            if state == "cancelled":
                await finalize(db, worker, batch)
        case "completed":
            await spans.release(db, worker.id)
            await sql(db, "UPDATE batchline.spans SET available_at = now()")
            await run_to_the_end(db, worker)
            await finalize(db, worker, batch)


@pytest.fixture(scope="module")
def damaged_url(server_url: str, template: str) -> Iterator[str]:
    """One database for all damages: to wipe it takes a tenth of the time of making another."""
    with a_database(server_url, template) as url:
        yield url


@pytest.mark.parametrize("case", DAMAGES, ids=lambda case: case.name)
async def test_damage_is_found_and_named(damaged_url: str, case: Damage) -> None:
    async with Session(damaged_url, "test") as db:
        await wipe(db)
        await bring(db, case.state)
        assert await findings(db) == [], "the damage is to be the only thing wrong"
        await sql(db, case.damage)
        found = await findings(db)
        assert case.check in {finding.check for finding in found}, f"after {case.damage}, only these: {found}"


async def test_the_doctor_names_the_damaged_batch_or_file(db: Session) -> None:
    sound, hurt = await a_batch(db, 4), await a_batch(db, 4)
    await run_to_the_end(db, a_worker())
    await sql(db, "UPDATE batchline.batches SET input_tokens = 7 WHERE id = %(batch)s", batch=hurt.id)
    await sql(db, "UPDATE batchline.files SET line_count = 9 WHERE id = %(file)s", file=sound.file_id)
    assert [(finding.check, finding.where) for finding in await findings(db)] == [
        ("batch_total", show(BATCH, sound.id)),
        ("counters", show(BATCH, hurt.id)),
        ("file_lines", show(FILE, sound.file_id)),
    ]
    assert [f.check for f in (await doctor.examine(db, batch_id=hurt.id)).findings] == ["counters"]
    assert [f.check for f in (await doctor.examine(db, batch_id=sound.id)).findings] == [
        "batch_total",
        "file_lines",
    ]


async def test_tokens_that_no_result_has_are_found_unless_an_attempt_was_tried_again(db: Session) -> None:
    """The attempt may have used them."""
    hurt, retried, worker = await a_batch(db, 3), await a_batch(db, 3), a_worker()
    items = await take(db, worker, scope=Scope(batch_id=retried.id))
    await spans.settle(db, worker.id, [retry(item) for item in items])
    await run_to_the_end(db, worker)
    await sql(db, "UPDATE batchline.batches SET output_tokens = output_tokens + 1")
    assert [(finding.check, finding.where) for finding in await findings(db)] == [
        ("counters", show(BATCH, hurt.id))
    ]


async def test_the_number_of_findings_is_limited(db: Session) -> None:
    await a_batch(db, {f"model-{n}": 1 for n in range(150)})
    await sql(db, "UPDATE batchline.lanes SET drained = true")
    found = await findings(db)
    assert len(found) == 101
    assert found[-1] == Finding("drained", "everywhere", "only the first 100 are shown")


async def test_work_of_a_lost_worker_is_a_note_and_not_a_finding(db: Session) -> None:
    dead, live = a_worker(), a_worker()
    await a_batch(db, 6)
    for worker in (dead, live):
        await take(db, worker, 2)
    await kill(db, dead)
    report = await doctor.examine(db)
    assert report.clean
    assert [(note.check, note.message) for note in report.notes] == [
        ("worker_gone", f"span 1 with 2 items is held by worker {dead.id}, whose lease has expired"),
    ]


async def test_what_a_deletion_leaves_behind_is_a_note_and_not_a_finding(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, 3)
    await run_to_the_end(db, worker)
    await finalize(db, worker, batch)
    await sql(db, "DELETE FROM batchline.files WHERE id = %(file)s", file=batch.file_id)
    report = await doctor.examine(db)
    assert report.clean, "the input of a batch that has ended may be deleted"
    assert [note.check for note in report.notes] == ["orphans"]
    await sql(db, "DELETE FROM batchline.lines")
    report = await doctor.examine(db)
    assert (report.findings, report.notes) == ((), ()), "its lines may be deleted as well"
    await sql(db, "DELETE FROM batchline.batches")
    report = await doctor.examine(db)
    assert report.clean
    assert [note.message for note in report.notes] == ["3 results belong to a lane that does not exist"]


async def test_contents_that_the_object_store_lost_are_found(db: Session) -> None:
    worker, batch, other = a_worker(), await a_batch(db, 2), await a_batch(db, 2)
    await run_to_the_end(db, worker)
    for each in (batch, other):
        await finalize(db, worker, each)
    lost = (await read(db, batch)).output_file_id
    assert lost is not None
    requested: list[str] = []

    async def object_exists(key: str) -> bool:
        requested.append(key)
        return batch.id.hex not in key

    report = await doctor.examine(db, object_exists=object_exists)
    assert [(finding.check, finding.where) for finding in report.findings] == [("object", show(FILE, lost))]
    assert len(requested) == 2, "one output file each"
    requested.clear()
    assert (await doctor.examine(db, batch_id=other.id, object_exists=object_exists)).clean
    assert len(requested) == 1, "only the files of the batch that was asked for"


async def test_the_doctor_changes_nothing_and_waits_for_no_lock(database_url: str, db: Session) -> None:
    await half_run(db, a_worker())
    async with Session(database_url, "writer") as writer, writer.transaction() as connection:
        await connection.execute(
            "LOCK TABLE batchline.batches, batchline.lanes, batchline.spans, batchline.results"
            " IN EXCLUSIVE MODE"
        )
        assert await asyncio.wait_for(findings(db), timeout=25) == []
