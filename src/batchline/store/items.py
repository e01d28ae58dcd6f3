"""Items of one batch for people: by state, cause and custom_id, page by page; and one item in full.

A page looks at a bounded number of lines, however large the batch is. It may have fewer items than requested,
and still a position to continue from.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from batchline.store.listing import Found
from batchline.store.session import Session
from batchline.store.statements import statement

# Lines that one page looks at, if it has to look for some among others.
_CHUNK, _CHUNK_OF_FAILED, _CHUNK_FOR_WORDS = 2_000, 5_000, 20_000


class ItemPosition(msgspec.Struct, frozen=True):
    """A lane, and a position there: an ordinal, or a line number in lists of failed items."""

    lane: int = 0
    at: int = -1


class ItemRow(msgspec.Struct, frozen=True):
    line: int
    custom_id: str
    state: str
    attempts: int
    code: str | None
    message: str | None
    upstream_seconds: float | None
    finished_at: datetime | None


class StoredLine(msgspec.Struct, frozen=True):
    """A line and its result. The texts may be cut; `…_bytes` are their full sizes."""

    custom_id: str
    url: str
    model: str
    body: str
    body_bytes: int
    output: str | None
    output_bytes: int | None
    lane: int
    ordinal: int


async def page(
    session: Session,
    batch_id: UUID,
    *,
    state: str | None = None,
    cause: str | None = None,
    words: str | None = None,
    after: ItemPosition | None = None,
    limit: int,
) -> Found[ItemRow]:
    after = after or ItemPosition()
    params: dict[str, Any] = {
        "batch": batch_id,
        "after_lane": after.lane,
        "after": after.at,
        "words": words,
        "limit": limit + 1,
    }
    wide = max(limit + 1, _CHUNK_FOR_WORDS) if words else limit + 1
    if cause is not None or state == "failed":
        chunk = max(wide, _CHUNK_OF_FAILED) if cause or words else wide
        name, more = "list_failed_items", {"cause": cause, "chunk": chunk}
    elif state in ("in_flight", "retrying"):
        name, more = "list_span_items", {"in_flight": state == "in_flight", "chunk": wide}
    else:
        searched = state not in (None, "pending")
        chunk = max(wide, _CHUNK) if searched else wide
        name, more = "list_items", {"state": state, "fresh": state == "pending", "chunk": chunk}
    rows = await session.rows(statement(name), params | more)
    found = [(ItemPosition(*row[:2]), ItemRow(*row[2:10])) for row in rows if row[10]]
    if len(found) > limit:
        return Found([item for _, item in found[:limit]], found[limit - 1][0])
    unread = [ItemPosition(*row[:2]) for row in rows if not row[10]]
    return Found([item for _, item in found], unread[0] if unread else None)


async def line(session: Session, batch_id: UUID, line_no: int, max_bytes: int) -> StoredLine | None:
    """None: the batch has no such line, or its results are being deleted."""
    params = {"batch": batch_id, "line": line_no, "max_bytes": max_bytes}
    rows = await session.rows(statement("find_line"), params)
    return StoredLine(*rows[0]) if rows else None
