"""What earlier requests have used: of the same tenant, and rather of batches without reused answers."""

from batchline.batches.output import answered_line
from batchline.model import DEFAULT_TENANT, Batch, Completed, Usage
from batchline.store import forecasts, spans
from batchline.store.forecasts import LearnedUsage
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from tests.support.builders import a_batch, a_worker, completed, failed, take
from tests.support.reuse import a_file_of, a_reusing_batch


async def answer(db: Session, worker: WorkerId, batch: Batch, tokens: int) -> None:
    items = await take(db, worker, scope=Scope(batch_id=batch.id))
    usage = Usage(input_tokens=tokens)
    answers = [Completed(item, 200, answered_line(item, 200, "r", b"{}"), usage) for item in items]
    await spans.settle(db, worker.id, answers)


async def test_usage_is_learned_by_model_from_completed_lines_of_the_tenant(db: Session) -> None:
    worker, batch = a_worker(), await a_batch(db, {"a": 2, "b": 1, "c": 1})
    items = await take(db, worker)
    await spans.settle(
        db,
        worker.id,
        [failed(item) if item.claim.model == "b" else completed(item) for item in items],
    )
    await answer(db, worker, await a_batch(db, {"a": 5}, tenant="other"), 1)

    # The body of a line is {"line": 7}.
    learned = await forecasts.learned(db, batch.tenant, ["a", "b", "d"])
    assert learned == {"a": LearnedUsage("a", 2, 2 * 11, 6, 10)}


async def test_batches_with_reused_answers_come_after_the_newest_twenty(db: Session) -> None:
    worker, bodies = a_worker(), [f'{{"q": {n}}}' for n in range(24)]
    for n in range(21):
        batch = await a_reusing_batch(db, await a_file_of(db, [bodies[n]]))
        await answer(db, worker, batch, 100 + n)
    reusing = await a_reusing_batch(db, await a_file_of(db, bodies[20:]))
    assert reusing.reused == 1
    await answer(db, worker, reusing, 1)

    learned = await forecasts.learned(db, DEFAULT_TENANT, ["model"])
    assert learned["model"].requests == 20
    assert learned["model"].input_tokens == sum(range(101, 121))
