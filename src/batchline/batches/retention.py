"""What has had its time is cleared away: in chunks, off everybody's path, for a few seconds at a time.

Files that expired are deleted. Of deleted files, lines and objects go, unless a batch that still runs needs
them. Of batches that ended long ago, or whose own files were all deleted, results and attempts go; the batch
itself, its counters and its summary stay. So do the rows of files, which tell a deleted file from a lost one.
Of governed batches that ended long ago the children go, with their items and files; the audit log never does.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from uuid import UUID

from batchline.files.objects import Objects
from batchline.store import retention
from batchline.store.session import Session

# Who sends the same key again after this long means something else by it.
FORGET_KEYS_AFTER = timedelta(days=7)
# The poller has other things to do; the rest follows soon.
_MAX_SECONDS = 3.0


async def enforce(
    session: Session,
    objects: Objects,
    keep_results: float | None,
    keep_operations: float | None = None,
    *,
    seconds: float = _MAX_SECONDS,
) -> bool:
    """Clear away for so long; True when nothing is left. What is kept in seconds, None: for ever."""
    until = time.monotonic() + seconds
    async with aclosing(_chunks(session, objects, keep_results, keep_operations)) as chunks:
        async for _ in chunks:
            if time.monotonic() >= until:
                return False
    return True


async def _chunks(
    session: Session, objects: Objects, keep_results: float | None, keep_operations: float | None
) -> AsyncGenerator[None]:
    """All there is to do, with a pause after each chunk."""
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
    while await retention.forget_made(session, FORGET_KEYS_AFTER):
        yield


async def _deleted_files(session: Session, objects: Objects) -> AsyncGenerator[None]:
    after: UUID | None = None
    while page := await retention.deleted_files(session, after):
        await retention.purge_batches_of(session, page)
        for file in page:
            while await retention.drop_lines(session, file):
                yield
            if file.object_key is not None:
                await objects.delete([file.object_key])
            await retention.file_purged(session, file)
            yield
        after = page[-1].id


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
