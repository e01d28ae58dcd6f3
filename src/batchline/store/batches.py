"""Batches: create, read, close, conclude, and the commit that ends them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from batchline.model import DURATION_BOUNDS, Batch, BatchChange, ContentError, File, RunSettings
from batchline.model.trace import SUBMISSION
from batchline.store import audit, steps
from batchline.store.audit import AuditEvent
from batchline.store.session import Session, StoreConnection, run, run_records
from batchline.store.spans import WorkerId
from batchline.store.statements import statement

_FIELDS = frozenset(Batch.__struct_fields__)
_BEYOND = UUID(int=2**128 - 1)


class NewBatch(msgspec.Struct, frozen=True):
    id: UUID
    tenant: str
    file_id: UUID
    window: str
    # None: no deadline.
    window_seconds: float | None
    settings: RunSettings
    endpoint: str | None = None
    metadata: dict[str, str] | None = None
    resume_key: str | None = None
    # Seconds that its files are kept; None: until they are deleted.
    output_expires_after: int | None = None
    # The id that its output file will have; None: any.
    planned_output_id: UUID | None = None
    priority: int = 0
    # Requests or items that one worker may have in flight; None: no limit.
    concurrency: int | None = None
    # More items can be added; it does not end before it is released.
    accepting: bool = False
    # Nothing of it runs before it is released.
    held: bool = False


class FileNotFound(Exception):
    """There is no such input file."""


class AlreadyExists(Exception):
    """There is a batch with this resume key."""


async def create(session: Session, new: NewBatch) -> Batch:
    rows = await _insert(session, new)
    if not rows:
        raise FileNotFound(f"no input file {new.file_id}")
    return batch_of(rows[0])


async def _insert(session: Session, new: NewBatch) -> list[dict[str, Any]]:
    try:
        return await session.records(statement("create_batch"), created(new))
    except UniqueViolation as error:
        raise AlreadyExists(f"there is a batch with resume key {new.resume_key}") from error


def submitted(batch_id: UUID, settings: RunSettings) -> Jsonb:
    """The settings of a new batch, with the trace of its submission, if that has one."""
    submission = SUBMISSION.get()
    if submission is not None:
        submission.batches.append(batch_id)
        settings = replace(settings, traceparent=submission.traceparent)
    return Jsonb(msgspec.to_builtins(settings))


def created(new: NewBatch) -> dict[str, Any]:
    return {
        "batch": new.id,
        "tenant": new.tenant,
        "file": new.file_id,
        "endpoint": new.endpoint,
        "window": new.window,
        "window_seconds": new.window_seconds,
        "settings": submitted(new.id, new.settings),
        "metadata": None if new.metadata is None else Jsonb(new.metadata),
        "resume_key": new.resume_key,
        "output_expires_after": new.output_expires_after,
        "planned_output": new.planned_output_id,
        "priority": new.priority,
        "concurrency": new.concurrency,
        "accepting": new.accepting,
        "held": new.held,
    }


async def get(session: Session, batch_id: UUID) -> Batch | None:
    rows = await session.records(statement("get_batch"), {"batch": batch_id})
    return batch_of(rows[0]) if rows else None


async def of_tenant(session: Session, tenant: str, batch_id: UUID) -> Batch | None:
    rows = await session.records(statement("tenant_batch"), {"batch": batch_id, "tenant": tenant})
    return batch_of(rows[0]) if rows else None


async def list_newest(
    session: Session, tenant: str, *, limit: int, after: Batch | None = None
) -> list[Batch]:
    """A page of batches, newest first; `after` is the last one of the page before."""
    after_at, after_id = ("infinity", _BEYOND) if after is None else (after.created_at, after.id)
    params = {"tenant": tenant, "limit": limit, "after_at": after_at, "after_id": after_id}
    rows = await session.records(statement("list_batches"), params)
    return [batch_of(row) for row in rows]


async def ended_before(session: Session, tenant: str, older_than: timedelta) -> list[UUID]:
    """Batches that ended longer ago, the oldest first. Neither governed nor adopted ones."""
    params = {"tenant": tenant, "older_than": older_than}
    return [batch_id for (batch_id,) in await session.rows(statement("ended_before"), params)]


async def find(session: Session, tenant: str, resume_key: str) -> Batch | None:
    rows = await session.records(statement("find_batch"), {"tenant": tenant, "resume_key": resume_key})
    return batch_of(rows[0]) if rows else None


async def with_planned_output(session: Session, tenant: str, file_id: UUID) -> Batch | None:
    """The batch whose output file will have this id, while it is not there yet."""
    rows = await session.records(statement("find_planned_output"), {"tenant": tenant, "file": file_id})
    return batch_of(rows[0]) if rows else None


async def change_settings(session: Session, batch_id: UUID, settings: RunSettings) -> None:
    params = {"batch": batch_id, "settings": Jsonb(msgspec.to_builtins(settings))}
    await session.rows(statement("change_settings"), params)


async def retire(session: Session, tenant: str, resume_key: str) -> None:
    """Let the next run of the same command create a new batch."""
    await session.rows(statement("retire_batch"), {"tenant": tenant, "resume_key": resume_key})


async def close(session: Session, batch_id: UUID, reason: Literal["cancel", "expire", "pause"]) -> bool:
    """Shut the lanes; False when the batch is past that."""
    closed = bool(await session.rows(statement("close"), {"batch": batch_id, "reason": reason}))
    if closed and reason != "pause":
        await conclude(session, batch_id)
    return closed


async def resume(session: Session, batch_id: UUID) -> bool:
    """Let a paused batch run; False if it is not paused."""
    resumed = bool(await session.rows(statement("resume"), {"batch": batch_id}))
    if resumed:
        await steps.begin_part(session, batch_id)
    return resumed


class OrdinaryChange:
    """A change of a batch that is not governed. The batch's row is locked, so `batch` stays true until the
    transaction ends."""

    def __init__(self, connection: StoreConnection, batch: Batch) -> None:
        self._connection = connection
        self.batch = batch

    async def close(self, reason: Literal["cancel", "pause"]) -> bool:
        """After a cancel, the caller must run `conclude` once this is committed."""
        params = {"batch": self.batch.id, "reason": reason}
        return bool(await run(self._connection, statement("close"), params))

    async def resume(self) -> bool:
        return bool(await run(self._connection, statement("resume"), {"batch": self.batch.id}))

    async def change(self, wanted: BatchChange) -> bool:
        return await change(self._connection, self.batch.id, wanted)

    async def audit(self, event: AuditEvent) -> None:
        await audit.add(self._connection, event)


@asynccontextmanager
async def changing(session: Session, tenant: str, batch_id: UUID) -> AsyncIterator[OrdinaryChange | None]:
    """Lock a batch's row; None if it is gone, governed, or another tenant's."""
    params = {"batch": batch_id, "tenant": tenant}
    async with session.transaction() as connection:
        if not await run(connection, statement("lock_ordinary_batch"), params):
            yield None
            return
        (now,) = await run_records(connection, statement("get_batch"), params)
        yield OrdinaryChange(connection, batch_of(now))


async def change(connection: StoreConnection, batch_id: UUID, wanted: BatchChange) -> bool:
    """Give a batch other values; False if it is past changing, or the deadline has passed already."""
    deadline, concurrency = wanted.deadline, wanted.concurrency
    params = {
        "batch": batch_id,
        "priority": None if wanted.priority is UNSET else wanted.priority,
        "concurrency": None if concurrency is UNSET else concurrency or 0,
        "deadline": deadline if isinstance(deadline, datetime) else None,
        "seconds": deadline if isinstance(deadline, float) else None,
        "no_deadline": deadline is None,
    }
    return bool(await run(connection, statement("change_batch"), params))


async def conclude(session: Session, batch_id: UUID) -> bool:
    """Freeze a closing batch of which no live worker holds anything; True if that was done now."""
    ((frozen,),) = await session.rows(statement("conclude"), {"batch": batch_id})
    return bool(frozen)


async def claim_finalizing(
    session: Session,
    worker: WorkerId,
    batch_id: UUID | None = None,
    *,
    under_way: Sequence[UUID] = (),
    after_tenant: str = "",
    max_lines: int | None = None,
) -> Batch | None:
    """Take a batch to finalize, or the given one, unless it waits for its back-off.

    The worker's batches that are `under_way` are not taken twice. Tenants take turns, beginning after
    `after_tenant`.
    """
    rows = await session.records(
        statement("claim_finalizing"),
        {
            "worker": worker.id,
            "name": worker.name,
            "lease": worker.lease,
            "batch": batch_id,
            "under_way": list(under_way),
            "after_tenant": after_tenant,
            "max_lines": max_lines,
        },
    )
    return batch_of(rows[0]) if rows else None


async def yield_finalizing(session: Session, worker_id: UUID, batch_id: UUID) -> None:
    await session.rows(statement("yield_finalizing"), {"batch": batch_id, "worker": worker_id})


async def put_off_finalizing(session: Session, worker_id: UUID, batch_id: UUID, error: str) -> float | None:
    """Note a failure; the seconds until the next try, or None if another worker has the batch."""
    params = {"batch": batch_id, "worker": worker_id, "error": error}
    rows = await session.rows(statement("put_off_finalizing"), params)
    return float(rows[0][0]) if rows else None


async def retry_finalizing(session: Session, batch_id: UUID) -> None:
    """Forget the back-off of a batch whose finalization failed."""
    await session.rows(statement("retry_finalizing"), {"batch": batch_id})


async def summarize(session: Session, batch_id: UUID) -> list[tuple[str, int | None, int, int]]:
    """(outcome, status code, items, most attempts) for each pair that occurs."""
    rows = await session.rows(statement("summarize"), {"batch": batch_id})
    return [(row[0], row[1], row[2], row[3]) for row in rows]


async def finish(
    session: Session,
    worker_id: UUID,
    batch_id: UUID,
    *,
    output: File | None,
    errors: File | None,
    summary: dict[str, object],
    event_id: UUID,
    finalizing_at: datetime,
) -> Batch | None:
    """End the batch; None when this worker is not its finalizer any more. `finalizing_at` is that of the end
    that these files are for: after a retry there is another."""
    made: Sequence[File] = [file for file in (output, errors) if file is not None]
    rows = await session.records(
        statement("finish_batch"),
        {
            "batch": batch_id,
            "worker": worker_id,
            "finalizing_at": finalizing_at,
            "output_file": output.id if output else None,
            "error_file": errors.id if errors else None,
            "summary": Jsonb(summary),
            "file_ids": [file.id for file in made],
            "filenames": [file.filename for file in made],
            "file_bytes": [file.bytes for file in made],
            "line_counts": [file.line_count for file in made],
            "object_keys": [file.object_key for file in made],
            "event": event_id,
            "bounds": list(DURATION_BOUNDS),
        },
    )
    return batch_of(rows[0]) if rows else None


def batch_of(record: dict[str, Any]) -> Batch:
    fields = {name: value for name, value in record.items() if name in _FIELDS}
    if fields["errors"] is not None:
        fields["errors"] = msgspec.convert(fields["errors"], tuple[ContentError, ...])
    fields["settings"] = msgspec.convert(fields["settings"], RunSettings)
    return Batch(**fields)
