"""API keys, of which only hashes are stored. Each change and its audit record are one transaction."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec

from batchline.model import ApiKey, Role
from batchline.store import audit
from batchline.store.audit import AuditEvent
from batchline.store.session import Row, Session, run
from batchline.store.statements import statement


class NewKey(msgspec.Struct, frozen=True):
    id: UUID
    name: str
    tenant: str
    role: Role
    hash: bytes
    hint: str

    def params(self) -> dict[str, Any]:
        return {**msgspec.structs.asdict(self), "role": self.role.value}


async def add(session: Session, new: NewKey, event: AuditEvent) -> ApiKey:
    async with session.transaction() as connection:
        (row,) = await run(connection, statement("add_key"), new.params())
        await audit.add(connection, event)
    return _key(row)


async def add_first(session: Session, new: NewKey, event: AuditEvent) -> ApiKey | None:
    """Add the first key of the database. Return None if a key exists or ever existed."""
    async with session.transaction() as connection:
        await run(connection, statement("lock_keys"), {})
        rows = await run(connection, statement("add_first_key"), new.params())
        if not rows:
            return None
        await audit.add(connection, event)
    return _key(rows[0])


async def find(session: Session, hash: bytes) -> ApiKey | None:
    """Find the key with this hash, unless it was revoked."""
    rows = await session.rows(statement("find_key"), {"hash": hash})
    return _key(rows[0]) if rows else None


async def list_all(session: Session, tenant: str | None = None) -> list[ApiKey]:
    return [_key(row) for row in await session.rows(statement("list_keys"), {"tenant": tenant})]


async def page(session: Session, tenant: str, *, limit: int, after: UUID | None = None) -> list[ApiKey]:
    """The keys of a tenant, newest first. `after` is the last key of the previous page."""
    params = {"tenant": tenant, "after": after, "limit": limit}
    return [_key(row) for row in await session.rows(statement("list_tenant_keys"), params)]


async def revoke(session: Session, key_id: UUID, event: Callable[[ApiKey], AuditEvent]) -> ApiKey | None:
    """Revoke a key. Return None if it does not exist or was already revoked."""
    async with session.transaction() as connection:
        rows = await run(connection, statement("revoke_key"), {"id": key_id})
        if not rows:
            return None
        key = _key(rows[0])
        await audit.add(connection, event(key))
    return key


def _key(row: Row) -> ApiKey:
    key_id, name, tenant, role, hint, created_at, revoked_at = row
    return ApiKey(key_id, name, tenant, Role(role), hint, created_at, revoked_at)
