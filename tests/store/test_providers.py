"""Lines of asynchronous providers: what is known of a submission, the limit of tasks, and the view."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from batchline.model import Batch, Claim, Deferred, Item, SubmissionUnknown, TaskParked, Verdict
from batchline.store import batches, doctor, providers, spans
from batchline.store.providers import ProviderCounts
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from tests.support.builders import (
    LATER,
    a_batch,
    a_worker,
    complete,
    completed,
    deferred,
    failed,
    finalize,
    kill,
    park,
    pass_time,
    retry,
    run_to_the_end,
    sql,
    take,
)
from tests.support.scenes import Stage, database

TWICE = """
    SELECT provider_task_id, count(*) FROM batchline.provider_items
    WHERE provider_task_id IS NOT NULL GROUP BY provider_task_id HAVING count(*) > 1
"""


async def settle(db: Session, worker: WorkerId, *verdicts: Verdict) -> None:
    await spans.settle(db, worker.id, verdicts)


def submissions(items: Sequence[Item]) -> list[str | None]:
    return [item.claim.submission for item in items]


# What is known of a submission


async def test_a_task_is_not_parked_in_a_span_whose_number_belongs_to_another_now(db: Session) -> None:
    """See test_settle.py: the database was restored, and the worker lived through it."""
    worker = a_worker()
    await a_batch(db, 1)
    await a_batch(db, 1)
    lost, item = await take(db, worker)
    stale = replace(lost, claim=replace(lost.claim, span_id=item.claim.span_id))
    assert await park(db, worker, [stale], "task") == 0
    assert await park(db, worker, [item], "task") == 1


async def test_a_fresh_line_was_never_submitted(db: Session) -> None:
    await a_batch(db, 2)
    assert submissions(await take(db, a_worker())) == [None, None]


async def test_lines_of_a_lost_worker_may_have_been_submitted(db: Session) -> None:
    lost, heir = a_worker(), a_worker()
    await a_batch(db, 3)
    await take(db, lost)
    await kill(db, lost)
    assert submissions(await take(db, heir, 2)) == ["interrupted"] * 2
    assert submissions(await take(db, heir, 1)) == ["interrupted"], "the rest of a split span, too"


async def test_lines_that_a_stopping_worker_releases_may_have_been_submitted(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 1)
    await take(db, worker)
    await spans.release(db, worker.id)
    assert submissions(await take(db, a_worker())) == ["interrupted"]


async def test_lines_of_a_claim_whose_answer_was_lost_were_never_submitted(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 1)
    (item,) = await take(db, worker)
    await spans.release(db, worker.id, [item.claim.span_id], sent=False)
    assert submissions(await take(db, a_worker())) == [None]


async def test_a_deferral_keeps_what_is_known_and_a_retry_drops_it(db: Session) -> None:
    lost, heir = a_worker(), a_worker()
    await a_batch(db, 3)
    await take(db, lost)
    await kill(db, lost)
    first, second, third = await take(db, heir)
    await settle(db, heir, deferred(first), retry(second), SubmissionUnknown(third, 0.0))
    found = {item.line_no: (item.claim.submission, item.claim.attempt) for item in await take(db, heir)}
    assert found == {1: ("interrupted", 1), 2: (None, 2), 3: ("unknown", 1)}


async def test_a_task_of_a_lost_worker_is_no_unknown_submission(db: Session) -> None:
    lost, heir = a_worker(), a_worker()
    await a_batch(db, 1)
    await settle(db, lost, *[TaskParked(item, "task", 0.0) for item in await take(db, lost)])
    await take(db, lost)
    await kill(db, lost)
    (item,) = await take(db, heir)
    assert (item.claim.task_id, item.claim.submission) == ("task", None)


async def test_only_the_holder_can_say_that_a_submission_is_unknown(db: Session) -> None:
    lost, heir = a_worker(), a_worker()
    await a_batch(db, 1)
    (late,) = await take(db, lost)
    await kill(db, lost)
    (item,) = await take(db, heir)
    await settle(db, lost, SubmissionUnknown(late, LATER))
    await complete(db, heir, [item])
    assert await sql(db, "SELECT outcome::text FROM batchline.results") == [("completed",)]


# Parking


async def test_many_tasks_are_parked_at_once_and_each_has_a_span(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 5)
    items = await take(db, worker)
    await settle(db, worker, *[TaskParked(item, f"task-{item.line_no}", 0.0) for item in items[:4]])
    rows = await sql(
        db,
        "SELECT task_id, worker_id IS NULL, batchline.span_size(outstanding) FROM batchline.spans ORDER BY 1",
    )
    assert rows == [(f"task-{n}", True, 1) for n in range(1, 5)] + [(None, False, 1)]


async def test_a_task_that_still_runs_keeps_its_span(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 1)
    await settle(db, worker, *[TaskParked(item, "task", 0.0) for item in await take(db, worker)])
    (item,) = await take(db, worker)
    await settle(db, worker, TaskParked(item, "task", LATER))
    assert await sql(db, "SELECT id, task_id, worker_id FROM batchline.spans") == [
        (item.claim.span_id, "task", None)
    ]


async def test_the_result_keeps_the_task(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 2)
    first, second = await take(db, worker)
    await settle(db, worker, TaskParked(first, "task", 0.0), completed(second))
    await run_to_the_end(db, worker)
    assert await sql(db, "SELECT line_no, task_id FROM batchline.results ORDER BY 1") == [
        (1, "task"),
        (2, None),
    ]


# The limit of tasks


async def claimed(
    db: Session, worker: WorkerId, max_tasks: int, limit: int = 100, keys: tuple[str, ...] | None = None
) -> list[Claim]:
    return await spans.claim(db, worker, Scope(keys), limit, max_tasks)


def sizes(claims: Sequence[Claim]) -> int:
    return sum(claim.size for claim in claims)


@pytest.mark.parametrize("keys", [("model",), None], ids=["by key", "all keys"])
async def test_no_more_lines_are_claimed_than_may_become_tasks(
    db: Session, keys: tuple[str, ...] | None
) -> None:
    first, second = a_worker(), a_worker()
    await a_batch(db, 50)
    assert sizes(await claimed(db, first, 10, 6, keys)) == 6
    assert sizes(await claimed(db, second, 10, 100, keys)) == 4, "the other's are being submitted"
    assert await claimed(db, second, 10, 100, keys) == []


async def test_a_parked_task_counts_until_it_has_a_result(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 50)
    items = await spans.fetch(db, worker.id, await claimed(db, worker, 10))
    assert len(items) == 10
    await settle(db, worker, *[TaskParked(item, f"task-{item.line_no}", LATER) for item in items])
    assert await claimed(db, worker, 10) == [], "all of them run"
    await pass_time(db)
    due = await claimed(db, worker, 10)
    assert {claim.task_id for claim in due} == {f"task-{n}" for n in range(1, 11)}, "and these can be polled"
    assert await claimed(db, worker, 10) == []
    await complete(db, worker, (await spans.fetch(db, worker.id, due))[:3])
    assert sizes(await claimed(db, worker, 10)) == 3


async def test_an_unknown_submission_counts_as_a_task(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 50)
    items = await spans.fetch(db, worker.id, await claimed(db, worker, 10))
    await settle(db, worker, *[SubmissionUnknown(item, LATER) for item in items])
    assert await claimed(db, worker, 10) == []


async def test_lines_of_a_lost_worker_are_claimed_again_within_the_limit(db: Session) -> None:
    lost, heir = a_worker(), a_worker()
    await a_batch(db, 50)
    assert sizes(await claimed(db, lost, 10)) == 10
    await kill(db, lost)
    again = await claimed(db, heir, 10)
    assert sizes(again) == 10
    assert {claim.submission for claim in again} == {"interrupted"}


async def test_tasks_of_another_upstream_do_not_count(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, {"here": 5, "there": 5})
    items = await take(db, worker, scope=Scope(("there",)))
    await settle(db, worker, *[TaskParked(item, f"task-{item.line_no}", LATER) for item in items])
    assert sizes(await claimed(db, worker, 3, keys=("here",))) == 3


def test_two_claims_at_once_keep_to_the_limit_together(server_url: str, template: str) -> None:
    """The second one waits until the first one has committed, and then counts what it took."""
    with database(server_url, template) as url, Stage(url) as stage:
        stage.batch(50)
        first, second = stage.hand(), stage.hand()
        with first.holding():
            assert sizes(first.claim(8, max_tasks=10)) == 8
            later = stage.meanwhile(second, lambda: second.claim(8, max_tasks=10))
            assert later.waits()
        assert sizes(later.result()) == 2


# The view


async def view(db: Session, batch: Batch) -> list[tuple[str, str | None]]:
    rows = await sql(
        db,
        """
            SELECT state, provider_task_id FROM batchline.provider_items
            WHERE batch_id = %(batch)s ORDER BY line_no
        """,
        batch=batch.id,
    )
    return [(state, task) for state, task in rows]


async def one_in_every_state(db: Session, worker: WorkerId) -> Batch:
    batch = await a_batch(db, 8)
    items = await take(db, worker, 7)
    await settle(
        db,
        worker,
        TaskParked(items[0], "a", 0.0),
        failed(items[1]),
        retry(items[2], LATER),
        SubmissionUnknown(items[3], LATER),
        TaskParked(items[4], "b", LATER),
        Deferred(items[5], LATER),
    )
    (due,) = await take(db, worker, 1)
    await complete(db, worker, [due])
    return batch


async def test_the_view_has_every_item_once_in_its_state(db: Session) -> None:
    batch = await one_in_every_state(db, a_worker())
    assert await view(db, batch) == [
        ("succeeded", "a"),
        ("failed", None),
        ("queued", None),
        ("submission_unknown", None),
        ("processing", "b"),
        ("queued", None),
        ("submitting", None),
        ("queued", None),
    ]
    assert await sql(db, TWICE) == []


@pytest.mark.parametrize(("reason", "ending"), [("cancel", "canceled"), ("expire", "expired")])
async def test_the_view_keeps_every_item_of_a_batch_that_was_ended(
    db: Session, reason: str, ending: str
) -> None:
    worker = a_worker()
    batch = await one_in_every_state(db, worker)
    await spans.release(db, worker.id)
    await batches.close(db, batch.id, reason)  # type: ignore[arg-type]
    frozen = ["succeeded", "failed", *[ending] * 6]
    assert [state for state, _ in await view(db, batch)] == frozen
    await finalize(db, worker, batch)
    assert [state for state, _ in await view(db, batch)] == frozen


async def test_the_query_of_the_document_finds_a_task_that_stands_for_two_items(db: Session) -> None:
    worker = a_worker()
    await a_batch(db, 2)
    items = await take(db, worker)
    for item in items:
        # One after the other, so that no index prevents it.
        await settle(db, worker, TaskParked(item, "task", 0.0))
        await complete(db, worker, await take(db, worker, 1, scope=Scope(batch_id=item.claim.batch_id)))
    assert await sql(db, TWICE) == [("task", 2)]


# Counts


async def test_unknown_submissions_are_counted_and_the_doctor_notes_them(db: Session) -> None:
    batch = await one_in_every_state(db, a_worker())
    assert await providers.counts(db, Scope(batch_id=batch.id)) == [ProviderCounts("model", 1, 1)]
    assert await providers.counts(db, Scope()) == [ProviderCounts("model", 1, 1)]
    assert await providers.counts(db, Scope(keys=("other",))) == []
    assert await providers.counts(db, Scope(excluded=("model",))) == []
    report = await doctor.examine(db)
    assert report.clean
    assert [note.message for note in report.notes if note.check == "submission_unknown"] == [
        "the provider may have accepted 1 items without an answer"
    ]
