"""Uploads in parts. Each part is an object until the upload is completed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.store import uploads
from batchline.store.session import Session
from batchline.store.uploads import Part

# A request that began to complete an upload before it expired may still read its parts.
GRACE = timedelta(hours=1)
# Rows of ended uploads are kept this long.
FORGET_AFTER = timedelta(days=30)


async def joined(objects: Objects, parts: Sequence[Part]) -> AsyncIterator[bytes]:
    """The content of the parts, in order."""
    for part in parts:
        async for block in objects.read(part.object_key):
            yield block


async def clear(session: Session, objects: Objects, upload_id: UUID) -> None:
    """Delete the parts of an ended upload. If that fails, maintenance does it later."""
    with suppress(ObjectStoreUnavailable):
        await _remove(session, objects, upload_id)


async def clear_all(session: Session, objects: Objects) -> int:
    """Maintenance: give back what expired uploads have reserved, delete the parts of ended uploads, and the
    rows of old ones."""
    while await uploads.release(session, GRACE):
        pass
    removed = await _remove(session, objects, None)
    while await uploads.forget(session, FORGET_AFTER):
        pass
    return removed


async def _remove(session: Session, objects: Objects, upload_id: UUID | None) -> int:
    removed = 0
    while page := await uploads.ended_parts(session, GRACE, upload_id):
        # Objects first: a row without an object is found again, an object without a row is not.
        await objects.delete([key for _, key in page])
        await uploads.drop_parts(session, [part_id for part_id, _ in page])
        removed += len(page)
    return removed
