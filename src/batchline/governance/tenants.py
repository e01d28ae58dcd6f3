"""Quotas, usage and erasure of tenants. Each change and its audit record commit in one transaction.

Any user sees the usage of the own tenant. All else is for operators: whoever has access to the database, and
keys with the role `operator`. Admins of a tenant are not trusted with other tenants.
"""

from datetime import UTC, date, datetime

import msgspec

from batchline.governance.access import Actor
from batchline.governance.errors import Conflict, InvalidSubmission, NotAllowed, NotFound
from batchline.model import Role, TenantUsage
from batchline.secrets.masking import masked_text
from batchline.store import tenants
from batchline.store.adoption import transactions
from batchline.store.audit import AuditEvent
from batchline.store.session import Session
from batchline.store.tenants import Tenant, UsageQuery

_MAX_BYTES = 2**60
_USAGE_DAYS = 30


class UsageReport(msgspec.Struct, frozen=True):
    """A page of what was used by period and tenant, and what running batches have used besides."""

    rows: list[TenantUsage]
    running: list[TenantUsage]
    has_more: bool


def usage_period(since: date | None, until: date | None) -> tuple[date, date]:
    """The first day of a report, and the first after its last: by default the last 30 days. The caller
    refuses a period that is empty."""
    after = until or date.fromordinal(datetime.now(UTC).date().toordinal() + 1)
    # There are no days before the first one of the calendar.
    return since or date.fromordinal(max(after.toordinal() - _USAGE_DAYS, 1)), after


def check_operator(actor: Actor) -> None:
    """Raises NotAllowed unless the actor may see and change all tenants."""
    if actor.role is not Role.OPERATOR and not actor.alone:
        raise NotAllowed("Only operators may do this. Ask the operator of this server.")


async def get(session: Session, tenant: str) -> Tenant:
    """Raises NotFound."""
    found = await tenants.get(session, tenant)
    if found is None:
        raise _unknown(tenant)
    return found


async def set_quota(
    session: Session, actor: Actor, tenant: str, max_bytes: int | None, *, reason: str | None = None
) -> Tenant:
    """Set the bytes that a tenant may store; None: no quota. Raises NotFound for unknown and erased ones."""
    check_operator(actor)
    if max_bytes is not None and not 0 <= max_bytes <= _MAX_BYTES:
        message = f"Invalid 'max_bytes': {max_bytes} is not between 0 and {_MAX_BYTES}."
        raise InvalidSubmission(message, code="INVALID_REQUEST", param="max_bytes")
    event = _event(actor, "tenant.quota_set", tenant, reason, max_bytes=max_bytes)
    if not await tenants.set_quota(session, tenant, max_bytes, event):
        raise _unknown(tenant)
    return await get(session, tenant)


async def begin_erasure(session: Session, actor: Actor, tenant: str, *, reason: str | None = None) -> Tenant:
    """Refuse new data of a tenant and revoke its keys. Workers delete its data (batches/erasure.py).

    Repeating it changes nothing. Raises NotFound for unknown and erased tenants.
    """
    check_operator(actor)
    adoption = await transactions.find(session)
    if adoption is not None and adoption.finished_at is None:
        raise Conflict(
            "A database is being adopted, and its old tables still have the data."
            " Finish or roll back the adoption first.",
            code="ADOPTION_UNFINISHED",
        )
    found = await get(session, tenant)
    event = _event(actor, "tenant.erasure_begun", tenant, reason, stored_bytes=found.stored)
    if not await tenants.begin_erasure(session, tenant, actor.user, event):
        raise _unknown(tenant)
    return await get(session, tenant)


async def report(session: Session, actor: Actor, query: UsageQuery) -> UsageReport:
    """The usage of the own tenant; for operators, of any tenant or of all.

    Running batches are in the first page, if today is one of the days.
    """
    if query.tenant != actor.tenant:
        check_operator(actor)
    more = msgspec.structs.replace(query, limit=query.limit + 1)
    rows = await tenants.usage(session, more)
    current = query.after is None and query.until > datetime.now(UTC).date()
    running = await tenants.running(session, query.tenant) if current else []
    return UsageReport(rows[: query.limit], running, len(rows) > query.limit)


def _event(actor: Actor, action: str, tenant: str, reason: str | None, **detail: object) -> AuditEvent:
    """The record belongs to the tenant that it concerns."""
    reasons = {} if reason is None else {"reason": masked_text(reason)}
    return AuditEvent(tenant, actor.user, action, subject=tenant, detail=detail | reasons)


def _unknown(tenant: str) -> NotFound:
    return NotFound(f"No such tenant: {tenant[:64]}", code="TENANT_NOT_FOUND", param="tenant")
