"""Erases a tenant: stops its work, then deletes all that belongs to it, in chunks.

`governance/tenants.py` begins an erasure: from then on, the database refuses new data of the tenant. Any
worker continues it, and so does the command that began it. Every step can be repeated and may run twice at
once, so a process that is killed leaves nothing half done. The last step looks again for rows of the tenant,
under a lock that no transaction with new data of it survives. The audit log keeps its entries
(docs/decisions/0020-erasing-a-tenant.md).
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import Enum
from uuid import UUID

import structlog

from batchline.batches import retention
from batchline.files.objects import OUTPUTS, Objects
from batchline.store import batches, deletion, maintenance, tenants, uploads
from batchline.store.session import Session

# The poller has other tasks; the rest follows soon.
_MAX_SECONDS = 3.0
# Until it is looked again whether the requests in flight have ended, and provider tasks are cancelled.
_PAUSE = 2.0

_log = structlog.get_logger("batchline.erasure")


class ErasureProgress(Enum):
    DONE = "done"
    # The time was over.
    MORE = "more"
    # For requests in flight, files that are being written, or tasks to be cancelled at providers.
    WAITING = "waiting"


async def run_due(session: Session, objects: Objects) -> bool:
    """Maintenance: continue all erasures. False if one should go on at once."""
    finished = True
    for tenant in await tenants.erasing(session):
        match await erase(session, objects, tenant):
            case ErasureProgress.DONE:
                _log.info("tenant erased", tenant=tenant)
            case ErasureProgress.MORE:
                finished = False
            case ErasureProgress.WAITING:
                await maintenance.repeat_task(session, "erasure", _PAUSE)
    return finished


async def erase(
    session: Session, objects: Objects, tenant: str, *, seconds: float = _MAX_SECONDS
) -> ErasureProgress:
    """Delete data of a tenant that is being erased, for about `seconds`."""
    until = time.monotonic() + seconds
    async with aclosing(_chunks(session, objects, tenant)) as chunks:
        async for _ in chunks:
            if time.monotonic() >= until:
                return ErasureProgress.MORE
    remains = await tenants.finish_erasure(session, tenant)
    return ErasureProgress.DONE if remains == [] else ErasureProgress.WAITING


async def _chunks(session: Session, objects: Objects, tenant: str) -> AsyncGenerator[None]:
    """Do all that can be done now, and yield after each chunk that has changed something."""
    for step in (_stop, _batches, _remnants, _uploads, _files, _rows):
        async with aclosing(step(session, objects, tenant)) as chunks:
            async for _ in chunks:
                yield


async def _stop(session: Session, objects: Objects, tenant: str) -> AsyncGenerator[None]:
    """Close all batches that run, before anything is deleted. Requests in flight end first."""
    after: UUID | None = None
    while page := await tenants.running_batches(session, tenant, after):
        await tenants.withhold_finalizing(session, [batch_id for batch_id, _ in page])
        for batch_id, closing in page:
            if closing:
                changed = await batches.conclude(session, batch_id)
            else:
                changed = await batches.close(session, batch_id, "cancel")
            if changed:
                yield
        after = page[-1][0]


async def _batches(session: Session, objects: Objects, tenant: str) -> AsyncGenerator[None]:
    while await tenants.erase_batches(session, tenant):
        yield


async def _remnants(session: Session, objects: Objects, tenant: str) -> AsyncGenerator[None]:
    """What is left of batches whose row is gone: results, attempts, events, files of killed finalizers."""
    after: UUID | None = None
    while page := await tenants.deleted_batches(session, tenant, after):
        for batch_id in page:
            while await deletion.drop_deleted_lanes(session, batch_id) is not None:
                yield
            async for found in objects.pages(f"{OUTPUTS}{batch_id.hex}/"):
                await objects.delete([each.key for each in found])
                yield
        if await tenants.erase_events(session, page):
            yield
        # Page by page, so that nobody looks at the same batches again.
        if await tenants.forget_deleted_batches(session, tenant):
            yield
        after = page[-1]


async def _uploads(session: Session, objects: Objects, tenant: str) -> AsyncGenerator[None]:
    while page := await tenants.parts(session, tenant):
        # Objects first: a row without an object is found again, an object without a row is not.
        await objects.delete([key for _, key in page])
        await uploads.drop_parts(session, [part_id for part_id, _ in page])
        yield
    while await tenants.erase_uploads(session, tenant):
        yield


async def _files(session: Session, objects: Objects, tenant: str) -> AsyncGenerator[None]:
    while await tenants.delete_files(session, tenant):
        yield
    after: UUID | None = None
    while page := await tenants.files(session, tenant, after):
        for file in page:
            async with aclosing(retention.purge_file(session, objects, file)) as chunks:
                async for _ in chunks:
                    yield
        after = page[-1].id
    while await tenants.erase_files(session, tenant):
        yield


async def _rows(session: Session, objects: Objects, tenant: str) -> AsyncGenerator[None]:
    while await tenants.erase_rows(session, tenant):
        yield
