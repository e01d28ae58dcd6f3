"""Deletes a batch: hides it in one short transaction, then deletes its rows and objects in chunks.

If this is interrupted, maintenance deletes the rest.
"""

from uuid import UUID

import msgspec

from batchline.batches import retention
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.model import Batch
from batchline.store import batches, deletion
from batchline.store.session import Session

_NOT_ENDED = "the batch is {} and has not ended; --force cancels it and deletes it"
_GOVERNED = "the batch is governed: its history is kept, and `operations_retention` deletes its items"


class NotDeletable(Exception):
    """The batch cannot be deleted. The message is for a person."""


class Deleted(msgspec.Struct, frozen=True):
    """What was deleted. `later`: why some objects are left to maintenance."""

    rows: int
    files: int
    later: str | None = None


async def delete(session: Session, objects: Objects, batch: Batch, *, force: bool) -> Deleted:
    """Delete a batch that has ended. With `force` also one that has not; it is cancelled first, so that
    workers give back what they have not sent. Answers to requests in flight are discarded, and workers cancel
    its tasks at providers."""
    if force and batch.ended_at is None:
        await batches.close(session, batch.id, "cancel")
    gone = await deletion.delete(session, batch.id, force=force)
    if gone is None:
        raise NotDeletable(
            _GOVERNED if force or batch.ended_at is not None else _NOT_ENDED.format(batch.status)
        )
    rows, later = gone.spans + await _drop_rows(session, batch.id), None
    for file in gone.files:
        try:
            async for dropped in retention.purge_file(session, objects, file):
                rows += dropped
        except ObjectStoreUnavailable as error:
            later = str(error)
    return Deleted(rows, len(gone.files), later)


async def _drop_rows(session: Session, batch_id: UUID) -> int:
    rows = 0
    while (gone := await deletion.drop_deleted_lanes(session, batch_id)) is not None:
        rows += gone
    return rows
