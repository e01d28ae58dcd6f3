"""Batches that reuse earlier answers: files with chosen bodies, answers as the HTTP executor gives them."""

import json
from collections.abc import Iterable, Sequence
from uuid import UUID

from batchline.batches import creation, reuse
from batchline.batches.output import answered_line
from batchline.model import DEFAULT_TENANT, Batch, Completed, Item, RunSettings, Usage
from batchline.model.ids import new_id
from batchline.store import spans
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from tests.support.builders import sql, take

UPSTREAM = "http://model.example/v1"


async def a_file_of(
    db: Session,
    bodies: Sequence[str],
    *,
    tenant: str = DEFAULT_TENANT,
    custom_ids: Sequence[str] | None = None,
    models: Sequence[str] = ("model",),
    url: str = "/v1/chat/completions",
) -> UUID:
    """An input file with these bodies. Line n is for the model n % len(models)."""
    file_id = new_id()
    await sql(
        db,
        """
        WITH file AS (
            INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count)
            VALUES (%(file)s, %(tenant)s, 'batch', 'input.jsonl', 0, %(lines)s)
            RETURNING no
        ),
        line AS (
            SELECT no, nth, body, custom_id, (nth - 1) %% cardinality(%(models)s::text[]) AS lane_no
            FROM file
            CROSS JOIN unnest(%(bodies)s::text[], %(custom_ids)s::text[])
                WITH ORDINALITY AS given (body, custom_id, nth)
        ),
        lane AS (
            INSERT INTO batchline.file_lanes (file_no, lane_no, model, url, total)
            SELECT no, lane_no, (%(models)s::text[])[lane_no + 1], %(url)s, count(*)
            FROM line
            GROUP BY no, lane_no
        )
        INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
        SELECT
            no, lane_no, row_number() OVER (PARTITION BY lane_no ORDER BY nth) - 1, nth, custom_id, body
        FROM line
        """,
        file=file_id,
        tenant=tenant,
        lines=len(bodies),
        bodies=list(bodies),
        custom_ids=list(custom_ids or (f"line-{n}" for n in range(len(bodies)))),
        models=list(models),
        url=url,
    )
    return file_id


async def a_reusing_batch(
    db: Session,
    file_id: UUID,
    *,
    tenant: str = DEFAULT_TENANT,
    settings: RunSettings | None = None,
    resume_key: str | None = None,
) -> Batch:
    """A batch that reuses what it can, as `run` creates it."""
    used = settings or RunSettings(upstream=UPSTREAM)
    plan = await reuse.plan(db, tenant, file_id, used)
    await reuse.prepare(db, plan)
    return await creation.create(
        db,
        tenant=tenant,
        file_id=file_id,
        # As `a_batch`.
        window="1h",
        settings=used,
        resume_key=resume_key,
        plan=plan,
    )


def answered(item: Item) -> Completed:
    """An answer that tells itself from all others."""
    body = json.dumps({"answer": f"{item.claim.batch_id.hex} {item.line_no}"}).encode()
    return Completed(item, 200, answered_line(item, 200, "req", body), Usage(3, 0, 5, 0))


async def answer(db: Session, worker: WorkerId, items: Iterable[Item]) -> None:
    await spans.settle(db, worker.id, [answered(item) for item in items])


async def answer_all(db: Session, worker: WorkerId, batch: Batch) -> list[int]:
    """Answer every line of the batch that can be claimed. Returns their numbers."""
    sent: list[int] = []
    while items := await take(db, worker, scope=Scope(None, batch.id)):
        await answer(db, worker, items)
        sent += [item.line_no for item in items]
    return sorted(sent)


async def answers(db: Session, batch: Batch) -> dict[int, tuple[str, str]]:
    """(custom_id, answer) of each completed line, by its number. Checks that each output is JSON."""
    rows = await sql(
        db,
        """
        SELECT r.line_no, r.output
        FROM batchline.lanes AS n
        JOIN batchline.results AS r ON r.lane_id = n.id
        WHERE n.batch_id = %(batch)s AND r.outcome = 'completed'
        ORDER BY r.line_no
        """,
        batch=batch.id,
    )
    found = {line_no: json.loads(output) for line_no, output in rows}
    return {no: (line["custom_id"], line["response"]["body"]["answer"]) for no, line in found.items()}
