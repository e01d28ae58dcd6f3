"""Tenants: quotas, usage, and the steps that erase one. Each step deletes one small chunk.

Triggers in the database count bytes and usage (store/functions/count_usage_v1.sql); nothing here does.
"""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from batchline.model import DEFAULT_TENANT, TenantUsage
from batchline.store import audit
from batchline.store.audit import AuditEvent
from batchline.store.retention import CHUNK, DeletedFile
from batchline.store.session import Session, StorageQuotaExceeded, run
from batchline.store.statements import statement

_PAGE = 100


class Tenant(msgspec.Struct, frozen=True):
    """A tenant, and the bytes of its files. `max_bytes`: its quota; None: it has none."""

    name: str
    max_bytes: int | None
    stored: int
    created_at: datetime
    # While it is being erased, and after that.
    erasing_at: datetime | None
    erasing_by: str | None
    erased_at: datetime | None

    @property
    def room(self) -> int:
        """Bytes that it may add, if it has a quota."""
        return 0 if self.max_bytes is None else max(0, self.max_bytes - self.stored)


class UsageQuery(msgspec.Struct, frozen=True):
    """Which usage to report: of one tenant or of all, of the days from `since` until before `until`."""

    tenant: str | None
    since: date
    until: date
    by: Literal["day", "month", "total"] = "day"
    # The period and the tenant of the last row of the previous page.
    after: tuple[date, str] | None = None
    limit: int = 1000


class ErasureLeft(msgspec.Struct, frozen=True):
    """What is left to erase of a tenant, and how many tasks are to be cancelled at providers before."""

    batches: int
    files: int
    tasks: int


async def get(session: Session, tenant: str) -> Tenant | None:
    rows = await session.rows(statement("get_tenant"), {"tenant": tenant})
    return Tenant(*rows[0]) if rows else None


async def check_room(session: Session, tenant: str, size: int) -> int | None:
    """The bytes that the tenant may add now; None: any number.

    Raises StorageQuotaExceeded if `size` are more. For an early answer: only the transaction that adds a file
    decides.
    """
    found = await get(session, tenant)
    if found is None or found.max_bytes is None:
        return None
    if size > found.room:
        raise StorageQuotaExceeded(
            f'tenant "{tenant}" stores {found.stored} bytes of its quota of {found.max_bytes},'
            f" so {size} more do not fit"
        )
    return found.room


async def page(session: Session, *, after: str = "", limit: int = _PAGE) -> list[Tenant]:
    """List tenants by name, also erased ones. `after` is the last name of the previous page."""
    rows = await session.rows(statement("list_tenants"), {"after": after, "limit": limit})
    return [Tenant(*row) for row in rows]


async def set_quota(session: Session, tenant: str, max_bytes: int | None, event: AuditEvent) -> bool:
    """Set or remove a quota. Return False if there is no such tenant."""
    async with session.transaction() as connection:
        params = {"tenant": tenant, "max_bytes": max_bytes}
        if not await run(connection, statement("set_quota"), params):
            return False
        await audit.add(connection, event)
    return True


async def usage(session: Session, query: UsageQuery) -> list[TenantUsage]:
    """A page of what tenants have used, by period and tenant."""
    after = query.after or (None, None)
    params = {
        "tenant": query.tenant,
        "since": query.since,
        "until": query.until,
        "by": query.by,
        "after_period": after[0],
        "after_tenant": after[1],
        "limit": query.limit,
    }
    rows = await session.rows(statement("usage_report"), params)
    return [TenantUsage(tenant, period, *map(int, used)) for tenant, period, *used in rows]


async def running(session: Session, tenant: str | None) -> list[TenantUsage]:
    """What batches that have not ended have used so far, not in `usage` yet: of one tenant, or of each."""
    rows = await session.rows(statement("running_usage"), {"tenant": tenant})
    return [TenantUsage(tenant, None, 0, 0, *map(int, used)) for tenant, *used in rows]


# Erasing


async def begin_erasure(session: Session, tenant: str, actor: str, event: AuditEvent) -> bool:
    """Refuse new data of a tenant and revoke its keys. Return False if there is no such tenant.

    Recorded in the audit log when it begins, and not if it is repeated.
    """
    async with session.transaction() as connection:
        rows = await run(connection, statement("begin_erasure"), {"tenant": tenant, "actor": actor})
        if rows and rows[0][0]:
            await audit.add(connection, event)
    return bool(rows)


async def erasing(session: Session) -> list[str]:
    return [name for (name,) in await session.rows(statement("erasing_tenants"), {})]


async def left(session: Session, tenant: str) -> ErasureLeft:
    rows = await session.rows(statement("erasure_left"), {"tenant": tenant})
    return ErasureLeft(*rows[0])


async def running_batches(session: Session, tenant: str, after: UUID | None) -> list[tuple[UUID, bool]]:
    """A page of batches that are not frozen, and whether each is being closed."""
    params = {"tenant": tenant, "after": after, "limit": _PAGE}
    rows = await session.rows(statement("running_batches"), params)
    return [(batch_id, closing) for batch_id, closing in rows]


async def withhold_finalizing(session: Session, batch_ids: Sequence[UUID]) -> None:
    await session.rows(statement("withhold_finalizing"), {"batches": list(batch_ids)})


async def erase_batches(session: Session, tenant: str) -> list[UUID]:
    params = {"tenant": tenant, "chunk": _PAGE}
    return [batch_id for (batch_id,) in await session.rows(statement("erase_batches"), params)]


async def deleted_batches(session: Session, tenant: str, after: UUID | None) -> list[UUID]:
    params = {"tenant": tenant, "after": after, "limit": _PAGE}
    return [batch_id for (batch_id,) in await session.rows(statement("deleted_batches"), params)]


async def erase_events(session: Session, batch_ids: Sequence[UUID]) -> int:
    """Delete the events of deleted batches, and then their deliveries, in two statements."""
    params = {"batches": list(batch_ids)}
    ((events,),) = await session.rows(statement("erase_events"), params)
    ((deliveries,),) = await session.rows(statement("erase_deliveries"), params)
    return int(events) + int(deliveries)


async def forget_deleted_batches(session: Session, tenant: str | None) -> int:
    return await _count(session, "forget_deleted_batches", tenant)


async def parts(session: Session, tenant: str) -> list[tuple[UUID, str]]:
    """Cancel pending uploads, and list a page of parts (id, object key) of all uploads."""
    rows = await session.rows(statement("tenant_parts"), {"tenant": tenant, "limit": _PAGE})
    return [(part_id, key) for part_id, key in rows]


async def erase_uploads(session: Session, tenant: str) -> int:
    return await _count(session, "erase_uploads", tenant)


async def delete_files(session: Session, tenant: str) -> int:
    return await _count(session, "delete_tenant_files", tenant)


async def files(session: Session, tenant: str, after: UUID | None) -> list[DeletedFile]:
    params = {"tenant": tenant, "after": after, "limit": _PAGE}
    return [DeletedFile(*row) for row in await session.rows(statement("tenant_files"), params)]


async def erase_files(session: Session, tenant: str) -> int:
    return await _count(session, "erase_files", tenant)


async def erase_rows(session: Session, tenant: str) -> int:
    """Delete a chunk of what is found by the tenant's name: keys, webhooks, limits, idempotency keys."""
    return await _count(session, "erase_tenant_rows", tenant)


async def finish_erasure(session: Session, tenant: str) -> list[str] | None:
    """End an erasure if nothing is left. Return the tables that have rows of it, none if it is done.

    None if a transaction that began before the erasure may still add rows.
    """
    async with session.transaction() as connection:
        if not await run(connection, statement("lock_tenant"), {"tenant": tenant}):
            return None
        # A later statement than the lock, so that it sees all that was committed before.
        rows = await run(connection, statement("tenant_remains"), {"tenant": tenant})
        if not rows:
            params = {"tenant": tenant, "kept": tenant == DEFAULT_TENANT}
            await run(connection, statement("finish_erasure"), params)
    return [relation for (relation,) in rows]


async def _count(session: Session, name: str, tenant: str | None) -> int:
    params: dict[str, Any] = {"tenant": tenant, "chunk": CHUNK}
    ((gone,),) = await session.rows(statement(name), params)
    return int(gone)
