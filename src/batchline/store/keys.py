"""API keys: only their hashes are here."""

from typing import Any
from uuid import UUID

import msgspec

from batchline.model import ApiKey, Role
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


async def add(session: Session, new: NewKey) -> ApiKey:
    (row,) = await session.rows(statement("add_key"), new.params())
    return _key(row)


async def add_first(session: Session, new: NewKey) -> ApiKey | None:
    """None where there is a key already, or has been one."""
    async with session.transaction() as connection:
        await run(connection, statement("lock_keys"), {})
        rows = await run(connection, statement("add_first_key"), new.params())
    return _key(rows[0]) if rows else None


async def find(session: Session, hash: bytes) -> ApiKey | None:
    """The key with this hash, unless it was revoked."""
    rows = await session.rows(statement("find_key"), {"hash": hash})
    return _key(rows[0]) if rows else None


async def list_all(session: Session, tenant: str | None = None) -> list[ApiKey]:
    return [_key(row) for row in await session.rows(statement("list_keys"), {"tenant": tenant})]


async def revoke(session: Session, key_id: UUID) -> ApiKey | None:
    """None where there is no such key, or it was revoked before."""
    rows = await session.rows(statement("revoke_key"), {"id": key_id})
    return _key(rows[0]) if rows else None


def _key(row: Row) -> ApiKey:
    key_id, name, tenant, role, hint, created_at, revoked_at = row
    return ApiKey(key_id, name, tenant, Role(role), hint, created_at, revoked_at)
