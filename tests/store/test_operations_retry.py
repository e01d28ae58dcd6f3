"""Retry: failed children only, at most three attempts in all, history kept, the invariant too."""

import asyncio
from pathlib import Path

import pytest

from batchline.batches import retention
from batchline.batches.finalize import finalize_one
from batchline.files.objects import Objects
from batchline.governance import changes
from batchline.governance.errors import Conflict
from batchline.governance.rules import Rules
from batchline.model import ChildCounts, ChildStatus, GovernedBatch, ParentStatus, Verdict
from batchline.store import doctor, operations, spans
from batchline.store.session import Session
from tests.support.builders import a_worker, deferred, retry, sql, take
from tests.support.builders import read as read_batch
from tests.support.governance import ANNA, audited, count, end_all, is_sound, now, some_rules, submit, work


async def refused(rules: Rules, db: Session, batch: GovernedBatch) -> str:
    with pytest.raises(Conflict) as error:
        await changes.retry(rules, db, ANNA, batch.id)
    await is_sound(db)
    return error.value.code


async def test_failed_children_run_again_and_the_others_stay(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 4)
    await work(db, failures={2, 3})
    again = await changes.retry(rules, db, ANNA, batch.id)
    assert (again.status, again.counts) == (
        ParentStatus.IN_PROGRESS,
        ChildCounts(pending=2, succeeded=2),
    )
    await is_sound(db)
    displayed = await operations.children(db, batch.id, after=0, limit=10)
    assert [(child.status, child.attempt_count) for child in displayed] == [
        (ChildStatus.SUCCEEDED, 1),
        (ChildStatus.PENDING, 1),
        (ChildStatus.PENDING, 1),
        (ChildStatus.SUCCEEDED, 1),
    ]
    assert await work(db, failures={3}) == [2, 3]
    current = await now(db, batch)
    assert (current.status, current.counts) == (
        ParentStatus.PARTIAL_SUCCESS,
        ChildCounts(succeeded=3, failed=1),
    )
    displayed = await operations.children(db, batch.id, after=0, limit=10)
    assert [child.attempt_count for child in displayed] == [1, 2, 2, 1]
    await is_sound(db)


async def test_there_are_at_most_three_attempts(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 2)
    assert await refused(rules, db, batch) == "BATCH_IN_PROGRESS"
    await work(db, failures={1, 2})
    await changes.retry(rules, db, ANNA, batch.id)
    assert await refused(rules, db, batch) == "RETRY_IN_PROGRESS"
    await work(db, failures={1, 2})
    await changes.retry(rules, db, ANNA, batch.id)
    await work(db, failures={2})
    assert (await now(db, batch)).counts == ChildCounts(succeeded=1, failed=1)
    assert await refused(rules, db, batch) == "RETRY_LIMIT_REACHED"
    assert (await now(db, batch)).counts == ChildCounts(succeeded=1, failed=1)


async def test_attempts_of_the_worker_count_too(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 1)
    worker = a_worker()
    await spans.settle(db, worker.id, [retry(item) for item in await take(db, worker)])
    await work(db, failures={1})
    await changes.retry(rules, db, ANNA, batch.id)
    await work(db, failures={1})
    (child,) = await operations.children(db, batch.id, after=0, limit=10)
    assert child.attempt_count == 3
    assert await refused(rules, db, batch) == "RETRY_LIMIT_REACHED"


async def test_some_have_attempts_left_and_some_have_not(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 2)
    worker = a_worker()
    for _ in range(2):
        one, *others = sorted(await take(db, worker), key=lambda item: item.line_no)
        verdicts: list[Verdict] = [retry(one), *(deferred(item) for item in others)]
        await spans.settle(db, worker.id, verdicts)
    await work(db, failures={1, 2})
    again = await changes.retry(rules, db, ANNA, batch.id)
    assert again.counts == ChildCounts(pending=1, failed=1), "only the second has attempts left"
    assert await work(db) == [2]
    assert (await now(db, batch)).status is ParentStatus.PARTIAL_SUCCESS
    await is_sound(db)


async def test_nothing_failed_or_cancelled_is_nothing_to_retry(db: Session) -> None:
    rules = some_rules()
    good = await submit(db, rules, ANNA, 2)
    await work(db)
    assert await refused(rules, db, good) == "NOTHING_TO_RETRY"
    cancelled = await submit(db, rules, ANNA, 2)
    await work(db, limit=1, failures={1})
    await changes.cancel(db, ANNA, cancelled.id)
    await end_all(db)
    assert await refused(rules, db, cancelled) == "BATCH_CANCELLED"


async def test_while_the_files_are_written_a_retry_has_to_wait(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 1)
    await work(db, failures={1}, end=False)
    assert await refused(rules, db, batch) == "BATCH_FINALIZING"
    await end_all(db)
    await changes.retry(rules, db, ANNA, batch.id)


async def test_of_two_retries_at_once_one_wins(database_url: str) -> None:
    rules = some_rules()
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        batch = await submit(one, rules, ANNA, 3)
        await work(one, failures={1, 2, 3})
        answers = await asyncio.gather(
            *(changes.retry(rules, session, ANNA, batch.id) for session in (one, two)),
            return_exceptions=True,
        )
        codes = [answer.code for answer in answers if isinstance(answer, Conflict)]
        assert codes == ["RETRY_IN_PROGRESS"]
        assert (await now(one, batch)).counts == ChildCounts(pending=3)
        assert await count(one, "retry_attempts") == 3
        await is_sound(one)


async def test_the_history_keeps_the_error_of_each_attempt(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 1)
    await work(db, failures={1})
    await changes.retry(rules, db, ANNA, batch.id)
    await work(db, failures={1})
    await changes.retry(rules, db, ANNA, batch.id)
    await work(db)
    history = await sql(
        db, "SELECT attempt, error_code, message FROM batchline.retry_attempts ORDER BY attempt"
    )
    assert history == [(1, "http_400", '{"error": 1}'), (2, "http_400", '{"error": 1}')]
    assert [action for action, _, _ in await audited(db, batch)] == [
        "batch.submitted",
        "child.ended",
        "batch.retried",
        "child.ended",
        "batch.retried",
        "child.ended",
    ]


async def test_the_files_are_written_again_and_the_old_ones_are_left_to_the_sweep(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 2)
    await work(db, failures={1})
    before = await read_batch(db, batch.id)
    await changes.retry(rules, db, ANNA, batch.id)
    open_again = await read_batch(db, batch.id)
    assert (open_again.output_file_id, open_again.error_file_id, open_again.ended_at) == (None,) * 3
    assert await count(db, "files", "deleted_at IS NOT NULL") == 2
    await work(db)
    ended = await read_batch(db, batch.id)
    assert ended.output_file_id not in (None, before.output_file_id)
    assert ended.error_file_id is None
    await is_sound(db)


async def test_a_retry_has_the_whole_window_again(db: Session) -> None:
    rules = some_rules()
    batch = await submit(db, rules, ANNA, 1)
    await work(db, failures={1})
    await sql(db, "UPDATE batchline.batches SET expires_at = now() - interval '1 s'")
    await sql(db, "UPDATE batchline.lanes SET deadline = now() - interval '1 s'")
    await changes.retry(rules, db, ANNA, batch.id)
    assert await work(db) == [1]
    assert (await now(db, batch)).status is ParentStatus.COMPLETED


async def test_with_a_real_finalizer_and_real_objects_nothing_is_lost_and_nothing_stays(
    db: Session, tmp_path: Path
) -> None:
    objects = Objects.at(tmp_path)

    def written() -> list[str]:
        return [path.read_text() for path in tmp_path.rglob("*.jsonl")]

    rules = some_rules()
    batch = await submit(db, rules, ANNA, 3)
    await work(db, failures={2}, end=False)
    first = await finalize_one(db, objects, a_worker(), batch.id)
    assert first is not None
    await changes.retry(rules, db, ANNA, batch.id)
    assert await retention.enforce(db, objects, None)
    assert written() == [], "the old files are cleared away"
    assert (await doctor.examine(db, object_exists=objects.exists)).clean
    await work(db, end=False)
    second = await finalize_one(db, objects, a_worker(), batch.id)
    assert second is not None
    assert (second.completed, second.failed, second.error_file_id) == (3, 0, None)
    assert [text.count("\n") for text in written()] == [3]
    assert (await doctor.examine(db, object_exists=objects.exists)).clean
