"""The audit log: a row is added in the transaction of the act that it records, and never changes."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from batchline.store.session import Connection, Session, run
from batchline.store.statements import statement

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


async def add(connection: Connection, event: AuditEvent) -> None:
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
