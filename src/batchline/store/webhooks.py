"""Webhooks and their deliveries."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from batchline.store import audit
from batchline.store.audit import AuditEvent
from batchline.store.session import Session, run, run_records
from batchline.store.statements import statement

_CHUNK = 5_000


class Webhook(msgspec.Struct, frozen=True):
    """A webhook without its secret, except the end. The secret is displayed only when it is created."""

    id: UUID
    tenant: str
    name: str
    url: str
    events: list[str]
    secret_end: str
    created_at: datetime
    updated_at: datetime


class Delivery(msgspec.Struct, frozen=True):
    """One event for one webhook."""

    webhook_id: UUID
    event_id: UUID
    batch_id: UUID
    type: str
    occurred_at: datetime
    attempts: int
    available_at: datetime
    delivered_at: datetime | None
    failed_at: datetime | None
    last_status: int | None
    last_error: str | None
    created_at: datetime


class Message(msgspec.Struct, frozen=True):
    """An event to send. Its id is the same in every attempt."""

    event_id: UUID
    batch_id: UUID
    type: str
    occurred_at: datetime
    attempts: int


class Taken(msgspec.Struct, frozen=True):
    """A webhook leased to a worker; `message` is None if there is nothing to send."""

    webhook_id: UUID
    url: str
    secret: str
    previous_secret: str | None
    lease_until: datetime
    failures: int
    message: Message | None

    def __repr__(self) -> str:
        return f"Taken({self.webhook_id}, {self.message})"


class DeliveryAttempt(msgspec.Struct, frozen=True):
    """The outcome of sending: delivered, the receiver's status, or why it could not be reached."""

    delivered: bool
    status: int | None = None
    error: str | None = None


async def add(
    session: Session,
    webhook_id: UUID,
    tenant: str,
    *,
    name: str,
    url: str,
    events: Sequence[str],
    secret: str,
    maximum: int,
    event: AuditEvent,
) -> Webhook | None:
    """Add a webhook. Return None if the tenant already has the maximum number."""
    params = {
        "webhook": webhook_id,
        "tenant": tenant,
        "name": name,
        "url": url,
        "events": list(events),
        "secret": secret,
        "max_webhooks": maximum,
    }
    return _first(await _changed(session, "add_webhook", params, event))


async def get(session: Session, tenant: str, webhook_id: UUID) -> Webhook | None:
    params = {"tenant": tenant, "webhook": webhook_id}
    return _first(await session.records(statement("get_webhook"), params))


async def secrets(session: Session, tenant: str, webhook_id: UUID) -> tuple[str, ...]:
    """The secrets that sign now, newest first; empty if the webhook does not exist."""
    params = {"tenant": tenant, "webhook": webhook_id}
    rows = await session.records(statement("webhook_secrets"), params)
    return tuple(secret for row in rows for secret in row.values() if secret is not None)


async def list_newest(
    session: Session, tenant: str, *, limit: int, after: UUID | None = None
) -> list[Webhook]:
    params = {"tenant": tenant, "limit": limit, "after": after}
    return [_webhook(row) for row in await session.records(statement("list_webhooks"), params)]


async def change(
    session: Session,
    tenant: str,
    webhook_id: UUID,
    *,
    name: str | None = None,
    url: str | None = None,
    events: Sequence[str] | None = None,
    event: AuditEvent,
) -> Webhook | None:
    params = {
        "tenant": tenant,
        "webhook": webhook_id,
        "name": name,
        "url": url,
        "events": None if events is None else list(events),
    }
    return _first(await _changed(session, "change_webhook", params, event))


async def delete(session: Session, tenant: str, webhook_id: UUID, event: AuditEvent) -> bool:
    params = {"tenant": tenant, "webhook": webhook_id}
    return bool(await _changed(session, "delete_webhook", params, event))


async def rotate(
    session: Session, tenant: str, webhook_id: UUID, secret: str, *, event: AuditEvent, keep: float = 0.0
) -> Webhook | None:
    """Replace the secret. The previous one also signs for `keep` seconds."""
    params = {"tenant": tenant, "webhook": webhook_id, "secret": secret, "keep": keep}
    return _first(await _changed(session, "rotate_webhook", params, event))


async def deliveries(
    session: Session, webhook_id: UUID, *, limit: int, after: UUID | None = None
) -> list[Delivery]:
    params = {"webhook": webhook_id, "limit": limit, "after": after}
    return [_delivery(row) for row in await session.records(statement("list_deliveries"), params)]


async def has_delivery(session: Session, webhook_id: UUID, event_id: UUID) -> bool:
    params = {"webhook": webhook_id, "event": event_id}
    return bool(await session.rows(statement("find_delivery"), params))


async def fan_out(session: Session, event_id: UUID) -> int:
    """Create the deliveries of an event. Return the number of webhooks."""
    ((reported,),) = await session.rows(statement("fan_out"), {"event": event_id})
    return int(reported)


async def take(session: Session, *, lease: float) -> Taken | None:
    """Lease a webhook that is due, for `lease` seconds. Return None if none is due."""
    rows = await session.records(statement("take_delivery"), {"lease": lease})
    if not rows:
        return None
    row = rows[0]
    fields = {name: row.pop(name) for name in Message.__struct_fields__}
    message = None if fields["event_id"] is None else Message(**fields)
    return Taken(**row, message=message)


async def settle(
    session: Session, taken: Taken, attempt: DeliveryAttempt, *, delay: float, rest: float, abandon: float
) -> bool | None:
    """Record the outcome and release the webhook.

    Return True if the delivery is abandoned. Return None if the lease was lost or the webhook was deleted;
    the worker that holds the lease now sends the message again, with the same id.
    """
    webhook = {"webhook": taken.webhook_id}
    async with session.transaction() as connection:
        lock = {**webhook, "lease_until": taken.lease_until}
        if not await run(connection, statement("lock_webhook"), lock):
            return None
        params = {
            **webhook,
            "event": None if taken.message is None else taken.message.event_id,
            "delivered": attempt.delivered,
            "status": attempt.status,
            "error": attempt.error,
            "delay": delay,
            "rest": rest,
            "abandon": abandon,
        }
        ((given_up,),) = await run(connection, statement("settle_delivery"), params)
        return bool(given_up)


async def drop_old(session: Session, seconds: float) -> int:
    """Delete one chunk of old deliveries. Return 0 when none is left."""
    params = {"seconds": seconds, "chunk": _CHUNK}
    ((gone,),) = await session.rows(statement("drop_old_deliveries"), params)
    return int(gone)


async def _changed(
    session: Session, name: str, params: dict[str, Any], event: AuditEvent
) -> list[dict[str, Any]]:
    """Run a change, and add the audit record if anything changed."""
    async with session.transaction() as connection:
        rows = await run_records(connection, statement(name), params)
        if rows:
            await audit.add(connection, event)
        return rows


def _first(rows: Sequence[dict[str, Any]]) -> Webhook | None:
    return _webhook(rows[0]) if rows else None


def _webhook(row: dict[str, Any]) -> Webhook:
    row["secret_end"] = row["secret"][-4:]
    return Webhook(**{name: row[name] for name in Webhook.__struct_fields__})


def _delivery(row: dict[str, Any]) -> Delivery:
    return Delivery(**{name: row[name] for name in Delivery.__struct_fields__})
