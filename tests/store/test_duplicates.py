"""Batches in which identical requests run once: which are sent, who gets the answers, and what is counted."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from batchline.batches import arrangement, creation, maintenance
from batchline.batches.output import answered_line, failed_line, invalid_line
from batchline.batches.retry import retry as retry_batch
from batchline.batches.staging import staged
from batchline.files.objects import Objects
from batchline.model import (
    DEFAULT_TENANT,
    Batch,
    BatchStatus,
    Completed,
    Failed,
    Item,
    RetrySelection,
    RunSettings,
    Unfinished,
    Usage,
)
from batchline.model.ids import new_id
from batchline.store import batches, deletion, doctor, failures, spans, steps
from batchline.store.batches import NewBatch
from batchline.store.creation import BatchCreation
from batchline.store.session import Session
from batchline.store.statements import statement
from tests.support.builders import a_worker, finalize, kill, overrun, pass_time, read, sql, take
from tests.support.builders import retry as retry_later
from tests.support.reuse import UPSTREAM, a_file_of, a_reusing_batch, answer, answer_all, answers

WORKER = a_worker()
# Lines 1, 2 and 4 are sent; 3 and 5 are like 1, and 6 is like 2.
LINES = ["a", "b", "a", "c", "a", "b"]
ONCE = RunSettings(upstream=UPSTREAM, dedupe=True)


async def a_batch_without_duplicates(
    db: Session, bodies: list[str] | None = None, settings: RunSettings = ONCE, **more: Any
) -> Batch:
    file_id = await a_file_of(db, bodies or LINES, **more)
    return await creation.create(db, tenant=DEFAULT_TENANT, file_id=file_id, window="1h", settings=settings)


async def sound(db: Session) -> bool:
    return (await doctor.examine(db)).findings == ()


def refused(item: Item) -> Failed:
    return Failed(item, failed_line(item, "timeout", "no answer"))


async def outputs(db: Session, batch: Batch) -> dict[int, dict[str, object]]:
    rows = await sql(
        db,
        """
        SELECT r.line_no, r.output
        FROM batchline.lanes AS n
        JOIN batchline.results AS r ON r.lane_id = n.id
        WHERE n.batch_id = %(batch)s
        ORDER BY r.line_no
        """,
        batch=batch.id,
    )
    return {line_no: json.loads(output) for line_no, output in rows}


# What is sent, and who gets the answers


async def test_identical_lines_are_sent_once_and_all_get_the_answer(db: Session) -> None:
    batch = await a_batch_without_duplicates(db, custom_ids=list("uvwxyz"))
    assert batch.counts.pending == 6
    assert await sound(db)

    assert await answer_all(db, WORKER, batch) == [1, 2, 4]
    assert await sound(db)
    assert await steps.begin(db, batch.id) == 3

    of = batch.id.hex
    assert await answers(db, batch) == {
        1: ("u", f"{of} 1"),
        2: ("v", f"{of} 2"),
        3: ("w", f"{of} 1"),
        4: ("x", f"{of} 4"),
        5: ("y", f"{of} 1"),
        6: ("z", f"{of} 2"),
    }
    now = await read(db, batch)
    assert (now.status, now.completed, now.duplicates) == (BatchStatus.FINALIZING, 6, 3)
    assert await sound(db)


async def test_each_line_has_its_own_id(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    await answer_all(db, WORKER, batch)
    await steps.begin(db, batch.id)
    ids = [line["id"] for line in (await outputs(db, batch)).values()]
    assert ids == [f"batch_req_{batch.id.hex}_{line_no}" for line_no in range(1, 7)]


async def test_tokens_are_counted_once(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    await answer_all(db, WORKER, batch)
    await steps.begin(db, batch.id)
    now = await read(db, batch)
    assert (now.input_tokens, now.output_tokens) == (9, 15)


@pytest.mark.parametrize("custom_id", ['"', "\\", ',"response":', ',"error":{', "ü\u00a0\U0001f600", "\x7f"])
async def test_any_custom_id_is_replaced_by_any_other(db: Session, custom_id: str) -> None:
    batch = await a_batch_without_duplicates(db, ["a", "a"], custom_ids=[custom_id, custom_id[::-1] + "2"])
    await answer_all(db, WORKER, batch)
    await steps.begin(db, batch.id)
    found = await answers(db, batch)
    assert [name for name, _ in found.values()] == [custom_id, custom_id[::-1] + "2"]
    assert found[1][1] == found[2][1]


async def test_lines_of_another_model_are_not_identical(db: Session) -> None:
    batch = await a_batch_without_duplicates(db, ["a", "a", "a", "a"], models=["x", "y"])
    assert await answer_all(db, WORKER, batch) == [1, 2]
    await steps.begin(db, batch.id)
    of = batch.id.hex
    assert [answer for _, answer in (await answers(db, batch)).values()] == [
        f"{of} 1",
        f"{of} 2",
        f"{of} 1",
        f"{of} 2",
    ]
    assert await sound(db)


async def test_a_batch_without_identical_lines_runs_at_the_cursor(db: Session) -> None:
    batch = await a_batch_without_duplicates(db, list("abc"))
    assert batch.step_total is None
    assert await sql(db, "SELECT count(*) FROM batchline.spans") == [(0,)]
    assert await answer_all(db, WORKER, batch) == [1, 2, 3]
    assert (await read(db, batch)).status is BatchStatus.FINALIZING


async def test_without_the_option_every_line_is_sent(db: Session) -> None:
    batch = await a_batch_without_duplicates(db, settings=RunSettings(upstream=UPSTREAM))
    assert await answer_all(db, WORKER, batch) == [1, 2, 3, 4, 5, 6]
    assert await sql(db, "SELECT count(*) FROM batchline.line_hashes") == [(0,)]


async def test_more_duplicates_than_one_transaction_answers(db: Session) -> None:
    bodies = [str(n % 3) for n in range(5003)]
    batch = await a_batch_without_duplicates(db, bodies)
    assert await sound(db)
    assert await answer_all(db, WORKER, batch) == [1, 2, 3]
    assert await steps.begin(db, batch.id) == 5000
    now = await read(db, batch)
    assert (now.completed, now.duplicates, now.status) == (5003, 5000, BatchStatus.FINALIZING)
    assert await sound(db)


async def test_large_answers_are_copied_in_several_transactions(db: Session) -> None:
    batch = await a_batch_without_duplicates(db, ["a"] * 6)
    (item,) = await take(db, WORKER)
    line = answered_line(item, 200, "req", json.dumps({"answer": "x" * 6 * 2**20}).encode())
    await spans.settle(db, WORKER.id, [Completed(item, 200, line, Usage(3, 0, 5, 0))])
    parts = []
    while (rows := await sql(db, "SELECT batchline.begin_step_v2(%(batch)s)", batch=batch.id)) != [(0,)]:
        parts += [lines for (lines,) in rows]
        assert await sound(db)
    assert parts == [3, 2]
    assert (await read(db, batch)).completed == 6


async def test_a_crash_between_the_last_answer_and_the_copies_loses_nothing(
    db: Session, tmp_path: Path
) -> None:
    batch = await a_batch_without_duplicates(db)
    await answer_all(db, WORKER, batch)
    await kill(db, WORKER)
    # Maintenance of any worker.
    await maintenance.run_due(db, Objects.at(tmp_path))
    assert (await read(db, batch)).duplicates == 3
    assert await sound(db)


async def test_workers_that_answer_at_once_answer_each_duplicate_once(db: Session, database_url: str) -> None:
    batch = await a_batch_without_duplicates(db, [str(n % 7) for n in range(9007)])
    await answer_all(db, WORKER, batch)
    async with Session(database_url, "left") as left, Session(database_url, "right") as right:
        numbers = await asyncio.gather(steps.begin(left, batch.id), steps.begin(right, batch.id))
    # Whoever finds no free span leaves the rest to the other.
    assert sum(numbers) == 9000
    now = await read(db, batch)
    assert (now.completed, now.duplicates, now.status) == (9007, 9000, BatchStatus.FINALIZING)
    assert await sound(db)


async def test_the_view_of_requests_shows_duplicates_as_pending_and_then_as_completed(db: Session) -> None:
    query = "SELECT state FROM batchline.requests WHERE batch_id = %(batch)s ORDER BY line_no"
    batch = await a_batch_without_duplicates(db)
    await answer_all(db, WORKER, batch)
    states = [state for (state,) in await sql(db, query, batch=batch.id)]
    assert states == ["completed", "completed", "pending", "completed", "pending", "pending"]
    await steps.begin(db, batch.id)
    assert {state for (state,) in await sql(db, query, batch=batch.id)} == {"completed"}


# Reuse


async def test_a_reused_answer_goes_to_all_identical_lines(db: Session) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, ["a", "x"]))
    await answer_all(db, WORKER, first)

    second = await a_reusing_batch(db, await a_file_of(db, LINES), settings=ONCE)
    assert second.reused == 1
    assert await sound(db)
    assert await answer_all(db, WORKER, second) == [2, 4]
    await steps.begin(db, second.id)
    assert [answer for _, answer in (await answers(db, second)).values()] == [
        f"{first.id.hex} 1",
        f"{second.id.hex} 2",
        f"{first.id.hex} 1",
        f"{second.id.hex} 4",
        f"{first.id.hex} 1",
        f"{second.id.hex} 2",
    ]
    assert await sound(db)


async def test_any_identical_line_with_a_reused_answer_is_the_leader(db: Session) -> None:
    first = await a_reusing_batch(db, await a_file_of(db, ["a", "a"]))
    one, two = await take(db, WORKER)
    await spans.settle(db, WORKER.id, [refused(one)])
    await answer(db, WORKER, [two])
    second = await a_reusing_batch(db, await a_file_of(db, ["a", "a"]), settings=ONCE)
    assert await answer_all(db, WORKER, second) == []
    await steps.begin(db, second.id)
    assert (await answers(db, second))[1] == ("line-0", f"{first.id.hex} 2")


async def test_a_batch_with_nothing_to_send_is_answered_by_its_first_step(db: Session) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ["a"])))
    second = await a_reusing_batch(db, await a_file_of(db, ["a", "a", "a"]), settings=ONCE)
    assert await sound(db)
    assert await steps.due(db) == [second.id]
    await steps.begin(db, second.id)
    now = await read(db, second)
    assert (now.completed, now.reused, now.duplicates) == (3, 1, 2)
    assert now.status is BatchStatus.FINALIZING
    assert await sound(db)


# Failures and retries


async def fail_line_one(db: Session, batch: Batch) -> None:
    items = await take(db, WORKER)
    await spans.settle(db, WORKER.id, [refused(item) for item in items if item.line_no == 1])
    await answer(db, WORKER, [item for item in items if item.line_no != 1])
    await steps.begin(db, batch.id)


async def test_duplicates_of_a_failed_line_have_failed_for_the_same_cause(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    await fail_line_one(db, batch)

    now = await read(db, batch)
    assert (now.completed, now.failed, now.duplicates) == (3, 3, 3)
    (cause,) = await failures.causes(db, now)
    assert (cause.code, cause.count) == ("timeout", 3)
    lines = await outputs(db, batch)
    assert lines[3]["error"] == lines[1]["error"] == {"code": "timeout", "message": "no answer"}
    assert lines[3]["custom_id"] == "line-2"
    assert await sound(db)


async def test_an_answer_that_does_not_count_is_copied_with_its_error(db: Session) -> None:
    batch = await a_batch_without_duplicates(db, ["a", "a"])
    (item,) = await take(db, WORKER)
    line = invalid_line(answered_line(item, 200, "req", b'{"answer":1}'), "invalid_answer", "no")
    await spans.settle(db, WORKER.id, [Failed(item, line, 200)])
    await steps.begin(db, batch.id)
    lines = await outputs(db, batch)
    assert lines[2] == {**lines[1], "id": f"batch_req_{batch.id.hex}_2", "custom_id": "line-1"}
    assert await sound(db)


async def test_no_rule_pauses_a_batch_because_of_copied_failures(db: Session) -> None:
    settings = staged(ONCE, max_failed=1)
    batch = await a_batch_without_duplicates(db, settings=settings)
    await fail_line_one(db, batch)
    now = await read(db, batch)
    assert (now.failed, now.status) == (3, BatchStatus.FINALIZING)


async def test_a_share_of_failures_is_of_the_lines_that_are_sent(db: Session) -> None:
    # Two of 20 lines that are sent, of 120 in all, are ten percent.
    settings = staged(ONCE, max_failed="9%")
    batch = await a_batch_without_duplicates(db, [str(n % 20) for n in range(120)], settings)
    items = await take(db, WORKER)
    await spans.settle(db, WORKER.id, [refused(item) for item in items[:2]])
    assert (await read(db, batch)).pause_rule == "max_failed"


async def test_a_retry_runs_the_leader_and_answers_all_again(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    await fail_line_one(db, batch)
    ended = await finalize(db, WORKER, await read(db, batch))

    assert await retry_batch(db, ended, RetrySelection()) == 3
    again = await read(db, batch)
    assert (again.failed, again.duplicates, again.counts.pending) == (0, 1, 3)
    assert await sound(db)
    assert await answer_all(db, WORKER, batch) == [1]
    await steps.begin(db, batch.id)
    now = await read(db, batch)
    assert (now.completed, now.duplicates, now.status) == (6, 3, BatchStatus.FINALIZING)
    found = await answers(db, batch)
    assert found[3] == ("line-2", f"{batch.id.hex} 1")
    assert await sound(db)


async def test_a_retry_of_one_cause_leaves_other_failures_and_their_duplicates(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    items = await take(db, WORKER)
    verdicts = [
        refused(item) if item.line_no == 1 else Failed(item, answered_line(item, 500, "req", b"{}"), 500)
        for item in items
    ]
    await spans.settle(db, WORKER.id, verdicts)
    await steps.begin(db, batch.id)
    ended = await finalize(db, WORKER, await read(db, batch))
    assert ended.failed == 6

    assert await retry_batch(db, ended, RetrySelection(codes=("timeout",))) == 3
    assert await sound(db)
    assert await answer_all(db, WORKER, batch) == [1]
    await steps.begin(db, batch.id)
    now = await read(db, batch)
    assert (now.completed, now.failed, now.status) == (3, 3, BatchStatus.FINALIZING)
    assert await sound(db)


# Pause, cancel, expiry, deletion


async def test_a_paused_batch_answers_no_duplicates_before_it_is_resumed(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    items = await take(db, WORKER)
    assert await batches.close(db, batch.id, "pause")
    await answer(db, WORKER, items)
    assert await steps.begin(db, batch.id) == 0
    assert (await read(db, batch)).completed == 3

    assert await batches.resume(db, batch.id)
    assert (await read(db, batch)).completed == 6
    assert await sound(db)


async def test_a_retry_of_a_cancelled_batch_answers_duplicates_without_a_request(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    items = await take(db, WORKER)
    await answer(db, WORKER, [item for item in items if item.line_no == 1])
    await spans.release(db, WORKER.id)
    assert await batches.close(db, batch.id, "cancel")
    cancelled = await finalize(db, WORKER, await read(db, batch))
    assert (cancelled.status, cancelled.completed) == (BatchStatus.CANCELLED, 1)
    assert await sound(db)

    assert await retry_batch(db, cancelled, RetrySelection()) == 5
    assert await sound(db)
    assert await answer_all(db, WORKER, batch) == [2, 4]
    await steps.begin(db, batch.id)
    now = await read(db, batch)
    assert (now.completed, now.duplicates, now.status) == (6, 3, BatchStatus.FINALIZING)
    assert await sound(db)


async def test_a_retry_of_failed_lines_leaves_what_never_ran(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    items = await take(db, WORKER)
    await spans.settle(db, WORKER.id, [refused(item) for item in items if item.line_no == 1])
    await spans.release(db, WORKER.id)
    await overrun(db, batch.id)
    # Its duplicates fail with it, and lines 2, 4 and 6 expire.
    await steps.answer_early(db, batch.id)
    assert await batches.close(db, batch.id, "expire")
    expired = await finalize(db, WORKER, await read(db, batch))
    assert (expired.failed, expired.duplicates) == (3, 2)

    only = RetrySelection(frozenset({Unfinished.FAILED}))
    assert await retry_batch(db, expired, only) == 3
    assert await sound(db)
    assert await answer_all(db, WORKER, batch) == [1]
    await steps.begin(db, batch.id)
    now = await read(db, batch)
    assert (now.completed, now.duplicates, now.counts.expired) == (3, 2, 3)
    assert now.status is BatchStatus.FINALIZING
    assert await sound(db)


async def test_a_batch_that_expires_keeps_the_answers_that_are_there(db: Session, tmp_path: Path) -> None:
    batch = await a_batch_without_duplicates(db)
    items = await take(db, WORKER)
    await answer(db, WORKER, [item for item in items if item.line_no == 1])
    await spans.release(db, WORKER.id)
    await overrun(db, batch.id)

    await maintenance.run_due(db, Objects.at(tmp_path))

    now = await read(db, batch)
    assert (now.completed, now.duplicates, now.counts.expired) == (3, 2, 3)
    assert await sound(db)


async def test_answers_that_are_given_early_let_the_others_run_on(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    items = await take(db, WORKER)
    await answer(db, WORKER, [item for item in items if item.line_no == 1])
    assert await steps.answer_early(db, batch.id) == 2
    assert await steps.answer_early(db, batch.id) == 0
    assert await sound(db)
    await answer(db, WORKER, [item for item in items if item.line_no != 1])
    assert await steps.begin(db, batch.id) == 1
    now = await read(db, batch)
    assert (now.completed, now.duplicates, now.status) == (6, 3, BatchStatus.FINALIZING)
    assert await sound(db)


async def test_a_duplicate_whose_leader_is_lost_runs_itself(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    await answer_all(db, WORKER, batch)
    # Line 6 would get the answer of line 2.
    await sql(db, "UPDATE batchline.duplicates SET leaders = array_replace(leaders, 2, 99)")
    await steps.begin(db, batch.id)
    assert (await read(db, batch)).completed == 5
    assert await answer_all(db, WORKER, batch) == [6]
    assert (await read(db, batch)).status is BatchStatus.FINALIZING
    assert await sound(db)


async def test_a_deleted_batch_leaves_no_duplicates(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    await answer_all(db, WORKER, batch)
    await steps.begin(db, batch.id)
    await finalize(db, WORKER, await read(db, batch))
    await deletion.delete(db, batch.id, force=False)
    assert await sql(db, "SELECT count(*) FROM batchline.duplicates") == [(0,)]


@pytest.mark.parametrize("settings", [staged(ONCE, steps="1,2"), staged(ONCE, sample=2)])
async def test_steps_and_samples_are_refused(settings: RunSettings) -> None:
    with pytest.raises(arrangement.InvalidArrangement, match="steps or a sample"):
        arrangement.check(settings)


async def test_the_doctor_finds_a_wrong_count_of_duplicates(db: Session) -> None:
    batch = await a_batch_without_duplicates(db)
    await answer_all(db, WORKER, batch)
    await steps.begin(db, batch.id)
    await sql(db, "UPDATE batchline.batches SET duplicates = 4")
    (finding,) = (await doctor.examine(db)).findings
    assert finding.check == "duplicates"


# Order


async def test_lines_whose_prompts_begin_alike_are_claimed_together(db: Session) -> None:
    texts = [f"{'x' * 100 if n % 2 else 'y' * 100} question {n}" for n in range(200)]
    bodies = [json.dumps({"seed": n, "messages": [{"content": text}]}) for n, text in enumerate(texts)]
    settings = RunSettings(upstream=UPSTREAM, order="prefix")
    batch = await a_batch_without_duplicates(db, bodies, settings)
    assert await sound(db)

    rows = await sql(
        db, "SELECT outstanding FROM batchline.spans WHERE batch_id = %(batch)s ORDER BY id", batch=batch.id
    )
    kinds = [
        {ordinal % 2 for piece in outstanding for ordinal in range(piece.lower, piece.upper)}
        for (outstanding,) in rows
    ]
    # In one span the two kinds meet.
    assert [len(found) for found in kinds].count(2) == 1
    assert len({kinds[0].pop(), kinds[-1].pop()}) == 2
    assert await answer_all(db, WORKER, batch) == list(range(1, 201))
    assert (await read(db, batch)).status is BatchStatus.FINALIZING
    assert await sound(db)


async def test_order_and_duplicates_go_together(db: Session) -> None:
    settings = RunSettings(upstream=UPSTREAM, order="prefix", dedupe=True)
    batch = await a_batch_without_duplicates(db, settings=settings)
    assert await answer_all(db, WORKER, batch) == [1, 2, 4]
    await steps.begin(db, batch.id)
    assert (await read(db, batch)).completed == 6
    assert await sound(db)


async def test_lines_with_reused_answers_are_not_sent_in_any_order(db: Session) -> None:
    await answer_all(db, WORKER, await a_reusing_batch(db, await a_file_of(db, ["a", "c"])))
    settings = RunSettings(upstream=UPSTREAM, order="prefix")
    batch = await a_reusing_batch(db, await a_file_of(db, ["a", "b", "c", "d"]), settings=settings)
    assert await sound(db)
    assert await answer_all(db, WORKER, batch) == [2, 4]
    assert await sound(db)


# Counts


@pytest.mark.parametrize(
    "settings",
    [ONCE, RunSettings(upstream=UPSTREAM, order="prefix"), RunSettings(upstream=UPSTREAM)],
)
async def test_items_by_state_are_right_at_every_moment(db: Session, settings: RunSettings) -> None:
    # 10 lines, of which 5 are sent if they are sent once.
    batch = await a_batch_without_duplicates(db, [str(n % 5) for n in range(10)], settings)
    sent = 5 if settings.dedupe else 10

    async def states() -> tuple[int, int, int, int]:
        counts = (await read(db, batch)).counts
        return counts.pending, counts.in_progress, counts.retrying, counts.completed

    assert await states() == (10, 0, 0, 0)
    items = await take(db, WORKER, 4)
    assert await states() == (6, 4, 0, 0)
    await answer(db, WORKER, items[:1])
    await spans.settle(db, WORKER.id, [retry_later(items[1], delay=3600)])
    assert await states() == (6, 2, 1, 1)
    await spans.release(db, WORKER.id)
    assert await states() == (8, 0, 1, 1)
    await pass_time(db)
    await answer_all(db, WORKER, batch)
    assert await states() == (10 - sent, 0, 0, sent)


# Plans


OTHERS = """
    WITH
    file AS (
        INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count)
        SELECT gen_random_uuid(), 'other', 'batch', 'x', 0, 1 FROM generate_series(1, 300)
        RETURNING id, no
    ),
    line AS (
        INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
        SELECT no, 0, 0, 1, 'x', 'x' FROM file
    ),
    hash AS (
        INSERT INTO batchline.line_hashes (file_no, lane_no, part, hashes, proofs, ordinals, line_nos)
        SELECT no, 0, 0, '{1}', '{1}', '{0}', '{1}' FROM file
    )
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, available_at)
    SELECT 1000000 + no, id, '{[0,1)}', '9999-12-31 00:00:00+00' FROM file
"""
READ = """
    SELECT relname, seq_tup_read + coalesce(idx_tup_fetch, 0)
    FROM pg_stat_xact_user_tables
    WHERE relname IN ('lines', 'line_hashes', 'spans', 'results', 'lanes', 'duplicates')
"""


@pytest.mark.parametrize("settings", [ONCE, RunSettings(upstream=UPSTREAM, order="prefix")])
async def test_no_lines_hashes_and_spans_of_others_are_read(
    db: Session, database_url: str, settings: RunSettings
) -> None:
    await sql(db, OTHERS)
    file_id = await a_file_of(db, LINES)
    new = NewBatch(new_id(), DEFAULT_TENANT, file_id, "24h", 3600.0, settings)
    async with Session(database_url, "create") as session, session.transaction() as connection:
        made = BatchCreation(connection, new)
        await made.create()
        await made.arrange()
        created: dict[str, int] = dict(await (await connection.execute(READ)).fetchall())
    assert max(created.values()) < 100, created
    await answer_all(db, WORKER, await read(db, new.id))
    async with Session(database_url, "answer") as session, session.transaction() as connection:
        await connection.execute("SELECT batchline.begin_step_v2(%s)", (new.id,))
        answered: dict[str, int] = dict(await (await connection.execute(READ)).fetchall())
    assert max(answered.values()) < 100, answered


async def test_a_resume_answers_one_part_and_leaves_the_rest_to_maintenance(
    db: Session, tmp_path: Path
) -> None:
    """A resume, a retry and a settle must not take as long as all duplicates of a large batch."""
    batch = await a_batch_without_duplicates(db, [str(n % 3) for n in range(5003)])
    await batches.close(db, batch.id, "pause")
    assert await sql(db, "SELECT count(*) FROM batchline.duplicates") == [(3,)]
    await batches.resume(db, batch.id)
    assert await answer_all(db, WORKER, batch) == [1, 2, 3]
    await batches.close(db, batch.id, "pause")

    await batches.resume(db, batch.id)

    assert (await read(db, batch)).duplicates == 2000
    assert await steps.due(db) == [batch.id]
    await maintenance.run_due(db, Objects.at(tmp_path))
    assert (await read(db, batch)).status is BatchStatus.FINALIZING
    assert await sound(db)


@pytest.mark.parametrize("act", [steps.begin, steps.answer_early])
async def test_a_batch_that_was_closed_meanwhile_is_concluded(
    db: Session, act: Callable[[Session, UUID], Awaitable[int]]
) -> None:
    """Whoever closed it may have met a span that was locked to answer its duplicates, and left it."""
    batch = await a_batch_without_duplicates(db)
    await db.rows(statement("close"), {"batch": batch.id, "reason": "cancel"})
    frozen = "SELECT finalizing_at IS NOT NULL FROM batchline.batches"
    assert await sql(db, frozen) == [(False,)]

    await act(db, batch.id)

    assert await sql(db, frozen) == [(True,)]


async def test_a_batch_whose_lines_cannot_all_be_arranged_is_not_created(db: Session) -> None:
    """Otherwise it would never end."""
    file_id = await a_file_of(db, ["a", "b", "a"])
    await sql(db, "DELETE FROM batchline.lines WHERE ordinal = 1")

    with pytest.raises(psycopg.Error, match="3 lines without an answer, but 2 were arranged"):
        await creation.create(
            db, tenant="default", file_id=file_id, window="1h", settings=RunSettings(dedupe=True)
        )
