"""Lists of batches for people: by filters, in three orders, page by page in both directions.

Every list reads a bounded number of index entries, whatever the filters and however many batches there are. A
page may therefore have fewer batches than requested, and still a position to continue from.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, Generic, Literal, TypeVar
from uuid import UUID

import msgspec

from batchline.model import Batch
from batchline.store.batches import batch_of
from batchline.store.session import Session
from batchline.store.statements import Statement, statement

Sort = Literal["created", "deadline", "failed"]
T = TypeVar("T")

# Batches that one page looks at if filters leave some of them out, and if files are read by name as well.
_CHUNK, _CHUNK_FOR_WORDS = 10_000, 3_000
# Larger numbers are not counted.
MAX_COUNT = 10_000
_DIRECTION = re.compile(r"\bDESC\b(?! /\* always \*/)|\) < \(")
_FIRST_ID, _LAST_ID = UUID(int=0), UUID(int=2**128 - 1)


class BatchViewer(msgspec.Struct, frozen=True):
    """Who looks: a tenant, and of its governed batches only those of `user`; None: all."""

    tenant: str
    user: str | None = None


class BatchFilters(msgspec.Struct, frozen=True):
    statuses: tuple[str, ...] | None = None
    kind: Literal["batch", "operation"] | None = None
    model: str | None = None
    # Part of a file's name, a model, an operation or the metadata.
    words: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None

    @property
    def selective(self) -> bool:
        """Whether batches of an index range may be left out."""
        return any((self.kind, self.model, self.words))


class Position(msgspec.Struct, frozen=True):
    """A batch in a list: what it is sorted by, as text, and its id."""

    value: str
    id: UUID


class Found(msgspec.Struct, Generic[T], frozen=True):
    """What a page has, in the direction in which it was read, and where more may be."""

    rows: Sequence[T]
    more: Any = None


class BatchSummary(msgspec.Struct, frozen=True):
    """A batch as lists show it, and what was last noted of its progress."""

    batch: Batch
    read_at: datetime
    filename: str | None
    # Of a governed batch.
    operation: str | None
    approval: str | None
    submitted_by: str | None
    noted_at: datetime | None
    noted_seconds: float | None
    noted_items: int | None


async def page(
    session: Session,
    viewer: BatchViewer,
    filters: BatchFilters,
    *,
    sort: Sort = "created",
    descending: bool = True,
    after: Position | None = None,
    limit: int,
) -> Found[Position]:
    """Batches in the given direction, after a position."""
    name, usual = _listing(sort, filters)
    selective = filters.selective or viewer.user is not None or (sort != "created" and _narrows(filters))
    chunk = limit + 1
    if selective:
        chunk = max(chunk, _CHUNK_FOR_WORDS if filters.words else _CHUNK)
    start = _start(sort, descending=descending) if after is None else after
    params = {
        "tenant": viewer.tenant,
        "viewer": viewer.user,
        "kind": filters.kind,
        "statuses": None if filters.statuses is None else list(filters.statuses),
        "model": filters.model,
        "words": None if filters.words is None else filters.words.lower(),
        "since": filters.created_after or "-infinity",
        "before": filters.created_before or "infinity",
        "after": int(start.value) if sort == "failed" else start.value,
        "after_id": start.id,
        "chunk": chunk,
        "limit": limit + 1,
    }
    reading = usual if descending else _backwards(name)
    rows = await session.rows(reading, {key: params[key] for key in _parameters(reading)})
    found = [Position(value, batch_id) for value, batch_id, matches, _ in rows if matches]
    if len(found) > limit:
        return Found(found[:limit], found[limit - 1])
    unread = [Position(value, batch_id) for value, batch_id, matches, _ in rows if not matches]
    return Found(found, unread[0] if unread else None)


async def count(session: Session, viewer: BatchViewer, filters: BatchFilters) -> int:
    """Batches of the tenant, or with some statuses, up to MAX_COUNT + 1."""
    statuses = None if filters.statuses is None else list(filters.statuses)
    params = {"tenant": viewer.tenant, "statuses": statuses, "limit": MAX_COUNT + 1}
    ((number,),) = await session.rows(statement("count_batches"), params)
    return int(number)


async def summaries(session: Session, viewer: BatchViewer, batches: Sequence[UUID]) -> list[BatchSummary]:
    """Those of the batches that the viewer may see, in their order."""
    if not batches:
        return []
    params = {"tenant": viewer.tenant, "viewer": viewer.user, "batches": list(batches)}
    return [_summary(row) for row in await session.records(statement("batch_summaries"), params)]


def _summary(row: dict[str, Any]) -> BatchSummary:
    names = BatchSummary.__struct_fields__[1:]
    return BatchSummary(batch_of(row), *(row[name] for name in names))


def _narrows(filters: BatchFilters) -> bool:
    return any((filters.statuses, filters.created_after, filters.created_before))


def _listing(sort: Sort, filters: BatchFilters) -> tuple[str, Statement]:
    name = f"batches_by_{'creation' if sort == 'created' else sort}"
    if sort == "created" and filters.statuses is not None:
        name = "batches_by_status"
    return name, statement(name)


def _start(sort: Sort, *, descending: bool) -> Position:
    """Before everything. An infinite deadline sorts with the greatest id."""
    if sort == "failed":
        return Position(str(2**31 - 1) if descending else "0", _LAST_ID)
    return Position("infinity", _LAST_ID) if descending else Position("-infinity", _FIRST_ID)


@cache
def _backwards(name: str) -> Statement:
    """The statement with its order and its comparison with the position reversed."""
    usual = statement(name)
    turned = {"DESC": "ASC", ") < (": ") > ("}
    # Made of the statement's own text, so it is as trusted.
    return Statement(f"{name}_backwards", _DIRECTION.sub(lambda found: turned[found[0]], usual.text))


@cache
def _parameters(of: Statement) -> tuple[str, ...]:
    return of.numbered_in("batchline")[1]
