"""Governed batches in a few words: operations that need no upstream, users, and what workers do with them.

rules = some_rules(cooldown=0)
batch = await submit(db, rules, anna, 3)
await work(db, failures={2})
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from batchline.config.settings import LimitSettings
from batchline.governance import changes, decisions, submissions
from batchline.governance.access import Actor, displayed, visible
from batchline.governance.operations import Operation
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.governance.submissions import Submission
from batchline.model import GovernedBatch, Role
from batchline.store import batches, doctor, operations, spans
from batchline.store.session import Session
from tests.support.builders import LATER, a_worker, completed, failed, finalize, read, sql, take

# Runs nowhere: the tests are the worker.
RESIZE = Operation(
    "resize",
    request=None,
    executor="none",
    schema={
        "type": "object",
        "properties": {
            "vm": {"type": "string"},
            "cpu": {"type": "integer", "minimum": 1},
            "password": {"type": "string"},
            "pin": {"type": "string"},
            "env": {"type": "string"},
        },
        "required": ["vm"],
        "additionalProperties": False,
    },
    largest_batch=50,
    approval="env == 'production'",
    redact=("pin",),
)
WIPE = Operation("wipe", request=None, executor="none", largest_batch=10, approval="always")
REGISTRY = Registry((RESIZE, WIPE))
ANNA = Actor("acme", "anna", Role.USER)
BERT = Actor("acme", "bert", Role.USER)
CARLA = Actor("acme", "carla", Role.APPROVER)
DORA = Actor("acme", "dora", Role.APPROVER)
EMIL = Actor("acme", "emil", Role.ADMIN)
FRITZ = Actor("other", "fritz", Role.ADMIN)

# For tests that are not about them.
GENEROUS = LimitSettings(
    max_pending_parents=10_000, user_pending_parents=10_000, user_pending_children=10_000, cooldown_seconds=0
)


def some_rules(limits: LimitSettings = GENEROUS, **changes: Any) -> Rules:
    return Rules(REGISTRY, replace(limits, **changes), "7d")


def items(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"vm": f"vm-{n}", **more} for n in range(1, count + 1)]


def production(count: int = 1) -> list[dict[str, Any]]:
    """Items that must be approved."""
    return items(count, env="production")


async def submit(
    db: Session,
    rules: Rules,
    actor: Actor = ANNA,
    what: int | list[dict[str, Any]] = 3,
    *,
    operation: str = "resize",
    request_id: UUID | None = None,
    reason: str | None = None,
    hold: bool = False,
) -> GovernedBatch:
    chosen = items(what) if isinstance(what, int) else what
    requested = Submission(operation, chosen, request_id, reason, hold)
    return (await submissions.submit(rules, db, actor, requested)).batch


async def append(
    rules: Rules,
    db: Session,
    actor: Actor,
    batch_id: UUID,
    what: list[dict[str, Any]],
    custom_ids: Sequence[str] | None = None,
) -> GovernedBatch:
    batch = await visible(db, actor, batch_id)
    await changes.permit_append(rules, db, actor, batch)
    prepared = await changes.prepare_append(rules, actor, batch, what, custom_ids)
    return await changes.append(rules, db, actor, batch, prepared)


async def now(db: Session, batch: GovernedBatch) -> GovernedBatch:
    found = await operations.get(db, batch.tenant, batch.id)
    assert found is not None
    return found


async def work(
    db: Session, *, failures: Collection[int] = (), limit: int = 1000, end: bool = True
) -> list[int]:
    """Claim once and settle: the children with these numbers fail, all others succeed; end what is over."""
    worker = a_worker(lease=LATER)
    taken = await take(db, worker, limit)
    verdicts = [failed(item) if item.line_no in failures else completed(item) for item in taken]
    for settled in await spans.settle(db, worker.id, verdicts):
        if settled.closing:
            await batches.conclude(db, settled.batch_id)
    if end:
        await end_all(db)
    return [item.line_no for item in taken]


async def end_all(db: Session) -> None:
    """Finalize whatever is frozen."""
    over = await sql(
        db, "SELECT id FROM batchline.batches WHERE finalizing_at IS NOT NULL AND ended_at IS NULL"
    )
    for (batch_id,) in over:
        await finalize(db, a_worker(), await read(db, batch_id))


async def is_sound(db: Session) -> None:
    report = await doctor.examine(db)
    assert report.clean, report.findings


async def count(db: Session, table: str, where: str = "true") -> int:
    """Rows of one of our tables, or of a view of PostgreSQL's."""
    name = table if table.startswith("pg_") else f"batchline.{table}"
    ((rows,),) = await sql(db, f"SELECT count(*) FROM {name} WHERE {where}")
    return int(rows)


async def audited(db: Session, batch: GovernedBatch) -> list[tuple[str, str, int | None]]:
    """(action, actor, child) of all that the audit log says of a batch, in order."""
    rows = await sql(
        db,
        "SELECT action, actor, sequence_no FROM batchline.audit_log WHERE batch_id = %(id)s ORDER BY id",
        id=batch.id,
    )
    return [(row[0], row[1], row[2]) for row in rows]


async def somebody_waits(db: Session) -> None:
    """Returns when some transaction waits for another one's lock."""
    while not await count(
        db, "pg_stat_activity", "wait_event_type = 'Lock' AND datname = current_database()"
    ):
        await sql(db, "SELECT pg_sleep(0.005)")


async def approve_seen(
    rules: Rules, db: Session, actor: Actor, batch_id: UUID, reason: str | None = None
) -> GovernedBatch:
    """Approve what there is, by its digest."""
    seen = await displayed(db, actor, batch_id)
    return await decisions.approve(rules, db, actor, batch_id, reason, content_digest=seen.decided_digest)
