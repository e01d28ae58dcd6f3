"""The trace of a submission is stored with its batch, stays there, and reaches the worker with the claim."""

from uuid import UUID

from batchline.model import RunSettings
from batchline.model.trace import SUBMISSION, TracedSubmission
from batchline.store import batches
from batchline.store.session import Session
from tests.support.builders import a_batch, a_file, a_worker, read, take
from tests.support.governance import ANNA, some_rules, submit

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def a_traced_batch(db: Session) -> tuple[UUID, TracedSubmission]:
    file_id, submission = await a_file(db, {"m": 2}), TracedSubmission(TRACE)
    token = SUBMISSION.set(submission)
    try:
        return (await a_batch(db, file_id=file_id)).id, submission
    finally:
        SUBMISSION.reset(token)


async def test_a_batch_carries_the_trace_of_its_submission_to_its_worker(db: Session) -> None:
    batch_id, submission = await a_traced_batch(db)
    assert submission.batches == [batch_id]
    assert (await read(db, batch_id)).settings.traceparent == TRACE
    assert {item.claim.settings.traceparent for item in await take(db, a_worker())} == {TRACE}


async def test_other_settings_leave_it(db: Session) -> None:
    batch_id, _ = await a_traced_batch(db)
    await batches.change_settings(db, batch_id, RunSettings("http://elsewhere", timeout=3.0))
    assert (await read(db, batch_id)).settings == RunSettings(
        "http://elsewhere", timeout=3.0, traceparent=TRACE
    )


async def test_a_batch_without_a_trace_gets_none(db: Session) -> None:
    batch = await a_batch(db, 1)
    await batches.change_settings(db, batch.id, RunSettings("http://elsewhere"))
    assert (await read(db, batch)).settings == RunSettings("http://elsewhere")


async def test_a_governed_batch_carries_it_too(db: Session) -> None:
    submission = TracedSubmission(TRACE)
    token = SUBMISSION.set(submission)
    try:
        batch = await submit(db, some_rules(), ANNA, 1)
    finally:
        SUBMISSION.reset(token)
    assert submission.batches == [batch.id]
    assert (await read(db, batch.id)).settings.traceparent == TRACE
