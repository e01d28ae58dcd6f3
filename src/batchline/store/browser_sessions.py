"""Browsers that are signed in with an API key. Of a session's secret only the hash is stored."""

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from batchline.model import ApiKey, Role
from batchline.store.session import Session
from batchline.store.statements import statement


class BrowserSession(msgspec.Struct, frozen=True):
    key: ApiKey
    expires_at: datetime


async def add(
    session: Session, hash: bytes, key_id: UUID, *, lifetime: float, maximum: int
) -> datetime | None:
    """When the new session expires; None: the key was revoked meanwhile."""
    params = {"hash": hash, "key": key_id, "lifetime": lifetime, "maximum": maximum}
    rows = await session.rows(statement("add_browser_session"), params)
    return rows[0][0] if rows else None


async def find(session: Session, hash: bytes) -> BrowserSession | None:
    """None: there is no such session, it has expired, or its key is revoked."""
    rows = await session.rows(statement("find_browser_session"), {"hash": hash})
    if not rows:
        return None
    key_id, name, tenant, role, hint, created_at, revoked_at, expires_at = rows[0]
    key = ApiKey(key_id, name, tenant, Role(role), hint, created_at, revoked_at)
    return BrowserSession(key, expires_at)


async def drop(session: Session, hash: bytes) -> None:
    await session.rows(statement("drop_browser_session"), {"hash": hash})


async def still_good(session: Session, hashes: Collection[bytes]) -> set[bytes]:
    """Those hashes of sessions and keys that still authenticate."""
    rows = await session.rows(statement("live_credentials"), {"hashes": list(hashes)})
    return {bytes(hash) for (hash,) in rows}
