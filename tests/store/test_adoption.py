"""Adoption of databases with one row per request, phase by phase, on both shapes of old tables."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from batchline.adopt import phases, verification
from batchline.batches import retention
from batchline.batches.deletion import delete as delete_batch
from batchline.batches.output import answered_line, failed_line
from batchline.files.objects import Objects
from batchline.model import NO_USAGE, BatchStatus, Completed, Failed, Item, Verdict
from batchline.store import batches, deletion, doctor, migrate, providers, spans
from batchline.store.adoption import transactions
from batchline.store.adoption.records import AdoptionRefused, CutoverSettings
from batchline.store.errors import StoreUnusable
from batchline.store.session import Session
from tests.support.builders import (
    ANYTHING,
    a_batch,
    a_worker,
    complete,
    finalize,
    kill,
    park,
    read,
    retry,
    sql,
    take,
    until,
)
from tests.support.old_database import SHAPES, OldDatabase

SETTINGS = CutoverSettings("default", False, None, 86_400.0)


@pytest.fixture(params=sorted(SHAPES))
def old(request: pytest.FixtureRequest, database_url: str) -> Iterator[OldDatabase]:
    database = OldDatabase(database_url, request.param)
    yield database
    database.close()


async def adopt(db: Session) -> phases.CutOver:
    await phases.prepare(db, "public")
    return await phases.cut_over(db, SETTINGS)


class Meanwhile:
    """Does something once, when a phase reaches a step."""

    def __init__(self, point: str, act: Callable[[], Awaitable[None]]) -> None:
        self._point = point
        self._act: Callable[[], Awaitable[None]] | None = act

    async def reached(self, point: str, amount: int) -> None:
        if point == self._point and self._act is not None:
            act, self._act = self._act, None
            await act()


async def check(db: Session) -> None:
    report = await verification.verify(db)
    assert report.findings == []


def answered(item: Item) -> Completed:
    line = answered_line(item, 200, "req", b'{"answer":%d}' % item.line_no)
    return Completed(item, 200, line, NO_USAGE)


def unanswered(item: Item) -> Failed:
    return Failed(item, failed_line(item, "timeout", "no answer within 600 s"), None)


async def states(db: Session, batch_id: UUID) -> dict[str, int]:
    rows = await sql(
        db, "SELECT state, count(*) FROM batchline.requests WHERE batch_id = %(b)s GROUP BY 1", b=batch_id
    )
    return dict(rows)


async def test_every_state_becomes_what_it_means_here(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(20, models=("small", "large")))
    old.end(batch, (1, 2, 7), "completed")
    old.end(batch, (4,), "completed", retries=2)
    old.end(batch, (3,), "failed")
    old.end(batch, (5,), "processing")
    old.end(batch, (6,), "claimed", retries=1)
    old.end(batch, (8,), "canceled")
    old.end(batch, (9,), "pending", retries=3)
    done = await adopt(db)
    assert (done.batches, done.unfinished_batches) == (1, 1)
    assert [(one.line_no, one.custom_id, one.state) for one in done.possibly_sent] == [
        (5, "line-5", "processing"),
        (6, "line-6", "claimed"),
    ]
    found = await read(db, batch)
    assert (found.total, found.completed, found.failed) == (20, 4, 2)
    assert (found.input_tokens, found.output_tokens) == (12, 20)
    # Only what lies behind an item that was touched has a span; the rest is pending without a row.
    lanes = await sql(db, "SELECT model, next, total FROM batchline.current_lanes ORDER BY lane_no")
    assert lanes == [("small", 5, 10), ("large", 4, 10)]
    attempts = await sql(
        db,
        "SELECT line_no, attempt FROM batchline.requests WHERE batch_id = %(b)s AND attempt > 1 ORDER BY 1",
        b=batch,
    )
    assert attempts == [(4, 3), (6, 2), (9, 4)]
    await check(db)


async def test_results_have_the_bodies_of_the_old_requests(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(3))
    old.end(batch, (1,), "completed")
    old.end(batch, (2,), "failed")
    old.end(batch, (3,), "canceled")
    await adopt(db)
    rows = await sql(
        db,
        """
        SELECT r.outcome::text, r.status_code, r.output::jsonb ->> 'custom_id',
            r.output::jsonb #>> '{response,body,id}', r.output::jsonb #>> '{response,body,bad}',
            r.output::jsonb #>> '{error,code}', r.output LIKE %(start)s
        FROM batchline.results AS r ORDER BY line_no
        """,
        start='{"id":"batch_req_' + batch.hex + "_%",
    )
    assert rows == [
        ("completed", 200, "line-1", "answer-1", None, None, True),
        ("failed", 400, "line-2", None, "1", None, True),
        ("failed", None, "line-3", None, None, "canceled", True),
    ]
    # Everything has ended, so a worker writes the files.
    assert (await read(db, batch)).status is BatchStatus.FINALIZING
    await check(db)


async def test_a_cancelled_batch_is_frozen_and_its_rest_is_derived(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(6), cancelling_at="2026-01-01")
    old.end(batch, (2,), "completed")
    old.end(batch, (3, 4), "canceled")
    old.end(batch, (5,), "processing")
    done = await adopt(db)
    assert len(done.possibly_sent) == 1
    assert await states(db, batch) == {"completed": 1, "canceled": 5}
    assert (await read(db, batch)).cancelling_at is not None
    assert await take(db, a_worker()) == []
    await check(db)


async def test_the_rest_runs_once_and_the_ids_stay(db: Session, old: OldDatabase) -> None:
    file_id = old.file(30)
    first, second = old.batch(file_id), old.batch(file_id)
    old.end(first, range(3, 29, 2), "completed")
    old.end(first, (30,), "processing")
    await adopt(db)
    assert (await read(db, first)).file_id == file_id
    worker = a_worker()
    items = await take(db, worker)
    assert len(items) == 16 + 1 + 30
    ((body,),) = await sql(db, "SELECT body FROM batchline.lines ORDER BY line_no LIMIT 1")
    assert "\n" not in body
    assert {item.body for item in items if item.line_no == 1} == {body.encode()}
    await complete(db, worker, items)
    for batch_id in (first, second):
        assert (await read(db, batch_id)).status is BatchStatus.FINALIZING
    await check(db)


async def test_what_changes_between_prepare_and_cutover_is_caught_up(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(10))
    old.end(batch, (1, 2), "completed")
    old.end(batch, (3, 4), "failed")
    await phases.prepare(db, "public")
    # Two finish; a failed one is put back, and one is retried and has an answer now.
    old.end(batch, (5, 6), "completed")
    old.end(batch, (3,), "pending")
    old.end(batch, (4,), "completed", retries=1)
    late = old.batch(old.file(4))
    old.end(late, (1,), "completed")
    await phases.cut_over(db, SETTINGS)
    found = await read(db, batch)
    assert (found.completed, found.failed) == (5, 0)
    assert (await read(db, late)).completed == 1
    await check(db)


async def test_a_file_that_grew_since_prepare_is_copied_again(db: Session, old: OldDatabase) -> None:
    file_id = old.file(3)
    await phases.prepare(db, "public")
    old.run(
        """
        INSERT INTO request_templates (file_id, custom_id, line_number, method, path, body, model)
        VALUES (%s, 'line-0', 0, 'POST', '/v1/embeddings', '{}', 'other')
        """,
        file_id,
    )
    batch = old.batch(file_id)
    await phases.cut_over(db, SETTINGS)
    assert (await read(db, batch)).total == 4
    lines = await sql(db, "SELECT line_no, custom_id FROM batchline.lines ORDER BY 1")
    assert lines == [(1, "line-0"), (2, "line-1"), (3, "line-2"), (4, "line-3")]
    await check(db)


async def test_a_template_that_changes_during_the_cutover_makes_nothing_run_again(
    db: Session, database_url: str
) -> None:
    # The other shape does not say when a template was changed.
    old = OldDatabase(database_url, "fusillade")
    batch = old.batch(old.file(6))
    old.end(batch, (1, 2, 3), "completed")
    await phases.prepare(db, "public")

    async def change() -> None:
        old.run("UPDATE request_templates SET updated_at = clock_timestamp() WHERE line_number = 5")

    await phases.cut_over(db, SETTINGS, steps=Meanwhile("results copied", change))
    assert await states(db, batch) == {"completed": 3, "pending": 3}
    await check(db)
    old.close()


async def test_a_file_that_changes_after_a_killed_cutover_is_read_from_the_first_page(
    db: Session, database_url: str
) -> None:
    old = OldDatabase(database_url, "fusillade")
    batch = old.batch(old.file(2000))
    old.end(batch, range(1, 2001), "completed")
    # The first pages have requests that have ended.
    old.run("VACUUM FULL requests")
    await phases.prepare(db, "public")

    async def fail() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        await phases.cut_over(db, SETTINGS, steps=Meanwhile("results copied", fail))
    state = await transactions.find(db)
    assert state is not None
    assert state.next_page > 0
    old.run("UPDATE request_templates SET updated_at = clock_timestamp() WHERE line_number = 5")
    await phases.cut_over(db, SETTINGS)
    assert await states(db, batch) == {"completed": 2000}
    old.close()


async def test_a_cutover_refuses_if_a_finished_request_was_not_copied(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(4))
    old.end(batch, (1, 2), "completed")
    old.end(batch, (3,), "canceled")
    await phases.prepare(db, "public")

    # After the last pass: a transaction anywhere on the server may let that one copy all requests again.
    async def lose() -> None:
        old.run("DELETE FROM batchline.results WHERE line_no IN (2, 3)")

    with pytest.raises(AdoptionRefused, match="2 finished requests were not copied") as refused:
        await phases.cut_over(db, SETTINGS, steps=Meanwhile("rest copied", lose))
    assert refused.value.details == [f"batch_{batch.hex}: 2 are missing"]
    assert await batches.get(db, batch) is None
    await phases.cut_over(db, SETTINGS)
    await check(db)


async def test_after_the_cutover_the_old_tables_are_read_only(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(3))
    await adopt(db)
    for query in (
        "UPDATE requests SET state = 'claimed'",
        "DELETE FROM requests",
        "TRUNCATE requests",
        "INSERT INTO files (name) VALUES ('late')",
        "UPDATE batches SET endpoint = ''",
    ):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="Batchline has adopted"):
            old.run(query)
    assert old.states(batch) == {"pending": 3}


async def test_writers_wait_while_the_cutover_runs_and_are_refused_after_it(
    db: Session, old: OldDatabase
) -> None:
    batch = old.batch(old.file(3))
    await phases.prepare(db, "public")

    class Intruder:
        async def reached(self, point: str, amount: int) -> None:
            if point == "batches created":
                old.run("SET lock_timeout = '50ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    old.run("UPDATE requests SET state = 'pending'")
                # Readers go on.
                assert old.states(batch) == {"pending": 3}

    await phases.cut_over(db, SETTINGS, steps=Intruder())
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        old.run("UPDATE requests SET state = 'pending'")


async def test_a_writer_in_a_long_transaction_makes_the_cutover_refuse(
    db: Session, old: OldDatabase, database_url: str
) -> None:
    old.batch(old.file(3))
    await phases.prepare(db, "public")
    with psycopg.connect(database_url) as writer:
        writer.execute("UPDATE requests SET retry_attempt = 0")
        with pytest.raises(AdoptionRefused, match="did not end within 5 s; nothing was changed"):
            await phases.cut_over(db, SETTINGS)
        writer.rollback()
    await phases.cut_over(db, SETTINGS)
    await check(db)


async def test_living_daemons_make_the_cutover_refuse(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(3))
    if old.shape == "fusillade":
        old.run(
            """
            INSERT INTO daemons VALUES
                (gen_random_uuid(), 'running', 'host', 1, '1', '{}', now(), now(), NULL),
                (gen_random_uuid(), 'dead', 'host', 2, '1', '{}', now(), now(), now())
            """
        )
    else:
        old.end(batch, (1,), "processing")
        old.run("UPDATE requests SET started_at = now() WHERE state = 'processing'")
    await phases.prepare(db, "public")
    with pytest.raises(AdoptionRefused, match="1 old daemons were active") as refused:
        await phases.cut_over(db, SETTINGS)
    assert len(refused.value.details) == 1
    if old.shape == "fusillade":
        with pytest.raises(AdoptionRefused, match="1 old daemons were active"):
            await phases.cut_over(db, SETTINGS, daemons_stopped=True)
        old.run("UPDATE daemons SET last_heartbeat = now() - interval '2 minutes'")
        await phases.cut_over(db, SETTINGS)
    else:
        await phases.cut_over(db, SETTINGS, daemons_stopped=True)
    await check(db)


async def test_requests_that_cannot_be_adopted_are_named_and_refused(db: Session, old: OldDatabase) -> None:
    odd, good = old.batch(old.file(4)), old.batch(old.file(2))
    old.run("DELETE FROM requests WHERE batch_id = %s AND custom_id = 'line-2'", odd)
    await phases.prepare(db, "public")
    with pytest.raises(AdoptionRefused, match="3 unfinished requests cannot be adopted") as refused:
        await phases.cut_over(db, SETTINGS)
    assert refused.value.details == [
        f"batch_{odd.hex}: its file has 4 lines, but it has 3 requests for 3 of them (3 unfinished)"
    ]
    done = await phases.cut_over(db, SETTINGS, leave_unadopted=True)
    assert [one.batch_id for one in done.left_out] == [odd]
    assert await batches.get(db, odd) is None
    assert (await read(db, good)).total == 2
    await check(db)


async def test_a_dry_run_changes_nothing_and_says_the_same(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(20))
    old.end(batch, range(1, 8), "completed")
    plan = await phases.plan_prepare(db, "public")
    assert (plan.lines, plan.results, plan.size.pending) == (20, 7, 13)
    assert plan.seconds > 0
    assert await transactions.find(db) is None
    assert await sql(db, "SELECT to_regclass('batchline.source_files')") == [(None,)]
    done = await phases.prepare(db, "public")
    assert (done.lines, done.results) == (20, 7)
    rehearsed = await phases.cut_over(db, SETTINGS, rehearse=True)
    assert (rehearsed.batches, rehearsed.unfinished_batches) == (1, 1)
    assert await batches.get(db, batch) is None
    old.end(batch, (8,), "completed")
    await phases.cut_over(db, SETTINGS)
    planned = await phases.plan_rollback(db)
    assert (planned.batches, planned.results, planned.pending) == (1, 0, 12)
    assert (await phases.finish(db, dry_run=True, drop=True)).dropped[-1] == "files"
    assert old.states(batch) == {"completed": 8, "pending": 12}


async def test_a_rollback_gives_back_what_finished_and_what_did_not(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(10))
    old.end(batch, (1,), "completed")
    old.end(batch, (2,), "processing")
    old.end(batch, (3,), "canceled")
    await adopt(db)
    worker = a_worker()
    items = {item.line_no: item for item in await take(db, worker)}
    assert sorted(items) == [2, 4, 5, 6, 7, 8, 9, 10]
    verdicts: list[Verdict] = [
        answered(items[2]),
        unanswered(items[4]),
        retry(items[5], 3600.0),
        answered(items[6]),
    ]
    await spans.settle(db, worker.id, verdicts)
    with pytest.raises(AdoptionRefused, match="1 workers are running adopted batches"):
        await phases.roll_back(db)
    # What had finished is written back already; the rest waits for the worker to stop.
    assert old.states(batch) == {"completed": 3, "failed": 1, "canceled": 1, "pending": 5}
    await spans.release(db, worker.id, sent=False)
    done = await phases.roll_back(db)
    assert done.possibly_sent == []
    assert old.states(batch) == {"completed": 3, "failed": 1, "canceled": 1, "pending": 5}
    rows = old.run(
        """
        SELECT
            t.line_number, r.state, r.retry_attempt, r.not_before > now(), r.response_status, r.response_body
        FROM requests AS r JOIN request_templates AS t ON t.id = r.template_id
        WHERE r.batch_id = %s AND t.line_number IN (1, 5, 6) ORDER BY 1
        """,
        batch,
    )
    assert rows[1:] == [
        (5, "pending", 1, True, None, None),
        (6, "completed", 0, None, 200, '{"answer":6}'),
    ]
    assert await batches.get(db, batch) is None
    assert (await doctor.examine(db)).findings == ()
    # The old daemons can go on.
    old.run("UPDATE requests SET state = 'pending' WHERE state = 'pending'")


async def test_work_goes_back_and_forth_without_a_second_copy(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(8))
    old.end(batch, (1, 2), "completed")
    await adopt(db)
    worker = a_worker()
    first, second, *_ = await take(db, worker)
    await spans.settle(db, worker.id, [answered(first), unanswered(second)])
    await spans.release(db, worker.id)
    await phases.roll_back(db)
    old.end(batch, (7,), "completed")
    again = await phases.prepare(db, "public")
    assert (again.lines, again.results) == (0, 1)
    await phases.cut_over(db, SETTINGS)
    found = await read(db, batch)
    assert (found.completed, found.failed) == (4, 1)
    assert len(await take(db, worker)) == 3
    await check(db)


async def test_maintenance_leaves_the_batches_of_a_second_cutover_alone(
    db: Session, old: OldDatabase
) -> None:
    batch = old.batch(old.file(8))
    old.end(batch, (1, 2), "completed")
    await adopt(db)
    await phases.roll_back(db)
    await phases.cut_over(db, SETTINGS)
    worker = a_worker()
    await spans.settle(db, worker.id, [answered(item) for item in await take(db, worker, 3)])
    assert await retention.drop_deleted_batches(db)
    assert await states(db, batch) == {"completed": 5, "pending": 3}
    await check(db)


async def test_a_rollback_leaves_no_counts_of_causes_and_no_hashes(db: Session, old: OldDatabase) -> None:
    """A second cutover has the same batches and files under the same numbers."""
    batch = old.batch(old.file(6))
    await adopt(db)
    worker = a_worker()
    items = await take(db, worker, 3)
    await spans.settle(db, worker.id, [unanswered(item) for item in items])
    await sql(db, "SELECT batchline.hash_lines_v1(no) FROM batchline.files")
    assert await sql(db, "SELECT failed FROM batchline.cause_counts") == [(3,)]
    assert await sql(db, "SELECT count(*) FROM batchline.line_hashes") == [(1,)]
    await phases.roll_back(db)
    assert await sql(db, "SELECT failed FROM batchline.cause_counts") == []
    assert await sql(db, "SELECT count(*) FROM batchline.line_hashes") == [(0,)]
    await phases.cut_over(db, SETTINGS)
    assert await states(db, batch) == {"failed": 3, "pending": 3}
    await check(db)


async def test_a_rollback_leaves_nothing_of_a_batch_that_was_deleted_here(
    db: Session, old: OldDatabase
) -> None:
    batch = old.batch(old.file(6))
    old.end(batch, (1, 2), "completed")
    await adopt(db)
    worker = a_worker()
    first, *_ = await take(db, worker, 3)
    await spans.settle(db, worker.id, [retry(first)])
    await kill(db, worker)
    assert await deletion.delete(db, batch, force=True) is not None
    await phases.roll_back(db)
    assert (await doctor.examine(db)).findings == ()
    await phases.cut_over(db, SETTINGS)
    assert await retention.drop_deleted_batches(db)
    await check(db)


async def test_retention_keeps_what_a_rollback_needs_until_finish(
    db: Session, old: OldDatabase, tmp_path: Path
) -> None:
    batch = old.batch(old.file(4))
    await adopt(db)
    worker = a_worker()
    await spans.settle(db, worker.id, [answered(item) for item in await take(db, worker)])
    await finalize(db, worker, await read(db, batch))
    objects = Objects.at(tmp_path)
    # The files are deleted, and the batch has ended long ago.
    await sql(db, "UPDATE batchline.files SET deleted_at = now()")
    assert await retention.enforce(db, objects, 0.0)
    await phases.roll_back(db)
    assert old.states(batch) == {"completed": 4}
    await phases.cut_over(db, SETTINGS)
    await check(db)
    # After finish it goes.
    await finalize(db, worker, await read(db, batch))
    await phases.finish(db)
    assert await retention.enforce(db, objects, 0.0)
    assert await sql(db, "SELECT count(*) FROM batchline.results") == [(0,)]


async def test_a_batch_that_was_deleted_here_does_not_run_there(
    db: Session, old: OldDatabase, tmp_path: Path
) -> None:
    batch = old.batch(old.file(6))
    old.end(batch, (1,), "completed")
    await adopt(db)
    worker = a_worker()
    await spans.settle(db, worker.id, [answered(item) for item in await take(db, worker, 2)])
    await kill(db, worker)
    await delete_batch(db, Objects.at(tmp_path), await read(db, batch), force=True)
    await phases.roll_back(db)
    assert old.states(batch) == {"completed": 1, "canceled": 5}
    assert old.run("SELECT count(*) FROM requests WHERE canceled_at IS NOT NULL") == [(5,)]
    # Its lines are still here, for a second cutover.
    await phases.cut_over(db, SETTINGS)
    assert await states(db, batch) == {"completed": 1, "failed": 5}
    await check(db)


async def test_a_batch_that_was_cancelled_here_is_cancelled_there(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(4))
    old.end(batch, (1,), "completed")
    await adopt(db)
    assert await batches.close(db, batch, "cancel")
    await phases.roll_back(db)
    assert old.states(batch) == {"completed": 1, "canceled": 3}
    assert old.run("SELECT cancelling_at IS NOT NULL FROM batches") == [(True,)]


async def test_items_of_a_dead_worker_are_counted_and_listed_by_a_rollback(
    db: Session, old: OldDatabase
) -> None:
    batch = old.batch(old.file(5))
    await adopt(db)
    worker = a_worker()
    await take(db, worker, 2)
    await kill(db, worker)
    done = await phases.roll_back(db)
    assert [(one.line_no, one.found_by) for one in done.possibly_sent] == [(1, "rollback"), (2, "rollback")]
    assert old.states(batch) == {"pending": 5}


async def test_tasks_of_providers_are_listed_by_a_rollback_and_cancelled(
    db: Session, old: OldDatabase
) -> None:
    batch = old.batch(old.file(5))
    await phases.prepare(db, "public")
    await phases.cut_over(db, CutoverSettings("default", False, "provider", 86_400.0))
    worker = a_worker()
    first, second, _ = await take(db, worker, 3)
    assert await park(db, worker, [first, second], "task-1") == 2
    await spans.release(db, worker.id)
    await sql(db, "UPDATE batchline.spans SET submission = 'unknown' WHERE task_id IS NULL")
    done = await phases.roll_back(db)
    assert [one.line_no for one in done.possibly_sent] == [1, 2, 3]
    assert old.states(batch) == {"pending": 5}
    (task,) = await providers.take_abandoned(db, ANYTHING)
    assert (task.upstream, task.task_id) == ("provider", "task-1")
    assert (task.item.claim.url, task.item.claim.model) == ("/v1/chat/completions", "model")
    assert task.item.claim.settings.upstream == "provider"


async def test_batches_created_since_the_cutover_are_refused_or_stay(db: Session, old: OldDatabase) -> None:
    file_id = old.file(3)
    old.batch(file_id)
    await adopt(db)
    own = await a_batch(db, file_id=file_id)
    with pytest.raises(AdoptionRefused, match="1 batches were created since the cutover") as refused:
        await phases.roll_back(db)
    assert refused.value.details == [f"batch_{own.id.hex}: 3 lines, unfinished"]
    done = await phases.roll_back(db, leave_own=True)
    assert done.own_batches == [own.id]
    worker = a_worker()
    await complete(db, worker, await take(db, worker))
    assert (await read(db, own)).status is BatchStatus.FINALIZING
    # The file has stayed for it; a second cutover and an abandoned one leave it alone.
    await phases.cut_over(db, SETTINGS)
    await check(db)
    await phases.roll_back(db, leave_own=True)
    await phases.finish(db)
    assert (await doctor.examine(db)).findings == ()


async def test_a_rollback_does_not_wait_for_readers_of_the_old_tables(
    db: Session, old: OldDatabase, database_url: str
) -> None:
    batch = old.batch(old.file(4))
    await adopt(db)
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT count(*) FROM requests")
        async with asyncio.timeout(120):
            await phases.roll_back(db)
        old.end(batch, (1,), "completed")
        # The second cutover does not either, and makes the tables read-only again.
        async with asyncio.timeout(120):
            await phases.cut_over(db, SETTINGS)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        old.run("UPDATE requests SET state = 'pending'")
    await check(db)
    await phases.roll_back(db)
    await phases.finish(db)
    assert old.run("SELECT count(*) FROM pg_trigger WHERE tgname = 'batchline_adopted'") == [(0,)]


@pytest.mark.parametrize("drop", [False, True])
async def test_a_reader_of_the_old_tables_makes_finish_refuse(
    db: Session, old: OldDatabase, database_url: str, drop: bool
) -> None:
    old.batch(old.file(4))
    await adopt(db)
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT count(*) FROM requests")
        with pytest.raises(AdoptionRefused, match="a transaction reads the old tables"):
            async with asyncio.timeout(120):
                await phases.finish(db, drop=drop)
    await check(db)
    await phases.finish(db, drop=drop)
    assert old.run("SELECT count(*) FROM pg_trigger WHERE tgname = 'batchline_adopted'") == [(0,)]


async def test_finish_leaves_the_old_tables_unless_told_to_drop_them(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(3))
    old.end(batch, (1,), "completed")
    await adopt(db)
    done = await phases.finish(db)
    assert (done.abandoned, done.dropped) == (False, ())
    old.run("UPDATE requests SET state = 'pending' WHERE false")
    assert old.states(batch) == {"completed": 1, "pending": 2}
    with pytest.raises(AdoptionRefused, match="rollback is not possible"):
        await phases.roll_back(db)
    assert (await doctor.examine(db)).findings == ()
    assert (await read(db, batch)).completed == 1


async def test_finish_drops_the_old_tables_on_request(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(3))
    await adopt(db)
    done = await phases.finish(db, drop=True)
    assert {"files", "request_templates", "batches", "requests"} <= set(done.dropped)
    assert old.run("SELECT to_regclass('public.requests'), to_regclass('public.files')") == [(None, None)]
    worker = a_worker()
    await complete(db, worker, await take(db, worker))
    assert (await read(db, batch)).status is BatchStatus.FINALIZING
    assert (await doctor.examine(db)).findings == ()


async def test_finish_drops_nothing_that_was_not_adopted(db: Session, old: OldDatabase) -> None:
    odd = old.batch(old.file(2))
    old.end(odd, (1, 2), "completed")
    old.run("DELETE FROM requests WHERE custom_id = 'line-2'")
    await adopt(db)
    with pytest.raises(AdoptionRefused, match="would be lost; nothing was dropped"):
        await phases.finish(db, drop=True)
    assert old.states(odd) == {"completed": 1}
    await phases.finish(db, drop=True, lose_unadopted=True)


async def test_finish_before_a_cutover_deletes_what_was_copied(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(3))
    old.end(batch, (1,), "completed")
    await phases.prepare(db, "public")
    assert (await doctor.examine(db)).notes == ()
    assert (await phases.finish(db)).abandoned
    assert await sql(db, "SELECT FROM batchline.lines UNION ALL SELECT FROM batchline.results") == []
    assert old.states(batch) == {"completed": 1, "pending": 2}
    # It can begin again.
    await adopt(db)
    await check(db)


# Two commands at once


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Session]:
    async with Session(database_url, "other") as session:
        yield session


class Behind:
    """Another command, which waits for a step of the first one to end."""

    def __init__(self, observer: OldDatabase, command: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._observer = observer
        self._command = command
        self._task: asyncio.Task[object] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._command())
        await until(self._waits)

    async def result(self) -> object:
        assert self._task is not None
        return await self._task

    async def _waits(self) -> bool:
        return bool(
            self._observer.run(
                "SELECT pid FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )


async def test_finish_behind_a_rollback_drops_nothing(db: Session, other: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(4))
    await adopt(db)
    behind = Behind(old, lambda: phases.finish(other, drop=True))
    await phases.roll_back(db, steps=Meanwhile("committing", behind.start))
    with pytest.raises(AdoptionRefused, match="another command has changed the phase meanwhile"):
        await behind.result()
    assert old.states(batch) == {"pending": 4}


async def test_finish_behind_a_cutover_deletes_nothing(db: Session, other: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(4))
    old.end(batch, (1, 2), "completed")
    await phases.prepare(db, "public")
    behind = Behind(old, lambda: phases.finish(other))
    await phases.cut_over(db, SETTINGS, steps=Meanwhile("committing", behind.start))
    with pytest.raises(AdoptionRefused, match="another command has changed the phase meanwhile"):
        await behind.result()
    await check(db)


async def test_a_second_rollback_behind_the_first_changes_nothing(
    db: Session, other: Session, old: OldDatabase
) -> None:
    batch = old.batch(old.file(4))
    await adopt(db)
    behind = Behind(old, lambda: phases.roll_back(other))
    await phases.roll_back(db, steps=Meanwhile("committing", behind.start))
    with pytest.raises(AdoptionRefused, match="another command has changed the phase meanwhile"):
        await behind.result()
    assert old.states(batch) == {"pending": 4}


async def test_prepare_behind_a_cutover_is_refused(db: Session, other: Session, old: OldDatabase) -> None:
    old.batch(old.file(4))
    await phases.prepare(db, "public")
    behind = Behind(old, lambda: phases.prepare(other, "public"))
    await phases.cut_over(db, SETTINGS, steps=Meanwhile("committing", behind.start))
    with pytest.raises(AdoptionRefused, match="the cutover is done"):
        await behind.result()
    await check(db)


@pytest.mark.parametrize("point", ["begun", "batches found", "results copied"])
async def test_a_cutover_during_prepare_stops_the_prepare(
    db: Session, other: Session, old: OldDatabase, point: str
) -> None:
    batch = old.batch(old.file(6))
    old.end(batch, (1,), "completed")
    await phases.prepare(db, "public")

    async def cut_over() -> None:
        await phases.cut_over(other, SETTINGS)
        worker = a_worker()
        await spans.settle(other, worker.id, [answered(item) for item in await take(other, worker, 2)])

    with pytest.raises(AdoptionRefused, match="another command has changed the phase meanwhile"):
        await phases.prepare(db, "public", steps=Meanwhile(point, cut_over))
    assert await states(db, batch) == {"completed": 3, "pending": 3}
    await check(db)


async def test_of_two_first_prepares_the_second_does_not_begin_again(
    db: Session, other: Session, old: OldDatabase
) -> None:
    old.batch(old.file(4))
    async with transactions.step(db) as first:
        source = await transactions.source_of(first, "public")
        await transactions.begin(first, source)
        second = Behind(old, lambda: phases.prepare(other, "public"))
        await second.start()
    with pytest.raises(AdoptionRefused, match="another command has changed the phase meanwhile"):
        await second.result()


async def test_verify_finds_a_changed_line_a_changed_result_and_a_lost_one(
    db: Session, old: OldDatabase
) -> None:
    batch = old.batch(old.file(4))
    old.end(batch, (1, 2), "completed")
    await adopt(db)
    await sql(db, "UPDATE batchline.lines SET body = '{}' WHERE line_no = 3")
    await sql(db, "UPDATE batchline.results SET output = replace(output, 'answer-1', 'x') WHERE line_no = 1")
    await sql(db, "DELETE FROM batchline.results WHERE line_no = 2")
    findings = "\n".join((await verification.verify(db)).findings)
    assert "1 lines differ from their templates, for example 'line-3'" in findings
    assert "the result of line 1 is missing or differs" in findings
    assert "1 finished requests have no result of the same outcome" in findings
    assert "doctor: partition" in findings


async def test_overdue_batches_get_time_and_owners_become_tenants(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(2), expires_at="2026-01-01", created_by="ada", metadata='{"a": 1, "b": "c"}')
    await phases.prepare(db, "public")
    await phases.cut_over(db, CutoverSettings("default", True, "http://upstream.example", 3600.0))
    found = await read(db, batch)
    assert (found.tenant, found.settings.upstream) == ("ada", "http://upstream.example")
    assert found.metadata == {"a": "1", "b": "c"}
    ((left,),) = await sql(
        db, "SELECT deadline - now() BETWEEN interval '59 minutes' AND interval '1 hour' FROM batchline.lanes"
    )
    assert left


async def test_a_batch_without_a_deadline_gets_none(db: Session, old: OldDatabase) -> None:
    old.run("ALTER TABLE batches ALTER COLUMN expires_at DROP NOT NULL")
    batch = old.batch(old.file(2), expires_at=None)
    await adopt(db)
    assert (await read(db, batch)).expires_at is None
    assert await sql(db, "SELECT deadline > '9999-01-01' FROM batchline.lanes") == [(True,)]
    worker = a_worker()
    await complete(db, worker, await take(db, worker))
    assert (await read(db, batch)).status is BatchStatus.FINALIZING
    await check(db)


async def test_scattered_results_leave_bounded_spans(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(25_000))
    old.end(batch, range(1, 25_000, 2), "completed")
    await adopt(db)
    sizes = await sql(
        db, "SELECT lower(outstanding), batchline.span_size(outstanding) FROM batchline.spans ORDER BY 1"
    )
    assert sizes == [(1, 5000), (10_001, 5000), (20_001, 2499)]
    await check(db)


async def test_templates_that_are_not_post_requests_are_left_out(db: Session, old: OldDatabase) -> None:
    batch = old.batch(old.file(2))
    old.run("UPDATE request_templates SET method = 'GET' WHERE custom_id = 'line-1'")
    await phases.prepare(db, "public")
    done = await phases.cut_over(db, SETTINGS, leave_unadopted=True)
    assert [(one.batch_id, one.reason) for one in done.left_out] == [
        (batch, "its file has requests that are not POST requests")
    ]


async def test_a_schema_without_such_tables_is_refused_in_one_sentence(db: Session) -> None:
    with pytest.raises(StoreUnusable, match="schema public has no tables that Batchline can adopt"):
        await phases.prepare(db, "public")
    await sql(db, "CREATE TABLE public.files (id uuid)")
    with pytest.raises(StoreUnusable, match="table request_templates is missing"):
        await phases.plan_prepare(db, "public")
    assert await transactions.find(db) is None


async def test_the_schema_does_not_go_down_while_batchline_has_the_work(
    db: Session, old: OldDatabase, database_url: str
) -> None:
    batch = old.batch(old.file(3))
    await adopt(db)
    with pytest.raises(StoreUnusable, match="Batchline has adopted this database"):
        await asyncio.to_thread(migrate.down, database_url, "0016")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        old.run("UPDATE requests SET state = 'pending'")
    await check(db)
    await phases.roll_back(db)
    await asyncio.to_thread(migrate.down, database_url, "0016")
    assert old.run("SELECT count(*) FROM pg_trigger WHERE tgname = 'batchline_adopted'") == [(0,)]
    assert old.states(batch) == {"pending": 3}


async def test_old_tables_in_the_schema_of_another_name(db: Session, database_url: str) -> None:
    await sql(db, 'CREATE SCHEMA "Old One"')
    old = OldDatabase(database_url, "eager", schema="Old One")
    batch = old.batch(old.file(3))
    await phases.prepare(db, "Old One")
    with pytest.raises(AdoptionRefused, match="an adoption of schema Old One has begun"):
        await phases.prepare(db, "public")
    await phases.cut_over(db, SETTINGS)
    await check(db)
    await phases.roll_back(db)
    assert old.states(batch) == {"pending": 3}
    old.close()
