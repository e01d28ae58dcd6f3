"""The history of one item."""

from typing import Any
from uuid import UUID

import msgspec

from batchline.model import Attempt, AttemptTimes, ItemHistory
from batchline.model.failure import MAX_MESSAGE, error_of_line
from batchline.store.session import Session
from batchline.store.statements import statement

# How batches/output.py begins a line.
_LINE = '{"id":"batch_req_'


async def of_item(session: Session, batch_id: UUID, custom_id: str) -> ItemHistory | None:
    """Find an item by its custom_id; None if the batch has no such item, or its results have been deleted."""
    if not _storable(custom_id):
        return None
    params = {"batch": batch_id, "custom_id": custom_id}
    rows = await session.records(statement("item_attempts"), params)
    if not rows:
        return None
    return _history(rows[0])


def _history(row: dict[str, Any]) -> ItemHistory:
    output: str | None = row.pop("output")
    if output is not None:
        row["error_code"], message = error_of_line(output.encode(), row["status_code"])
        row["message"] = message[:MAX_MESSAGE]
    row["attempts"] = tuple(map(_attempt, msgspec.convert(row["attempts"], tuple[Attempt, ...])))
    row["times"] = msgspec.convert(row["times"], AttemptTimes | None)
    return ItemHistory(**row)


def _attempt(stored: Attempt) -> Attempt:
    """A result that a retry has put back is stored as its whole error line (put_back_failed)."""
    message = stored.message
    if message.startswith(_LINE):
        message = error_of_line(message.encode(), None)[1]
    return msgspec.structs.replace(stored, message=message[:MAX_MESSAGE])


def _storable(text: str) -> bool:
    """Whether PostgreSQL could have it: no zero byte, and no half of a surrogate pair."""
    return "\0" not in text and text == text.encode(errors="replace").decode()
