"""Limits: what is pending, of all and of each user, and who may have more.

Nothing counts here but the batches themselves. Who may raise what is pending takes two locks in one order,
the row of all and then the user's, and then counts in a statement of its own; so no two of them count the
same room.
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
    """Limits of one user's own."""

    user_id: str
    max_pending_parents: int
    max_pending_children: int
    cooldown_seconds: int
    reason: str
    set_by: str
    set_at: datetime


class Exemption(msgspec.Struct, frozen=True):
    """A user to whom the limits of users do not apply, until a moment."""

    user_id: str
    reason: str
    expires_at: datetime
    exempted_by: str
    created_at: datetime
    active: bool


class Measured(msgspec.Struct, frozen=True):
    """What is pending now, and what the user may have; None: the default."""

    all_parents: int
    parents: int
    children: int
    # Seconds since the user's last submission; None: there was none.
    since_last: float | None
    max_parents: int | None
    max_children: int | None
    cooldown: int | None
    exempt: bool


async def lock(connection: Connection, tenant: str, user: str) -> Measured:
    """From here to the end of the transaction nobody else can raise what is pending."""
    params = {"tenant": tenant, "user": user}
    await run(connection, statement("bound_idle"), {})
    await run(connection, statement("lock_limits"), {})
    await run(connection, statement("lock_user_limits"), params)
    return _measured(await run(connection, statement("measure_limits"), params))


async def measure(session: Session, tenant: str, user: str) -> Measured:
    """The same without locks, to look at."""
    params = {"tenant": tenant, "user": user}
    return _measured(await session.rows(statement("measure_limits"), params))


def _measured(rows: list[Row]) -> Measured:
    (row,) = rows
    return Measured(*row)


class Counted(msgspec.Struct, frozen=True):
    """Requests of one kind in this minute, this one included."""

    mine: int
    # Of all users; None: this one is not counted there.
    everybody: int | None
    # Seconds until the next minute.
    left: float


class Window(msgspec.Struct, frozen=True):
    """All users' requests in this minute so far."""

    reads: int
    writes: int


async def count_request(session: Session, tenant: str, user: str, kind: RequestKind, share: int) -> Counted:
    """Count one more; beyond the user's share it counts for this user alone."""
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
    """None where the moment is past already."""
    params = {"reason": reason, "expires_at": expires_at}
    rows = await _changed(session, "set_exemption", tenant, user, event, params)
    return Exemption(*rows[0]) if rows else None


async def exemptions(session: Session, tenant: str) -> list[Exemption]:
    return [Exemption(*row) for row in await session.rows(statement("list_exemptions"), {"tenant": tenant})]


async def drop_exemption(session: Session, tenant: str, user: str, event: AuditEvent) -> bool:
    return bool(await _changed(session, "drop_exemption", tenant, user, event, {}))


async def users(session: Session, tenant: str) -> list[str]:
    """Those of whom there is something to tell."""
    return [user for (user,) in await session.rows(statement("limit_users"), {"tenant": tenant})]


async def _changed(
    session: Session, name: str, tenant: str, user: str, event: AuditEvent, params: dict[str, Any]
) -> list[Row]:
    """An admin's change, whole for those who submit, and in the audit log if it changed something."""
    params = {**params, "tenant": tenant, "user": user, "actor": event.actor}
    async with session.transaction() as connection:
        await run(connection, statement("lock_user_limits"), params)
        rows = await run(connection, statement(name), params)
        if rows:
            await audit.add(connection, event)
        return rows
