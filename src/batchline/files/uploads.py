"""Files that come in parts: the parts are objects of their own until they are put together."""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.store import uploads
from batchline.store.session import Session
from batchline.store.uploads import Part

# Who began to put parts together before the upload's time was over may still read them.
GRACE = timedelta(hours=1)
# After this long nobody asks what became of an upload.
FORGET_AFTER = timedelta(days=30)


async def joined(objects: Objects, parts: Sequence[Part]) -> AsyncIterator[bytes]:
    """The content of the parts, one after another."""
    for part in parts:
        async for block in objects.read(part.object_key):
            yield block


async def clear(session: Session, objects: Objects, upload_id: UUID) -> None:
    """Remove the parts of an upload that has ended. What cannot be removed now is left to maintenance."""
    with suppress(ObjectStoreUnavailable):
        await _remove(session, objects, upload_id)


async def clear_all(session: Session, objects: Objects) -> int:
    """Maintenance: remove the parts of all uploads that have ended, and forget old uploads."""
    removed = await _remove(session, objects, None)
    while await uploads.forget(session, FORGET_AFTER):
        pass
    return removed


async def _remove(session: Session, objects: Objects, upload_id: UUID | None) -> int:
    removed = 0
    while page := await uploads.ended_parts(session, GRACE, upload_id):
        # Objects first: a row whose object is gone is found again, an object without a row is not.
        await objects.delete([key for _, key in page])
        await uploads.drop_parts(session, [part_id for part_id, _ in page])
        removed += len(page)
    return removed
