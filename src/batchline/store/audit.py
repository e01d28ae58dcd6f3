"""The audit log: a row is added in the transaction of the act that it records, and never changes."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from batchline.store.session import Session, StoreConnection, run
from batchline.store.statements import statement

# Entries that one page of a search looks at.
_SEARCHED = 5_000
# The actor of everything that no user requested.
SYSTEM = "system"


class AuditEvent(msgspec.Struct, frozen=True):
    """An act to record. `detail` must already be masked; large values in it are already encoded, as Raw."""

    tenant: str
    actor: str
    action: str
    batch_id: UUID | None = None
    # The user that the act concerns.
    subject: str | None = None
    detail: Mapping[str, Any] = {}


class Entry(msgspec.Struct, frozen=True):
    """A recorded act."""

    id: int
    at: datetime
    tenant: str
    actor: str
    action: str
    batch_id: UUID | None
    sequence_no: int | None
    subject: str | None
    detail: dict[str, Any]


async def add(connection: StoreConnection, event: AuditEvent) -> None:
    params = {
        "tenant": event.tenant,
        "actor": event.actor,
        "action": event.action,
        "batch": event.batch_id,
        "subject": event.subject,
        "detail": Jsonb(dict(event.detail), dumps=msgspec.json.encode),
    }
    await run(connection, statement("add_audit"), params)


async def page(
    session: Session,
    *,
    tenant: str | None = None,
    batch_id: UUID | None = None,
    since: datetime | None = None,
    after: int = 0,
    limit: int = 1000,
) -> list[Entry]:
    """List entries, oldest first.

    `after` is the id of the previous page's last entry. No tenant: all tenants.
    """
    params = {"tenant": tenant, "batch": batch_id, "since": since, "after": after, "limit": limit}
    return [Entry(*row) for row in await session.rows(statement("list_audit"), params)]


class AuditSearch(msgspec.Struct, frozen=True):
    """What to look for. `words` may be in any text of an entry."""

    words: str | None = None
    actor: str | None = None
    action: str | None = None
    since: datetime | None = None
    before: datetime | None = None


async def search(
    session: Session, tenant: str, wanted: AuditSearch, *, after: int | None = None, limit: int
) -> tuple[list[Entry], int | None]:
    """Entries of a tenant, newest first, and the id to continue after; None: there are no more. A page
    looks at a bounded number of entries, so it may have few of them and still a next one."""
    params = {
        "tenant": tenant,
        "words": None if wanted.words is None else wanted.words.lower(),
        "actor": wanted.actor,
        "action": wanted.action,
        "since": wanted.since or "-infinity",
        "before": wanted.before or "infinity",
        "after": 2**62 if after is None else after,
        "chunk": max(_SEARCHED, limit + 1),
        "limit": limit + 1,
    }
    rows = await session.rows(statement("search_audit"), params)
    found = [Entry(*row[:9]) for row in rows if row[9]]
    if len(found) > limit:
        return found[:limit], found[limit - 1].id
    unread = [row[0] for row in rows if not row[9]]
    return found, unread[0] if unread else None
