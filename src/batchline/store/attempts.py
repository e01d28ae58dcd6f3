"""The history of one item."""

from typing import Any
from uuid import UUID

import msgspec

from batchline.model import Attempt, AttemptTimes, ItemHistory
from batchline.model.answer_rules import INVALID_OUTPUT
from batchline.model.failure import MAX_MESSAGE, error_of_line
from batchline.store import task_ids
from batchline.store.session import Session
from batchline.store.statements import statement

# How batches/output.py begins a line.
_LINE = '{"id":"batch_req_'
_MAX_ANSWER = 2**20


async def of_item(session: Session, batch_id: UUID, custom_id: str) -> ItemHistory | None:
    """Find an item by its custom_id; None if the batch has no such item, or its results have been deleted."""
    if not _storable(custom_id):
        return None
    params = {"batch": batch_id, "custom_id": custom_id}
    rows = await session.records(statement("item_attempts"), params)
    if not rows:
        return None
    return _history(batch_id, rows[0])


async def at(session: Session, batch_id: UUID, lane_id: int, ordinal: int) -> ItemHistory | None:
    """The item at an ordinal of a lane of the batch."""
    params = {"batch": batch_id, "lane": lane_id, "ordinal": ordinal}
    rows = await session.records(statement("item_history"), params)
    return _history(batch_id, rows[0]) if rows else None


async def last_invalid_answer(session: Session, lane_id: int, ordinal: int) -> bytes | None:
    """The error line of the last answer to an item that did not meet the rules; None if there is none, or it
    is very large."""
    params = {"lane": lane_id, "ordinal": ordinal, "code": INVALID_OUTPUT, "max_size": _MAX_ANSWER + 1}
    rows = await session.rows(statement("last_invalid_answer"), params)
    if not rows or len(rows[0][0]) > _MAX_ANSWER:
        return None
    return str(rows[0][0]).encode()


def _history(batch_id: UUID, row: dict[str, Any]) -> ItemHistory:
    output: str | None = row.pop("output")
    row["task_id"] = task_ids.returned(batch_id, row["task_id"])
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
