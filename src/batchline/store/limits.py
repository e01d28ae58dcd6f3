"""Limits on pending work, globally and per user, with overrides and exemptions.

There are no counters: pending batches and children are counted in `batches`. A transaction that adds pending
work takes two locks in a fixed order, the global row and then the user's, and counts in a separate statement
afterwards. So two transactions never use the same free capacity.
"""

from datetime import datetime
from typing import Any

import msgspec

from batchline.model import RequestKind
from batchline.store import audit
from batchline.store.audit import AuditEvent
from batchline.store.session import Connection, Row, Session, run
from batchline.store.statements import statement


class Override(msgspec.Struct, frozen=True):
    """Limits that replace the defaults for one user."""

    user_id: str
    max_pending_parents: int
    max_pending_children: int
    cooldown_seconds: int
    reason: str
    set_by: str
    set_at: datetime


class Exemption(msgspec.Struct, frozen=True):
    """A user that is exempt from the per-user limits until `expires_at`."""

    user_id: str
    reason: str
    expires_at: datetime
    exempted_by: str
    created_at: datetime
    active: bool


class Measured(msgspec.Struct, frozen=True):
    """What is pending now, and the user's limits; a limit of None means the default."""

    all_parents: int
    parents: int
    children: int
    # Seconds since the user's last submission; None if there was none.
    since_last: float | None
    max_parents: int | None
    max_children: int | None
    cooldown: int | None
    exempt: bool


async def lock(connection: Connection, tenant: str, user: str) -> Measured:
    """Lock the limits and count. Until the transaction ends, no other transaction can add pending work."""
    params = {"tenant": tenant, "user": user}
    await run(connection, statement("bound_idle"), {})
    await run(connection, statement("lock_limits"), {})
    await run(connection, statement("lock_user_limits"), params)
    return _measured(await run(connection, statement("measure_limits"), params))


async def measure(session: Session, tenant: str, user: str) -> Measured:
    """Count without locks, for display."""
    params = {"tenant": tenant, "user": user}
    return _measured(await session.rows(statement("measure_limits"), params))


def _measured(rows: list[Row]) -> Measured:
    (row,) = rows
    return Measured(*row)


class Counted(msgspec.Struct, frozen=True):
    """Requests of one kind in this minute, this one included."""

    mine: int
    # Of all users; None if this request does not count there.
    everybody: int | None
    # Seconds until the next minute.
    left: float


class Window(msgspec.Struct, frozen=True):
    """All users' requests in this minute so far."""

    reads: int
    writes: int


async def count_request(session: Session, tenant: str, user: str, kind: RequestKind, share: int) -> Counted:
    """Count one more request. Beyond the user's share it does not count towards the total of all users."""
    params = {"tenant": tenant, "user": user, "kind": kind.value, "share": share}
    (row,) = await session.rows(statement("count_request"), params)
    counted = Counted(*row)
    if counted.mine == 1:
        await session.rows(statement("forget_windows"), {})
    return counted


async def requests_now(session: Session) -> Window:
    (row,) = await session.rows(statement("current_window"), {})
    return Window(*row)


async def set_override(
    session: Session,
    tenant: str,
    user: str,
    *,
    parents: int,
    children: int,
    cooldown: int,
    reason: str,
    event: AuditEvent,
) -> Override:
    params = {"parents": parents, "children": children, "cooldown": cooldown, "reason": reason}
    rows = await _changed(session, "set_override", tenant, user, event, params)
    return Override(*rows[0])


async def overrides(session: Session, tenant: str) -> list[Override]:
    return [Override(*row) for row in await session.rows(statement("list_overrides"), {"tenant": tenant})]


async def exempt(
    session: Session, tenant: str, user: str, *, reason: str, expires_at: datetime, event: AuditEvent
) -> Exemption | None:
    """Exempt a user. Return None if `expires_at` is already past."""
    params = {"reason": reason, "expires_at": expires_at}
    rows = await _changed(session, "set_exemption", tenant, user, event, params)
    return Exemption(*rows[0]) if rows else None


async def exemptions(session: Session, tenant: str) -> list[Exemption]:
    return [Exemption(*row) for row in await session.rows(statement("list_exemptions"), {"tenant": tenant})]


async def drop_exemption(session: Session, tenant: str, user: str, event: AuditEvent) -> bool:
    return bool(await _changed(session, "drop_exemption", tenant, user, event, {}))


async def users(session: Session, tenant: str) -> list[str]:
    """List the users that have pending batches, an override or an exemption."""
    return [user for (user,) in await session.rows(statement("limit_users"), {"tenant": tenant})]


async def _changed(
    session: Session, name: str, tenant: str, user: str, event: AuditEvent, params: dict[str, Any]
) -> list[Row]:
    """Change a user's limits under the user's lock, and add the audit record if anything changed."""
    params = {**params, "tenant": tenant, "user": user, "actor": event.actor}
    async with session.transaction() as connection:
        await run(connection, statement("lock_user_limits"), params)
        rows = await run(connection, statement(name), params)
        if rows:
            await audit.add(connection, event)
        return rows
