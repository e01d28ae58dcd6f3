"""Lines of an ended batch run again in the same batch, exactly once, and one output file has all answers."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchline.batches import deletion, maintenance, retention
from batchline.batches.deletion import NotDeletable
from batchline.batches.finalize import finalize_one
from batchline.batches.retry import BatchGone, InvalidSelection, NotRetryable, retry
from batchline.config.settings import UpstreamSettings
from batchline.executors.routing import RoutingExecutor
from batchline.files.objects import OUTPUTS, Objects
from batchline.model import (
    Batch,
    BatchStatus,
    Failed,
    Item,
    ItemCounts,
    RetrySelection,
    RunSettings,
    SubmissionUnknown,
    Unfinished,
    Verdict,
)
from batchline.model.ids import new_id
from batchline.store import attempts, batches, disk_use, doctor, files, spans
from batchline.store import deletion as store_deletion
from batchline.store import retry as store_retry
from batchline.store.batches import NewBatch
from batchline.store.session import Session, run
from batchline.store.spans import Scope
from batchline.store.statements import statement
from tests.support import builders
from tests.support.builders import (
    LATER,
    a_batch,
    a_file,
    a_worker,
    completed,
    equals,
    failed,
    kill,
    park,
    pass_time,
    read,
    sql,
    take,
    until,
)
from tests.support.executors import Answering
from tests.support.finalizing import recorded
from tests.support.retry_killed import STATEMENTS

ALL = RetrySelection()
# In a batch that `closed` returns.
NOT_COMPLETED = [1, 2, 4, 5, 6, 8, 9, 10, 11, 12]
ONLY_FAILED = RetrySelection(frozenset({Unfinished.FAILED}))


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.at(tmp_path / "objects")


def error(item: Item, code: str) -> Failed:
    line = b'{"id":"x","custom_id":"%b","response":null,"error":{"code":"%b","message":"no \\u0000"}}'
    return Failed(item, line % (item.custom_id, code.encode()))


async def work(
    db: Session, batch: Batch, *, limit: int = 1000, fail: Callable[[Item], bool] = lambda _: False
) -> list[int]:
    """Run up to `limit` lines of a batch; their numbers."""
    worker = a_worker()
    items = await take(db, worker, limit, Scope(batch_id=batch.id))
    verdicts = [failed(item) if fail(item) else completed(item) for item in items]
    await spans.settle(db, worker.id, verdicts)
    return sorted(item.line_no for item in items)


async def end(db: Session, objects: Objects, batch: Batch) -> Batch:
    ended = await finalize_one(db, objects, a_worker(), batch.id)
    assert ended is not None
    await is_sound(db, objects)
    return ended


async def is_sound(db: Session, objects: Objects) -> None:
    report = await doctor.examine(db, object_exists=objects.exists)
    assert report.findings == ()


async def some_failed(db: Session, objects: Objects, lines: int = 9) -> Batch:
    """A batch of two lanes that has ended; every third line has failed."""
    batch = await a_batch(db, {"a": lines // 3, "b": lines - lines // 3})
    await work(db, batch, fail=lambda item: item.line_no % 3 == 0)
    return await end(db, objects, batch)


async def closed(db: Session, objects: Objects, reason: str = "cancel") -> Batch:
    """A batch of 12 lines in two lanes that was closed: lines 1 and 5 have failed, 3 and 7 are completed, 9
    has a failed attempt and no result, 11 was held by a lost worker, and the even ones were never claimed."""
    batch, worker = await a_batch(db, {"a": 6, "b": 6}), a_worker()
    items = sorted(await take(db, worker, 6, Scope(batch_id=batch.id)), key=lambda item: item.line_no)
    one, two, three, four, five, _ = items
    verdicts: list[Verdict] = [failed(one), completed(two), failed(three), completed(four)]
    verdicts.append(builders.retry(five, LATER))
    await spans.settle(db, worker.id, verdicts)
    await kill(db, worker)
    assert await batches.close(db, batch.id, "cancel" if reason == "cancel" else "expire")
    return await end(db, objects, batch)


async def states(db: Session, batch: Batch) -> Counter[str]:
    query = "SELECT state FROM batchline.requests WHERE batch_id = %(batch)s"
    return Counter(state for (state,) in await sql(db, query, batch=batch.id))


# What runs again


async def test_only_failed_lines_run_again_and_one_output_has_all_answers_in_input_order(
    db: Session, objects: Objects
) -> None:
    first = await some_failed(db, objects)
    assert await retry(db, first, ALL) == 3
    await is_sound(db, objects)
    again = await read(db, first)
    assert again.status is BatchStatus.IN_PROGRESS
    assert again.counts == ItemCounts(9, 6, 0, 3, 0, 0, 0, 0)
    assert await work(db, again) == [3, 6, 9]
    second = await end(db, objects, again)
    assert (second.status, second.completed, second.failed) == (BatchStatus.COMPLETED, 9, 0)
    assert await recorded(db, objects, second.output_file_id) == [b'{"answer": %d}' % n for n in range(1, 10)]
    assert second.error_file_id is None
    assert second.summary is not None
    assert second.summary["completed"] == 9


async def test_lines_that_fail_again_are_in_one_error_file(db: Session, objects: Objects) -> None:
    first = await some_failed(db, objects)
    await retry(db, first, ALL)
    await work(db, first, fail=lambda item: item.line_no == 6)
    second = await end(db, objects, first)
    assert await recorded(db, objects, second.error_file_id) == [b'{"error": 6}']
    assert (second.completed, second.failed) == (8, 1)
    assert await retry(db, second, ALL) == 1


async def test_earlier_files_stay_until_the_batch_is_deleted(db: Session, objects: Objects) -> None:
    first = await some_failed(db, objects)
    await retry(db, first, ALL)
    assert await retention.enforce(db, objects, None)
    await work(db, first)
    second = await end(db, objects, first)
    assert second.output_file_id not in (None, first.output_file_id)
    assert len(await recorded(db, objects, first.output_file_id)) == 6
    assert len(await recorded(db, objects, first.error_file_id)) == 3
    deleted = await deletion.delete(db, objects, second, force=False)
    assert deleted.files == 4, "two of the first end, one of the second, and the input"
    assert [key async for page in objects.pages(OUTPUTS) for key in page] == []


async def test_files_of_earlier_ends_are_part_of_the_size_of_their_batch(
    db: Session, objects: Objects
) -> None:
    async def size() -> int:
        (found,) = await disk_use.largest_batches(db, 10)
        return found.output_bytes

    first = await some_failed(db, objects)
    before = await size()
    assert before > 0
    await retry(db, first, ALL)
    assert await size() == before
    await work(db, first)
    await end(db, objects, first)
    assert await size() > before


async def test_an_earlier_file_that_is_deleted_deletes_no_results(db: Session, objects: Objects) -> None:
    first = await some_failed(db, objects)
    await retry(db, first, ALL)
    await work(db, first)
    second = await end(db, objects, first)
    for file_id in (first.output_file_id, first.error_file_id):
        assert file_id is not None
        assert await files.delete(db, first.tenant, file_id)
    assert await retention.enforce(db, objects, None)
    assert (await read(db, second)).purging_at is None
    assert len(await recorded(db, objects, second.output_file_id)) == 9


async def test_a_planned_output_gets_a_new_id(db: Session, objects: Objects) -> None:
    planned = new_id()
    file_id = await a_file(db, {"m": 2})
    new = NewBatch(new_id(), "default", file_id, "24h", LATER, RunSettings(), planned_output_id=planned)
    batch = await batches.create(db, new)
    await work(db, batch, fail=lambda item: item.line_no == 1)
    first = await end(db, objects, batch)
    assert first.output_file_id == planned
    await retry(db, first, ALL)
    again = await read(db, first)
    assert again.planned_output_id not in (None, planned)
    found = await batches.with_planned_output(db, "default", again.planned_output_id or planned)
    assert found is not None
    await work(db, again)
    assert (await end(db, objects, again)).output_file_id == again.planned_output_id
    assert len(await recorded(db, objects, planned)) == 1


async def test_each_end_has_an_event_of_its_own(db: Session, objects: Objects) -> None:
    first = await some_failed(db, objects)
    await retry(db, first, ALL)
    await work(db, first)
    await end(db, objects, first)
    events = await sql(db, "SELECT id, type FROM batchline.outbox")
    assert len({id for id, _ in events}) == 2
    assert {kind for _, kind in events} == {"batch.completed"}


# Attempts


async def test_the_history_keeps_every_attempt_and_the_next_one_follows(
    db: Session, objects: Objects
) -> None:
    batch, worker = await a_batch(db, 1), a_worker()
    (item,) = await take(db, worker)
    await spans.settle(db, worker.id, [builders.retry(item)])
    (item,) = await take(db, worker)
    await spans.settle(db, worker.id, [error(item, "timeout")])
    await retry(db, await end(db, objects, batch), ALL)
    (item,) = await take(db, worker)
    assert item.claim.attempt == 3
    await spans.settle(db, worker.id, [completed(item)])
    await end(db, objects, batch)
    history = await attempts.of_item(db, batch.id, "line-1")
    assert history is not None
    assert (history.state, history.attempt) == ("completed", 3)
    assert [(each.attempt, each.error_code) for each in history.attempts] == [
        (1, "rate_limit"),
        (2, "timeout"),
    ]


async def test_a_line_that_had_used_its_attempts_gets_as_many_again(db: Session, objects: Objects) -> None:
    batch, worker = await a_batch(db, 2), a_worker()
    items = await take(db, worker)
    assert {item.claim.attempts_before for item in items} == {0}
    await spans.settle(db, worker.id, [failed(item) for item in items])
    await retry(db, await end(db, objects, batch), ALL)
    # Also after the span was split, deferred, put off and parked.
    for _ in range(2):
        (item,) = await take(db, worker, 1)
        assert (item.claim.attempt, item.claim.attempts_before) == (2, 1)
        await spans.settle(db, worker.id, [builders.deferred(item)])
    items = await take(db, worker)
    await spans.settle(db, worker.id, [builders.retry(item) for item in items])
    first, second = await take(db, worker)
    assert (first.claim.attempt, first.claim.attempts_before) == (3, 1)
    await park(db, worker, [first], "task")
    (first,) = await take(db, worker)
    assert (first.claim.task_id, first.claim.attempts_before) == ("task", 1)
    await spans.settle(db, worker.id, [failed(first), completed(second)])
    await end(db, objects, batch)


async def test_a_line_whose_task_was_cancelled_gets_a_new_attempt(db: Session, objects: Objects) -> None:
    batch, worker = await a_batch(db, 2), a_worker()
    one, two = await take(db, worker)
    await park(db, worker, [one], "task", delay=LATER)
    await spans.settle(db, worker.id, [completed(two)])
    await batches.close(db, batch.id, "cancel")
    await retry(db, await end(db, objects, batch), ALL)
    (again,) = await take(db, worker)
    assert (again.line_no, again.claim.attempt, again.claim.task_id) == (one.line_no, 2, None)
    await spans.settle(db, worker.id, [completed(again)])
    await end(db, objects, batch)


async def run_out(db: Session, batch: Batch, max_attempts: int) -> None:
    """Its line fails in every attempt that it has."""
    worker, left = a_worker(), True
    while left:
        (item,) = await take(db, worker, scope=Scope(batch_id=batch.id))
        settings = msgspec.structs.replace(item.claim.settings, max_attempts=max_attempts)
        left = msgspec.structs.replace(item.claim, settings=settings).attempts_left
        await spans.settle(db, worker.id, [builders.retry(item) if left else failed(item)])


async def test_a_retried_line_has_the_attempts_of_the_upstream_that_the_worker_routes_it_to(
    db: Session, objects: Objects
) -> None:
    batch, worker = await a_batch(db, 1), a_worker()
    await run_out(db, batch, max_attempts=7)
    await retry(db, await end(db, objects, batch), ALL)
    upstream = UpstreamSettings("any", "http://any/v1", max_attempts=7)
    router = RoutingExecutor((upstream,), Answering())
    for attempt in range(8, 15):
        (item,) = await take(db, worker)
        claim = router.routed(item).claim
        assert (claim.attempt, claim.attempts_left) == (attempt, attempt < 14)
        await spans.settle(db, worker.id, [builders.retry(item)])


async def test_a_retry_with_a_new_maximum_of_attempts_gives_it_to_all_lines(
    db: Session, objects: Objects
) -> None:
    batch, worker = await a_batch(db, 2), a_worker()
    (item,) = await take(db, worker, 1)
    await spans.settle(db, worker.id, [failed(item)])
    await batches.close(db, batch.id, "cancel")
    await retry(db, await end(db, objects, batch), ALL, max_attempts=9)
    claims = [item.claim for item in await take(db, worker)]
    assert [(claim.attempt, claim.attempts_before) for claim in claims] == [(2, 1), (1, 0)]
    assert {claim.settings.max_attempts for claim in claims} == {9}


# Submissions to a provider


def submissions(items: list[Item]) -> dict[int, tuple[int, str | None]]:
    return {item.line_no: (item.claim.attempt, item.claim.submission) for item in items}


@pytest.mark.parametrize("reason", ["cancel", "expire"])
async def test_a_retry_knows_which_lines_a_provider_may_have_accepted(
    db: Session, objects: Objects, reason: str
) -> None:
    batch = await a_batch(db, 9)
    worker, stopped, lost = a_worker(), a_worker(), a_worker()
    items = await take(db, worker, 4)
    await spans.settle(db, worker.id, [builders.retry(items[1])])
    (items[1],) = await take(db, worker, 1)
    verdicts: list[Verdict] = [SubmissionUnknown(item, LATER) for item in items[:2]]
    verdicts += [completed(items[2]), builders.deferred(items[3], LATER)]
    await spans.settle(db, worker.id, verdicts)
    await take(db, stopped, 1)
    await spans.release(db, stopped.id)
    await pass_time(db)
    await take(db, lost, 7)
    await kill(db, lost)
    await batches.close(db, batch.id, reason)  # type: ignore[arg-type]
    ended = await end(db, objects, batch)
    assert await retry(db, ended, ALL) == 8
    await is_sound(db, objects)
    assert submissions(await take(db, worker)) == {
        1: (1, "unknown"),
        2: (2, "unknown"),
        4: (1, "interrupted"),
        5: (1, "interrupted"),
        6: (1, "interrupted"),
        7: (1, "interrupted"),
        8: (1, "interrupted"),
        9: (1, None),
    }
    assert await sql(db, "SELECT FROM batchline.lost_submissions") == []


async def test_a_submission_stays_unknown_through_a_retry_that_leaves_its_line_out(
    db: Session, objects: Objects
) -> None:
    batch, worker = await a_batch(db, 4), a_worker()
    one, two, three = await take(db, worker, 3)
    verdicts: list[Verdict] = [SubmissionUnknown(one, LATER), SubmissionUnknown(two, LATER), failed(three)]
    await spans.settle(db, worker.id, verdicts)
    await batches.close(db, batch.id, "cancel")
    assert await retry(db, await end(db, objects, batch), ONLY_FAILED) == 1
    (three,) = await take(db, worker)
    await spans.settle(db, worker.id, [SubmissionUnknown(three, LATER)])
    await batches.close(db, batch.id, "cancel")
    assert await retry(db, await end(db, objects, batch), ALL) == 4
    assert submissions(await take(db, worker)) == {
        1: (1, "unknown"),
        2: (1, "unknown"),
        3: (2, "unknown"),
        4: (1, None),
    }


# Batches that were closed


@pytest.mark.parametrize("reason", ["cancel", "expire"])
async def test_a_closed_batch_runs_everything_that_is_not_completed(
    db: Session, objects: Objects, reason: str
) -> None:
    first = await closed(db, objects, reason)
    assert await retry(db, first, ALL) == 10
    await is_sound(db, objects)
    again = await read(db, first)
    assert (again.status, again.counts.pending) == (BatchStatus.IN_PROGRESS, 10)
    assert await states(db, first) == {"pending": 10, "completed": 2}
    assert await work(db, first) == NOT_COMPLETED
    second = await end(db, objects, first)
    assert (second.status, second.completed) == (BatchStatus.COMPLETED, 12)
    assert len(await recorded(db, objects, second.output_file_id)) == 12


@pytest.mark.parametrize("reason", ["cancel", "expire"])
async def test_lines_that_a_retry_leaves_out_end_as_before(
    db: Session, objects: Objects, reason: str
) -> None:
    ending = {"cancel": BatchStatus.CANCELLED, "expire": BatchStatus.EXPIRED}[reason]
    state = {"cancel": "canceled", "expire": "expired"}[reason]
    first = await closed(db, objects, reason)
    assert first.status is ending
    assert await retry(db, first, ONLY_FAILED) == 2
    await is_sound(db, objects)
    again = await read(db, first)
    assert again.status is BatchStatus.IN_PROGRESS
    assert (again.counts.pending, getattr(again.counts, ending.value), again.counts.in_progress) == (2, 8, 0)
    assert await states(db, first) == {"pending": 2, "completed": 2, state: 8}
    assert await work(db, first, fail=lambda item: item.line_no == 1) == [1, 5]
    second = await end(db, objects, first)
    assert (second.status, second.completed, second.failed) == (ending, 3, 1)
    assert await states(db, first) == {"failed": 1, "completed": 3, state: 8}
    assert len(await recorded(db, objects, second.output_file_id)) == 3
    lines = await recorded(db, objects, second.error_file_id)
    assert lines[0] == b'{"error": 1}'
    left_out = [2, 4, 6, 8, 9, 10, 11, 12]
    assert [b'"line-%d"' % n in line for n, line in zip(left_out, lines[1:], strict=True)] == [True] * 8
    # They can still run later, and those that nobody had claimed are in their first attempt.
    assert await retry(db, second, ALL) == 9
    items = await take(db, a_worker())
    assert Counter(item.claim.attempt for item in items) == {1: 7, 2: 1, 3: 1}


async def test_a_batch_that_is_cancelled_during_a_retry_ends_without_the_rest(
    db: Session, objects: Objects
) -> None:
    first = await closed(db, objects, "expire")
    await retry(db, first, ONLY_FAILED)
    assert await work(db, first, limit=1) == [1]
    await batches.close(db, first.id, "cancel")
    second = await end(db, objects, first)
    assert second.status is BatchStatus.CANCELLED
    assert (second.counts.completed, second.counts.cancelled) == (3, 9)
    assert len(await recorded(db, objects, second.error_file_id)) == 9


async def test_an_expired_batch_has_the_whole_window_again(db: Session, objects: Objects) -> None:
    batch = await a_batch(db, 2)
    await builders.overrun(db, batch.id)
    await batches.close(db, batch.id, "expire")
    expired = await end(db, objects, batch)
    await retry(db, expired, RetrySelection(frozenset({Unfinished.EXPIRED})))
    ((left,),) = await sql(db, "SELECT expires_at - now() FROM batchline.batches")
    assert timedelta(hours=23) < left <= timedelta(hours=24)
    assert await work(db, batch) == [1, 2]


async def test_a_batch_without_a_deadline_gets_none(db: Session, objects: Objects) -> None:
    batch = await a_batch(db, 1, window=None)
    await work(db, batch, fail=lambda _: True)
    await retry(db, await end(db, objects, batch), ALL)
    assert (await read(db, batch)).expires_at is None
    assert await work(db, batch) == [1]


# Which lines


async def with_codes(db: Session, objects: Objects) -> Batch:
    batch, worker = await a_batch(db, 5), a_worker()
    one, two, three, four, _ = await take(db, worker)
    verdicts: list[Verdict] = [failed(one), error(two, "timeout"), error(three, "timeout"), completed(four)]
    await spans.settle(db, worker.id, verdicts)
    await spans.release(db, worker.id)
    await batches.close(db, batch.id, "cancel")
    return await end(db, objects, batch)


@pytest.mark.parametrize(
    ("codes", "only", "lines"),
    [
        (("http_400",), None, [1]),
        (("timeout",), None, [2, 3]),
        (("timeout", "http_400"), None, [1, 2, 3]),
        (("batch_cancelled",), None, [5]),
        (("batch_cancelled", "timeout"), {"failed"}, [2, 3]),
        (None, {"failed"}, [1, 2, 3]),
        (None, {"cancelled"}, [5]),
        (None, {"cancelled", "failed"}, [1, 2, 3, 5]),
    ],
)
async def test_lines_are_selected_by_code_and_by_how_they_ended(
    db: Session,
    objects: Objects,
    codes: tuple[str, ...] | None,
    only: Collection[str] | None,
    lines: list[int],
) -> None:
    batch = await with_codes(db, objects)
    chosen = None if only is None else frozenset(map(Unfinished, only))
    assert await retry(db, batch, RetrySelection(chosen, codes)) == len(lines)
    await is_sound(db, objects)
    assert await work(db, batch) == lines
    assert (await end(db, objects, batch)).completed == 1 + len(lines)


async def refused(db: Session, batch: Batch, selection: RetrySelection = ALL) -> NotRetryable:
    before = await read(db, batch)
    with pytest.raises(NotRetryable) as refusal:
        await retry(db, batch, selection)
    assert await read(db, batch) == before
    return refusal.value


async def test_a_retry_that_matches_nothing_says_what_there_is_and_changes_nothing(
    db: Session, objects: Objects
) -> None:
    batch = await with_codes(db, objects)
    refusal = await refused(db, batch, RetrySelection(codes=("http_503",)))
    assert refusal.code == "nothing_to_retry"
    assert str(refusal) == (
        "no line matches; the lines that are not completed have the codes: 2 timeout, 1 http_400,"
        " 1 batch_cancelled"
    )
    expired = RetrySelection(frozenset({Unfinished.EXPIRED}))
    assert (await refused(db, batch, expired)).code == "nothing_to_retry"
    good = await a_batch(db, 1)
    await work(db, good)
    await end(db, objects, good)
    assert str(await refused(db, good)) == "every line is completed"


@pytest.mark.parametrize(
    ("selection", "param"),
    [(RetrySelection(codes=("HTTP 401",)), "codes"), (RetrySelection(causes=("no_key",)), "causes")],
)
async def test_codes_and_causes_that_have_no_meaning_are_refused(
    db: Session, objects: Objects, selection: RetrySelection, param: str
) -> None:
    batch = await some_failed(db, objects)
    with pytest.raises(InvalidSelection) as refusal:
        await retry(db, batch, selection)
    assert refusal.value.param == param


# Batches that cannot be retried


async def test_a_batch_that_has_not_ended_is_refused(db: Session, objects: Objects) -> None:
    batch = await a_batch(db, 2)
    await work(db, batch, limit=1, fail=lambda _: True)
    assert (await refused(db, batch)).running
    await work(db, batch)
    finalizing = await refused(db, batch)
    assert finalizing.running
    assert "writing its files" in str(finalizing)


async def test_a_batch_whose_input_was_deleted_is_refused(db: Session, objects: Objects) -> None:
    batch = await some_failed(db, objects)
    await files.delete(db, batch.tenant, batch.file_id)
    assert (await refused(db, batch)).code == "input_deleted"


async def test_a_batch_whose_results_were_deleted_is_refused(db: Session, objects: Objects) -> None:
    batch = await some_failed(db, objects)
    await retention.enforce(db, objects, 0.0)
    assert (await refused(db, await read(db, batch))).code == "results_deleted"


@pytest.mark.parametrize(
    "lost", ["deleted_at = now()", "expires_at = now() - interval '1 second'"], ids=["deleted", "expired"]
)
async def test_a_batch_whose_results_are_about_to_be_deleted_with_its_files_is_refused(
    db: Session, objects: Objects, lost: str
) -> None:
    batch = await some_failed(db, objects)
    made = "UPDATE batchline.files SET " + lost + " WHERE id = %(file)s"
    await sql(db, made, file=batch.output_file_id)
    async with store_retry.retrying(db, batch, None) as held:
        assert held is not None
        assert await held.keep_input() == store_retry.Kept(adopted=False, results_deleted=False)
    await sql(db, made, file=batch.error_file_id)
    assert (await refused(db, batch)).code == "results_deleted"
    # As after the next maintenance.
    await retention.enforce(db, objects, None)
    assert (await refused(db, await read(db, batch))).code == "results_deleted"


async def test_an_adopted_batch_is_refused_until_the_adoption_is_finished(
    db: Session, objects: Objects
) -> None:
    batch = await some_failed(db, objects)
    await sql(db, "INSERT INTO batchline.adopted_batches (batch_id, file_no) VALUES (%(id)s, 1)", id=batch.id)
    assert (await refused(db, batch)).code == "adoption_unfinished"
    await sql(db, "DELETE FROM batchline.adopted_batches")
    assert await retry(db, batch, ALL) == 3


async def test_another_tenants_batch_does_not_exist(db: Session, objects: Objects) -> None:
    batch = await some_failed(db, objects)
    with pytest.raises(BatchGone):
        await retry(db, batch, ALL, tenant="other")
    assert await read(db, batch) == batch


# Two at once


async def waits_for_a_lock(database_url: str, task: asyncio.Task[Any]) -> None:
    """Wait until some connection waits for a lock, and that of the task is the only one that can."""
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with Session(database_url, "watch") as watch:
        await until(lambda: sql(watch, query))
    assert not task.done()


async def test_of_two_retries_one_wins_and_every_line_is_put_back_once(
    database_url: str, objects: Objects
) -> None:
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        batch = await some_failed(one, objects)
        async with store_retry.retrying(one, batch, None) as held:
            assert held is not None
            second = asyncio.create_task(retry(two, batch, ALL))
            await waits_for_a_lock(database_url, second)
            await held.put_back(store_retry.PutBack(LATER, anew=True))
        with pytest.raises(NotRetryable) as refusal:
            await second
        assert refusal.value.running
        await is_sound(one, objects)
        assert await work(one, batch) == [3, 6, 9]
        assert len(await sql(one, "SELECT 1 FROM batchline.retry_attempts")) == 3


async def test_a_retry_that_waits_for_a_deletion_finds_no_batch(database_url: str, objects: Objects) -> None:
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        batch = await some_failed(one, objects)
        async with one.transaction() as connection:
            params = {"batch": batch.id, "force": False}
            assert await run(connection, statement("delete_batch"), params)
            second = asyncio.create_task(retry(two, batch, ALL))
            await waits_for_a_lock(database_url, second)
        with pytest.raises(BatchGone):
            await second


async def test_a_deletion_that_waits_for_a_retry_is_refused(database_url: str, objects: Objects) -> None:
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        batch = await some_failed(one, objects)
        async with store_retry.retrying(one, batch, None) as held:
            assert held is not None
            await held.put_back(store_retry.PutBack(LATER))
            second = asyncio.create_task(deletion.delete(two, objects, batch, force=False))
            await waits_for_a_lock(database_url, second)
        with pytest.raises(NotDeletable):
            await second
        await is_sound(one, objects)
        assert await work(one, batch) == [3, 6, 9]


async def test_a_forced_deletion_of_a_retried_batch_leaves_nothing(db: Session, objects: Objects) -> None:
    batch = await some_failed(db, objects)
    await retry(db, batch, ALL)
    await deletion.delete(db, objects, await read(db, batch), force=True)
    for table in ("batches", "lanes", "spans", "results", "retry_attempts", "counters", "cursors"):
        assert await sql(db, f"SELECT 1 FROM batchline.{table}") == []
    assert await store_deletion.drop_deleted_lanes(db, batch.id) is None


async def test_a_purge_passes_over_a_batch_that_is_being_retried(database_url: str, objects: Objects) -> None:
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        batch = await some_failed(one, objects)
        async with store_retry.retrying(one, batch, None) as held:
            assert held is not None
            await held.put_back(store_retry.PutBack(LATER))
            await retention.enforce(two, objects, 0.0)
        await retention.enforce(two, objects, 0.0)
        assert (await read(one, batch)).purging_at is None
        await is_sound(one, objects)


async def test_the_input_cannot_be_deleted_while_a_retry_is_about_to_use_it(
    database_url: str, objects: Objects
) -> None:
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        batch = await some_failed(one, objects)
        async with store_retry.retrying(one, batch, None) as held:
            assert held is not None
            assert await held.keep_input() == store_retry.Kept(adopted=False, results_deleted=False)
            second = asyncio.create_task(files.delete(two, batch.tenant, batch.file_id))
            await waits_for_a_lock(database_url, second)
            await held.put_back(store_retry.PutBack(LATER))
        assert await second
        # The batch has not ended, so its lines stay.
        await retention.enforce(two, objects, None)
        assert await work(one, batch) == [3, 6, 9]


async def test_a_retry_waits_for_the_commit_of_the_finalizer(database_url: str, objects: Objects) -> None:
    async with Session(database_url, "one") as one, Session(database_url, "two") as two:
        batch = await a_batch(one, 2)
        await work(one, batch, fail=lambda item: item.line_no == 1)
        worker = a_worker()
        taken = await batches.claim_finalizing(one, worker, batch.id)
        assert taken is not None
        async with one.transaction() as connection:
            await run(connection, statement("lock_ordinary_batch"), {"batch": batch.id, "tenant": None})
            second = asyncio.create_task(retry(two, batch, ALL))
            await waits_for_a_lock(database_url, second)
        with pytest.raises(NotRetryable) as refusal:
            await second
        assert refusal.value.running
        assert await builders.finish(one, worker, batch.id) is not None
        assert await retry(two, batch, ALL) == 1


async def test_files_of_an_earlier_end_cannot_end_the_batch_again(db: Session, objects: Objects) -> None:
    """A finalizer whose answer was lost tries its commit again, after the batch was retried, has run to its
    end, and is claimed by the same worker."""
    batch, worker = await a_batch(db, 2), a_worker()
    await work(db, batch, fail=lambda item: item.line_no == 1)
    old = await batches.claim_finalizing(db, worker, batch.id)
    assert old is not None
    assert old.finalizing_at is not None
    ended = await builders.finish(db, worker, batch.id)
    assert ended is not None
    await retry(db, ended, ALL)
    await work(db, batch)
    assert await batches.claim_finalizing(db, worker, batch.id) is not None
    stale = await batches.finish(
        db,
        worker.id,
        batch.id,
        output=None,
        errors=None,
        summary={},
        event_id=new_id(),
        finalizing_at=old.finalizing_at,
    )
    assert stale is None
    assert (await read(db, batch)).ended_at is None


# kill -9


@pytest.mark.parametrize("step", STATEMENTS)
async def test_a_process_that_is_killed_at_any_step_has_retried_all_or_nothing(
    db: Session, database_url: str, objects: Objects, step: str
) -> None:
    batch = await closed(db, objects)
    command = [sys.executable, "-m", "tests.support.retry_killed", database_url, str(batch.id), step]
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == -9
    # PostgreSQL notices that the process is gone when it next reads from or writes to it.
    left = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'batchline retry'"
    await until(lambda: equals(sql(db, left), []))
    await is_sound(db, objects)
    now = await read(db, batch)
    if step == "nothing":
        assert now.ended_at is None
    else:
        assert now == batch
        assert await retry(db, batch, ALL) == 10
    assert await work(db, batch) == NOT_COMPLETED
    assert (await end(db, objects, batch)).completed == 12


# Maintenance and the doctor


async def test_the_repair_of_stuck_batches_knows_lines_that_were_left_out(
    db: Session, objects: Objects
) -> None:
    batch = await closed(db, objects)
    await retry(db, batch, ONLY_FAILED)
    await sql(db, "DELETE FROM batchline.spans")
    await sql(db, "UPDATE batchline.batches SET left_out = 10")
    await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now()")
    await maintenance.run_due(db, objects)
    again = await read(db, batch)
    assert again.status is BatchStatus.CANCELLING
    assert again.finalizing_at is not None
    assert (await end(db, objects, batch)).counts.cancelled == 10


async def test_the_doctor_finds_a_line_that_a_retry_has_lost(db: Session, objects: Objects) -> None:
    batch = await closed(db, objects)
    await retry(db, batch, ONLY_FAILED)
    await sql(db, "DELETE FROM batchline.spans")
    report = await doctor.examine(db)
    assert [(each.check, each.message) for each in report.findings] == [
        ("partition", "8 items were left out by a retry, but 10 have neither a result nor are outstanding")
    ]


async def test_scattered_lines_are_put_back_in_spans_of_limited_size(db: Session, objects: Objects) -> None:
    batch = await a_batch(db, 25_000)
    for _ in range(25):
        await work(db, batch, fail=lambda item: item.line_no % 2 == 0)
    await retry(db, await end(db, objects, batch), ALL)
    sizes = await sql(db, "SELECT batchline.span_size(outstanding) FROM batchline.spans ORDER BY id")
    assert sorted(size for (size,) in sizes) == [2500, 5000, 5000]
