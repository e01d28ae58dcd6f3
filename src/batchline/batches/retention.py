"""Retention: deletes old data in chunks, for a few seconds at a time.

It marks expired files as deleted. It deletes lines and objects of deleted files, unless a running batch needs
them. It deletes results and attempts of batches that ended long ago, or whose files were all deleted. It
deletes children, items and files of governed batches that ended long ago. It deletes delivered events and
their deliveries, and notes of progress. It deletes what is left of batches whose row is gone. Other
batches with their counters and summary stay, and so do the audit log and the rows of files, which
distinguish a deleted file from a lost one.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from uuid import UUID

from batchline.files.objects import Objects
from batchline.store import deletion, hooks, overview, retention, tenants, webhooks
from batchline.store.retention import DeletedFile
from batchline.store.session import Session

# A key that is used again after this time is a new key.
FORGET_KEYS_AFTER = timedelta(days=7)
# What the dashboard's charts are drawn from.
NOTES_KEPT = timedelta(days=30)
# The poller has other tasks; the rest follows soon.
_MAX_SECONDS = 3.0


async def enforce(
    session: Session,
    objects: Objects,
    keep_results: float | None,
    keep_operations: float | None = None,
    keep_events: float | None = None,
    *,
    seconds: float = _MAX_SECONDS,
) -> bool:
    """Delete for `seconds`; True when nothing is left. `keep_…` are seconds; None: for ever."""
    until = time.monotonic() + seconds
    async with aclosing(_chunks(session, objects, keep_results, keep_operations, keep_events)) as chunks:
        async for _ in chunks:
            if time.monotonic() >= until:
                return False
    return True


async def drop_deleted_batches(session: Session, *, seconds: float = _MAX_SECONDS) -> bool:
    """Delete what is left of batches whose row is gone, for `seconds`; True when nothing is left."""
    until = time.monotonic() + seconds
    while await deletion.drop_deleted_lanes(session) is not None:
        if time.monotonic() >= until:
            return False
    while await tenants.forget_deleted_batches(session, None):
        pass
    return True


async def _chunks(
    session: Session,
    objects: Objects,
    keep_results: float | None,
    keep_operations: float | None,
    keep_events: float | None,
) -> AsyncGenerator[None]:
    """Do all the work, and yield after each chunk."""
    if keep_operations is not None:
        while await retention.purge_old_operations(session, timedelta(seconds=keep_operations)):
            yield
    while await retention.delete_expired(session):
        yield
    async for _ in _deleted_files(session, objects):
        yield
    if keep_results is not None:
        while await retention.purge_old_batches(session, timedelta(seconds=keep_results)):
            yield
    async for _ in _purging_batches(session):
        yield
    while await retention.drop_idempotency_keys(session, FORGET_KEYS_AFTER):
        yield
    while await overview.drop_old_notes(session, NOTES_KEPT):
        yield
    if keep_events is not None:
        for drop in (webhooks.drop_old, hooks.drop_old, retention.drop_old_events):
            while await drop(session, keep_events):
                yield


async def _deleted_files(session: Session, objects: Objects) -> AsyncGenerator[None]:
    after: UUID | None = None
    while page := await retention.deleted_files(session, after):
        await retention.purge_batches_of(session, page)
        for file in page:
            async with aclosing(purge_file(session, objects, file)) as chunks:
                async for _ in chunks:
                    yield
        after = page[-1].id


async def purge_file(session: Session, objects: Objects, file: DeletedFile) -> AsyncGenerator[int]:
    """Delete the lines and the object of a deleted file; yields the number of rows after each chunk."""
    while rows := await retention.drop_lines(session, file):
        yield rows
    if file.object_key is not None:
        await objects.delete([file.object_key])
    await retention.file_purged(session, file)
    yield 0


async def _purging_batches(session: Session) -> AsyncGenerator[None]:
    after: UUID | None = None
    while page := await retention.purging_batches(session, after):
        for batch_id in page:
            while await retention.drop_results(session, batch_id):
                yield
            while await retention.drop_attempts(session, batch_id):
                yield
            await retention.batch_purged(session, batch_id)
            yield
        after = page[-1]
